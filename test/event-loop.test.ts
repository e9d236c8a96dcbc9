/**
 * Nothing that a client sends keeps the event loop for long: everything else would wait, health checks and the answers of
 * other clients among it. A real server, and the time for which one turn of its loop kept the processor, which a busy
 * machine does not change.
 */
import { mkdtemp } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import type OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createBatch } from "./support/batches.ts";
import { forAllTests } from "./support/for-all-tests.ts";
import { listening } from "./support/listening.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";
import { AGAIN, MAX_TURN_MS, startWatched, type WatchedServer } from "./support/watched-server.ts";

const MEBIBYTE = 1024 * 1024;

const folder = forAllTests(temporaryFolder("batchd-turns-")).path;
const upstream = forAllTests(await startUpstream());
upstream.forget();
/** Reports usage many times over, 30 MB of it when it is asked to; another route than the other one. */
const counting = forAllTests(
  await startUpstream({
    answers: ({ user }) => ({
      ...(user === "echo" && { status: 422 }),
      headers: { "content-type": "application/json" },
      body: BODIES[user ?? ""] ?? '{"usage":{"total_tokens":1}}',
    }),
  }),
);
counting.forget();

/** It is in long objects, and in short ones. */
const MUCH_USAGE = (() => {
  const long = `"usage":{${'"a":[{},{}],'.repeat(4_500)}"total_tokens":7}`;
  const short = '"usage":{"total_tokens":7}';
  return `{${`${long},`.repeat(250)}${`${short},`.repeat(500_000)}${short}}`;
})();

/** Servers that check requests with pydantic answer with all of the input that they refuse. */
const ECHO = `{"detail":[{"type":"list_type","input":{${'"a":[{},{}],'.repeat(2_500_000)}"b":1}}]}`;

/** Each character is escaped in the row, which makes it twice as long. */
const SEPARATORS = `{"said":"${"\u2028".repeat(10_000_000)}"}`;

const BODIES: Readonly<Record<string, string>> = {
  much: MUCH_USAGE,
  echo: ECHO,
  separators: SEPARATORS,
};

const line = (customId: string, body: string, url = "/v1/chat/completions") =>
  `{"custom_id":"${customId}","method":"POST","url":"${url}","body":${body}}\n`;

/** Makes as many members as fit into so many bytes; each key is spelled with an escape. */
const escapedKeys = (bytes: number) =>
  `{"model":"alias","messages":[{"content":"hi"}]${',"\\u0061":1'.repeat(bytes / 11)}}`;

async function run(
  { openai, server }: WatchedServer,
  content: string,
  endpoint: OpenAI.BatchCreateParams["endpoint"] = "/v1/chat/completions",
): Promise<OpenAI.Batch> {
  const file = await openai.files.create({
    file: new File([content], "i.jsonl"),
    purpose: "batch",
  });
  const { id } = await createBatch(openai, file.id, { endpoint });
  await server.batchEnded(id);
  return openai.batches.retrieve(id);
}

const post = (url: string, path: string, body: string) =>
  fetch(`${url}${path}`, {
    method: "POST",
    body,
    headers: { "content-type": "application/json" },
  }).then(async (response) => {
    await response.arrayBuffer();
    return response.status;
  });

interface Attack {
  readonly name: string;
  readonly attack: (watched: WatchedServer) => Promise<void>;
}

