/** Quotas of what is under way: exact under 200 requests at once, on one server with SQLite and on two with PostgreSQL. */
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import {
  type Answer,
  ask,
  configWith,
  count,
  create,
  LINE,
  PARALLEL,
  post,
  startProjectServers,
  together,
  upload,
} from "../support/projects.ts";
import { chatLine } from "../support/service.ts";

/** The estimate is a token for four bytes of the body. */
const TOKENS_OF_LINE = Math.ceil(JSON.stringify(JSON.parse(LINE).body).length / 4);

const postgres = forAllTests(await sharePostgres("quotas of what is under way"));

const chat = (url: string, key?: string) =>
  post(url, "chat/completions", { model: "test-model", messages: [] }, key);

describe.each([
  ["one server with SQLite", null, true],
  ["two servers with PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  const start = (quotas: object) => startProjectServers(database, configWith({ quotas }));

  test.skipIf(!canRun)(
    "exactly as many interactive requests are under way as the quota says, and more when they have ended",
    async () => {
      await using servers = await start({ interactive_at_once: 8 });
      const { urls, upstream } = servers;
      upstream.hold();
      let refusedCount = 0;
      const allRefused = Promise.withResolvers<void>();
      const answers = together(urls, async (url) => {
        const answer = await chat(url);
        if (answer.status === 429 && ++refusedCount === PARALLEL - 8) allRefused.resolve();
        return answer;
      });
      await Promise.race([allRefused.promise, answers]);
      upstream.release();
      const ended = await answers;
      expect([count(ended, 200), count(ended, 429)]).toEqual([8, PARALLEL - 8]);
      const refused = ended.find(({ status }) => status === 429) as Answer;
      expect(refused.body.error).toMatchObject({ code: "rate_limit_exceeded", type: "requests" });
      expect(refused.body.error?.message).toContain("(interactive_at_once) in project search");
      expect(refused.headers.get("retry-after")).toBe("1");
      // A slot is free a moment after the last byte of the answer.
      for (const url of urls) {
        await expect.poll(async () => (await chat(url)).status).toBe(200);
      }
    },
  );

  test.skipIf(!canRun)(
    "the parts of uploads that are not completed count as stored bytes, exactly",
    async () => {
      await using servers = await start({ stored_bytes: LINE.length + 95 });
      const [url] = servers.urls as [string];
      const file = (await upload(url)).body.id;
      const request = {
        filename: "a.jsonl",
        purpose: "batch",
        bytes: 1_000,
        mime_type: "text/jsonl",
      };
      const { id } = (await post(url, "uploads", request)).body;
      const addPart = (to: string) => {
        const body = new FormData();
        body.set("data", new Blob(["0123456789"]));
        return ask(to, `uploads/${id}/parts`, { method: "POST", body });
      };
      const answers = await together(servers.urls, addPart);
      expect([count(answers, 200), count(answers, 429)]).toEqual([9, PARALLEL - 9]);
      const refused = answers.find(({ status }) => status === 429) as Answer;
      expect(refused.body.error?.message).toContain("the quota stored_bytes of the project search");
      expect((await upload(url)).status).toBe(429);
      await post(url, `uploads/${id}/cancel`, {});
      await ask(url, `files/${file}`, { method: "DELETE" });
      expect((await upload(url)).status).toBe(200);
    },
  );

  test.skipIf(!canRun)(
    "the bytes of a deleted file count for as long as a batch needs them",
    async () => {
      await using servers = await start({ stored_bytes: LINE.length });
      const { urls, services, upstream } = servers;
      const [url] = urls as [string];
      upstream.hold();
      const file = (await upload(url)).body.id as string;
      const batch = (await create(url, file)).body.id as string;
      await upstream.reached(1);
      expect((await ask(url, `files/${file}`, { method: "DELETE" })).status).toBe(200);
      expect((await upload(url)).status).toBe(429);
      upstream.release();
      await Promise.race(
        services.map(({ events }) => events.reached("batch.completed", { batch })),
      );
      await ask(url, `batches/${batch}`, { method: "DELETE" });
      expect((await upload(url)).status).toBe(200);
    },
  );

  test.skipIf(!canRun)(
    "the bytes of deleted results count for as long as a batch is merged with them",
    async () => {
      await using servers = await start({});
      const { urls, services, upstream, places } = servers;
      const [url] = urls as [string];
      const completed = (batch: string) =>
        Promise.race(services.map(({ events }) => events.reached("batch.completed", { batch })));
      const lines = [chatLine("a", "Hello"), chatLine("b", "[[status 400]]")];
      const file = (await upload(url, `${lines.join("\n")}\n`)).body.id as string;
      const source = (await create(url, file)).body.id as string;
      await completed(source);
      upstream.hold();
      const sentBefore = upstream.total;
      const from = { batch: source, lines: "failed", merge: true };
      const request = { endpoint: "/v1/chat/completions", completion_window: "24h" };
      const made = await post(url, "batches", { ...request, x_batchd: { from } });
      const batch = made.body.id as string;
      await upstream.reached(sentBefore + 1);
      await ask(url, `batches/${source}?files=input`, { method: "DELETE" });
      const [input, ...others] = (await ask(url, "files")).body.data as unknown as {
        bytes: number;
      }[];
      expect(others).toEqual([]);
      const quotas = { stored_bytes: (input?.bytes ?? 0) + LINE.length };
      for (const each of services) each.reconfigure({ ...places, ...configWith({ quotas }) });
      expect((await upload(url)).status).toBe(429);
      upstream.release();
      await completed(batch);
      await ask(url, `batches/${batch}?files=input`, { method: "DELETE" });
      expect((await upload(url)).status).toBe(200);
    },
  );

  test.skipIf(!canRun)(
    "exactly as many tokens are enqueued as the quota says, and the other batches fail with OpenAI's words",
    async () => {
      const limit = 5 * TOKENS_OF_LINE + 1;
      await using servers = await start({ enqueued_tokens: limit });
      const { urls, services, upstream } = servers;
      upstream.hold();
      const [url] = urls as [string];
      const file = (await upload(url)).body.id as string;
      const answers = await together(urls, (to) => create(to, file));
      expect(count(answers, 200)).toBe(PARALLEL);
      const ids = answers.map(({ body }) => body.id as string);
      const judged = ids.map((batch) =>
        Promise.race(
          services.flatMap(({ events }) => [
            events.reached("batch.failed", { batch }).then(() => "failed"),
            events.reached("batch.started", { batch }).then(() => "started"),
          ]),
        ),
      );
      const verdicts = await Promise.all(judged);
      expect(verdicts.filter((each) => each === "started")).toHaveLength(5);
      const failed = ids[verdicts.indexOf("failed")];
      const { errors } = (await ask(url, `batches/${failed}`)).body as { errors?: unknown };
      expect(errors).toMatchObject({
        data: [
          {
            code: "token_limit_exceeded",
            message: `Enqueued token limit reached for test-model in project search. Limit: ${limit} enqueued tokens (enqueued_tokens). Please try again once some in_progress batches have been completed.`,
          },
        ],
      });
      upstream.release();
      const started = ids.filter((_, i) => verdicts[i] === "started");
      await Promise.all(
        started.map((batch) =>
          Promise.race(services.map(({ events }) => events.reached("batch.completed", { batch }))),
        ),
      );
      const again = (await create(url, file)).body.id as string;
      await Promise.race(
        services.map(({ events }) => events.reached("batch.completed", { batch: again })),
      );
    },
  );
});