const ATTACKS: readonly Attack[] = [
  {
    name: "a file of keys that are spelled with escapes",
    attack: async (watched) => {
      const { request_counts } = await run(watched, line("a", escapedKeys(12 * MEBIBYTE)));
      expect(request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
    },
  },
  {
    name: "interactive requests of such keys, side by side",
    attack: async ({ url }) => {
      const body = escapedKeys(12 * MEBIBYTE);
      const requests = [1, 2].map(() => post(url, "/v1/chat/completions", body));
      expect(await Promise.all(requests)).toEqual([200, 200]);
    },
  },
  {
    name: "a body that is nested 8 million levels deep",
    attack: async ({ url }) => {
      const nested = "[".repeat(8_000_000) + "]".repeat(8_000_000);
      const body = `{"model":"alias","messages":${nested}`;
      expect(await post(url, "/v1/chat/completions", body)).toBe(400);
    },
  },
  {
    name: "ten million texts to embed",
    attack: async (watched) => {
      const input = '"",'.repeat(10_000_000);
      const body = `{"model":"m","input":[${input}""]}`;
      const content = line("a", body, "/v1/embeddings");
      const { errors } = await run(watched, content, "/v1/embeddings");
      expect(errors?.data?.[0]?.code).toBe("too_many_inputs");
    },
  },
  {
    name: "a file of five million lines, and one of blank lines",
    attack: async (watched) => {
      const { errors } = await run(watched, "{}\n".repeat(5_000_000));
      expect(errors?.data?.[0]?.code).toBe("too_many_requests");
      const blank = `${line("a", '{"model":"m","messages":[]}')}${"\n \r\n".repeat(10_000_000)}`;
      expect((await run(watched, blank)).request_counts?.completed).toBe(1);
    },
  },
  {
    name: "answers of 60 MB",
    attack: async (watched) => {
      const body = JSON.stringify({ model: "m", messages: [{ content: "[[big 60000000]]" }] });
      const { request_counts } = await run(watched, line("a", body) + line("b", body));
      expect(request_counts?.completed).toBe(2);
    },
  },
  {
    name: "an answer of 30 MB that reports usage all along",
    attack: async (watched) => {
      const body = '{"model":"counted","messages":[],"user":"much"}';
      const { request_counts, usage } = await run(watched, line("a", body));
      expect(request_counts?.completed).toBe(1);
      expect(usage?.total_tokens).toBe(7);
    },
  },
  {
    name: "an answer of 30 MB of line separators",
    attack: async (watched) => {
      const body = '{"model":"counted","messages":[],"user":"separators"}';
      const { output_file_id, request_counts } = await run(watched, line("a", body));
      expect(request_counts?.completed).toBe(1);
      const { bytes } = await watched.openai.files.retrieve(output_file_id ?? "");
      expect(bytes).toBeGreaterThan(60_000_000);
    },
  },
  {
    name: "a refusal of 30 MB that repeats the request",
    attack: async (watched) => {
      const body = '{"model":"counted","messages":[],"user":"echo"}';
      const { request_counts } = await run(watched, line("a", body));
      expect(request_counts?.failed).toBe(1);
    },
  },
  {
    name: "the lines of a batch whose routes alternate, and its end",
    attack: async ({ openai, server }) => {
      const pair = ["m", "counted"].map((model, i) =>
        line(`${i}-#`, `{"model":"${model}","messages":[]}`),
      );
      const content = Array.from({ length: 25_000 }, (_, i) =>
        pair.join("").replaceAll("#", `${i}`),
      );
      const file = await openai.files.create({
        file: new File([content.join("")], "i.jsonl"),
        purpose: "batch",
      });
      const { id } = await createBatch(openai, file.id);
      const status = async () => (await openai.batches.retrieve(id)).status;
      await expect.poll(status).toBe("in_progress");
      await openai.batches.cancel(id);
      await server.batchEnded(id);
      expect(await status()).toBe("cancelled");
    },
  },
  {
    name: "JSON of 1 MB where some fields are expected",
    attack: async ({ url }) => {
      const pairsOf = (count: number) =>
        Array.from({ length: count }, (_, i) => `"key${i}":1`).join(",");
      expect(await post(url, "/v1/batches", `{${pairsOf(70_000)}}`)).toBe(413);
      const pairs = pairsOf(10_000);
      expect(await post(url, "/v1/batches", `{${pairs}}`)).toBe(400);
      expect(await post(url, "/v1/batches", `{"metadata":{${pairs}}}`)).toBe(400);
      const parts = Array.from({ length: 400_000 }, () => "1").join(",");
      expect(await post(url, "/v1/uploads/upload_x/complete", `{"part_ids":[${parts}]}`)).toBe(400);
    },
  },
  {
    name: "pages of batches with the longest metadata, side by side",
    attack: async ({ url }) => {
      const pairs = Array.from({ length: 16 }, (_, i) => ["😀".repeat(60) + i, "😀".repeat(512)]);
      const body = JSON.stringify({
        input_file_id: "file-x",
        endpoint: "/v1/chat/completions",
        metadata: Object.fromEntries(pairs),
      });
      for (let i = 0; i < 60; i++) expect(await post(url, "/v1/batches", body)).toBe(200);
      const page = async () => (await fetch(`${url}/v1/batches?limit=100`)).text();
      const pages = await Promise.all([1, 2, 3, 4, 5].map(page));
      for (const each of pages) expect(JSON.parse(each).has_more).toBe(true);
    },
  },
];

describe("no turn of the event loop is long under", () => {
  let watched: WatchedServer;
  beforeAll(async () => {
    watched = await startWatched(await mkdtemp(join(folder, "data-")), [
      // The second name makes batchd write a model into the bodies that ask for it.
      {
        name: "u",
        base_url: upstream.url,
        models: ["*", { name: "alias", upstream_model: "other" }],
      },
      { name: "c", base_url: counting.url, models: ["counted"] },
    ]);
  });
  afterAll(() => watched[Symbol.asyncDispose]());

  test.each(ATTACKS)("$name", AGAIN, async ({ attack }) => {
    const longestTurnMs = await watched.watch();
    await attack(watched);
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  });
});

test(
  "no turn of the event loop is long under names that a long list of models does not have, or for clients that read the list",
  AGAIN,
  async () => {
    const modelNames = Array.from({ length: 38_000 }, (_, i) => `m-${i}`);
    await using listing = await startUpstream({ modelNames });
    // As many as a project may have that is made at run time.
    const models = [...Array.from({ length: 998 }, (_, i) => `team-*-${i}`), "other-*", "m-*"];
    await using watched = await startWatched(
      await mkdtemp(join(folder, "data-")),
      [{ name: "l", base_url: listing.url, models: ["*"], check_models: true }],
      { projects: [{ name: "default", models }] },
    );
    const lines = Array.from({ length: 1_000 }, (_, i) =>
      line(`${i}`, `{"model":"other-${i}","messages":[]}`),
    );
    const { errors } = await run(watched, lines.join(""));
    expect(errors?.data?.[0]?.code).toBe("model_not_found");
    const lists = Array.from({ length: 10 }, async () => {
      const response = await fetch(`${watched.url}/v1/models`);
      const { data } = (await response.json()) as { data: unknown[] };
      expect(data).toHaveLength(modelNames.length);
    });
    await Promise.all(lists);
    expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

test("lists of models that are nothing but brackets hold up nothing", AGAIN, async () => {
  const depth = 900_000;
  const list = `{"data":[{"id":"m"},${"[".repeat(depth)}${"]".repeat(depth)}]}`;
  const server = createServer((_, answer) => {
    answer.setHeader("content-type", "application/json").end(list);
  });
  const base_url = `http://127.0.0.1:${await listening(server)}/v1`;
  const upstreams = ["a", "b", "c"].map((name) => ({ name, base_url, models: ["*"] }));
  await using watched = await startWatched(await mkdtemp(join(folder, "data-")), upstreams);
  const { data } = await watched.openai.models.list();
  expect(data.map(({ id }) => id)).toEqual(["m"]);
  expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
});
