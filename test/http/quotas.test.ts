/** Quotas of projects: exact under 200 requests at once, on one server with SQLite and on two with PostgreSQL. */
import { join } from "node:path";
import Database from "better-sqlite3";
import { describe, expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
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
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const UPLOAD = {
  bytes: LINE.length,
  filename: "a.jsonl",
  mime_type: "application/jsonl",
  purpose: "batch",
};

const postgres = forAllTests(await sharePostgres("quotas on several servers"));

describe.each([
  ["one server with SQLite", null, true],
  ["two servers with PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  const start = (project: object) => startProjectServers(database, configWith(project));

  test.skipIf(!canRun)(
    "exactly as many files are taken as the quota says, and the refusal names it",
    async () => {
      await using servers = await start({ quotas: { files: 25 } });
      const answers = await together(servers.urls, (url) => upload(url));
      expect([count(answers, 200), count(answers, 429)]).toEqual([25, PARALLEL - 25]);
      const refused = answers.find(({ status }) => status === 429);
      expect(refused?.body.error).toEqual({
        message: expect.stringContaining("the quota files of the project search. Limit: 25."),
        type: "insufficient_quota",
        param: null,
        code: "insufficient_quota",
      });
      expect(refused?.headers.get("x-should-retry")).toBe("false");
      expect(refused?.headers.get("retry-after")).toBeNull();
      const url = servers.urls[0] as string;
      expect((await ask(url, "files")).body.data).toHaveLength(25);
      const id = answers.find(({ status }) => status === 200)?.body.id as string;
      await ask(url, `files/${id}`, { method: "DELETE" });
      expect((await upload(url)).status).toBe(200);
      expect((await upload(url)).status).toBe(429);
      expect((await upload(url, LINE, "key-b")).status).toBe(200);
    },
  );

  test.skipIf(!canRun)("no more uploads are pending than files are left", async () => {
    await using servers = await start({ quotas: { files: 25 } });
    const [url] = servers.urls as [string];
    const begin = (at: string, key?: string) => post(at, "uploads", UPLOAD, key);
    for (let i = 0; i < 5; i++) expect((await upload(url)).status).toBe(200);
    const answers = await together(servers.urls, (at) => begin(at));
    expect([count(answers, 200), count(answers, 429)]).toEqual([20, PARALLEL - 20]);
    expect((await begin(url, "key-b")).status).toBe(200);
    const { id } = answers.find(({ status }) => status === 200)?.body ?? {};
    await post(url, `uploads/${id}/cancel`, {});
    expect((await begin(url)).status).toBe(200);
    expect((await begin(url)).status).toBe(429);
  });

  test.skipIf(!canRun)("exactly as many bytes are stored as the quota allows", async () => {
    await using servers = await start({ quotas: { stored_bytes: LINE.length * 10 + 1 } });
    const answers = await together(servers.urls, (url) => upload(url));
    expect([count(answers, 200), count(answers, 429)]).toEqual([10, PARALLEL - 10]);
  });

  test.skipIf(!canRun)(
    "exactly as many requests of a minute are answered as the rate allows",
    async () => {
      await using servers = await start({ quotas: { requests_per_minute: 40 } });
      const answers = await together(servers.urls, (url) => ask(url, "files"));
      const taken = answers.filter(({ status }) => status === 200);
      // The requests may lie in two minutes.
      expect(taken.length).toBeGreaterThanOrEqual(40);
      expect(taken.length).toBeLessThanOrEqual(80);
      const refused = answers.find(({ status }) => status === 429);
      expect(refused?.body.error).toMatchObject({ code: "rate_limit_exceeded", type: "requests" });
      expect(refused?.body.error?.message).toContain("(requests_per_minute) in project search");
      expect(Number(refused?.headers.get("retry-after"))).toBeGreaterThanOrEqual(1);
      expect(refused?.headers.get("x-ratelimit-limit-requests")).toBe("40");
      expect(refused?.headers.get("x-ratelimit-remaining-requests")).toBe("0");
      expect(refused?.headers.get("x-ratelimit-reset-requests")).toMatch(/^\d+s$/);
      expect((await ask(servers.urls[0] as string, "files", {}, "key-b")).status).toBe(200);
    },
  );
});

test("a project that has no request left in a minute is refused without the database until the next one", async () => {
  const clock = new FakeClock();
  const rules = (perMinute: number) => configWith({ quotas: { requests_per_minute: perMinute } });
  await using service = await startTestService({ clock, config: rules(1) });
  const statusOf = async (key?: string) => (await ask(service.url, "files", {}, key)).status;
  expect([await statusOf(), await statusOf()]).toEqual([200, 429]);
  const db = new Database(join(service.dataDir, "batchd.sqlite"));
  db.exec("begin immediate");
  const refused = await ask(service.url, "files");
  db.close();
  expect(refused.status).toBe(429);
  expect(refused.headers.get("x-ratelimit-remaining-requests")).toBe("0");
  expect(await statusOf("key-b")).toBe(200);
  service.reconfigure(rules(2));
  expect([await statusOf(), await statusOf()]).toEqual([200, 429]);
  clock.advance(60_000);
  expect([await statusOf(), await statusOf(), await statusOf()]).toEqual([200, 200, 429]);
});

describe("with an upstream that answers nothing for now", () => {
  const start = async (
    project: object,
  ): Promise<{
    readonly service: TestService;
    readonly upstream: TestUpstream;
    readonly [Symbol.asyncDispose]: () => Promise<void>;
  }> => {
    const upstream = await startUpstream();
    upstream.hold();
    const service = await startTestService({
      upstreamUrl: upstream.url,
      config: {
        ...configWith(project),
        upstreams: [{ name: "only", base_url: upstream.url, models: ["*"] }],
      },
    });
    return {
      service,
      upstream,
      async [Symbol.asyncDispose]() {
        upstream.release();
        await service[Symbol.asyncDispose]();
        await upstream[Symbol.asyncDispose]();
      },
    };
  };

  test("exactly as many batches are open as the quota says, and one more when one has ended", async () => {
    await using held = await start({ quotas: { open_batches: 5 } });
    const { url } = held.service;
    const file = (await upload(url)).body.id as string;
    const answers = await together([url], () => create(url, file));
    expect([count(answers, 200), count(answers, 429)]).toEqual([5, PARALLEL - 5]);
    const refused = answers.find(({ status }) => status === 429);
    expect(refused?.body.error?.message).toContain("the quota open_batches of the project search");
    const id = answers.find(({ status }) => status === 200)?.body.id as string;
    await ask(url, `batches/${id}/cancel`, { method: "POST" });
    held.upstream.release();
    await held.service.events.reached("batch.cancelled", { batch: id });
    expect((await create(url, file)).status).toBe(200);
  });

  test.each([
    ["stored_bytes", LINE.length],
    ["files", 1],
  ])(
    "a project that results have taken beyond its %s creates a batch again when they are deleted",
    async (quota, limit) => {
      await using held = await start({ quotas: { [quota]: limit } });
      const { url, events } = held.service;
      held.upstream.release();
      const file = (await upload(url)).body.id as string;
      const { id } = (await create(url, file)).body;
      await events.reached("batch.completed", { batch: id as string });
      const refused = await create(url, file);
      expect(refused.status).toBe(429);
      expect(refused.body.error).toMatchObject({
        message: expect.stringContaining(
          `the quota ${quota} of the project search. Limit: ${limit}.`,
        ),
        code: "insufficient_quota",
      });
      const { output_file_id } = (await ask(url, `batches/${id}`)).body as {
        output_file_id?: string;
      };
      await ask(url, `files/${output_file_id}`, { method: "DELETE" });
      expect((await create(url, file)).status).toBe(200);
    },
  );

  test("a batch with more lines than the quota leaves fails with OpenAI's words, and the others run", async () => {
    await using held = await start({ quotas: { enqueued_lines: 100 } });
    const { url, events } = held.service;
    const content = `${chatLines(60).join("\n")}\n`;
    const file = (await upload(url, content)).body.id as string;
    const [first, second] = await Promise.all([create(url, file), create(url, file)]);
    const ids = [first, second].map(({ body }) => body.id as string);
    await Promise.race(ids.map((batch) => events.reached("batch.failed", { batch })));
    const seen = await Promise.all(
      ids.map(async (id) => (await ask(url, `batches/${id}`)).body as Record<string, unknown>),
    );
    const failed = seen.filter(({ status }) => status === "failed");
    expect(failed).toHaveLength(1);
    expect(failed[0]?.["errors"]).toEqual({
      object: "list",
      data: [
        {
          code: "token_limit_exceeded",
          message:
            "Enqueued line limit reached for test-model in project search. Limit: 100 enqueued lines (enqueued_lines). Please try again once some in_progress batches have been completed.",
          param: null,
          line: null,
        },
      ],
    });
    held.upstream.release();
    const other = ids.find((id) => id !== failed[0]?.["id"]) as string;
    await events.reached("batch.completed", { batch: other });
    const again = (await create(url, file)).body.id as string;
    await events.reached("batch.completed", { batch: again });
  });

  test("models that a project may not use do not exist for it", async () => {
    await using held = await start({ models: ["llama-3*", "test-model-x"] });
    const { url, events } = held.service;
    held.upstream.release();
    const body = (model: string) => JSON.stringify({ model, messages: [] });
    const chat = (model: string, key?: string) =>
      ask(url, "chat/completions", { method: "POST", body: body(model) }, key);
    const refused = await chat("test-model");
    expect(refused.status).toBe(403);
    expect(refused.body.error).toEqual({
      message: "Project `search` does not have access to model `test-model`",
      type: "invalid_request_error",
      param: null,
      code: "model_not_found",
    });
    expect((await chat("llama-3-8b")).status).toBe(200);
    expect((await chat("test-model", "key-b")).status).toBe(200);
    const file = (await upload(url)).body.id as string;
    const batch = (await create(url, file)).body.id as string;
    await events.reached("batch.failed", { batch });
    const { errors } = (await ask(url, `batches/${batch}`)).body as { errors?: { data: object[] } };
    expect(errors?.data).toMatchObject([{ code: "model_not_found", line: 1 }]);
  });

  test("the retention of a project bounds files and results, whatever a client asks for", async () => {
    await using held = await start({ files_expire_after: "2d", results_expire_after: "1h" });
    const { url, events } = held.service;
    held.upstream.release();
    type Times = { created_at: number; expires_at: number; output_file_id: string };
    const lifetime = ({ body }: Answer) => {
      const { created_at, expires_at } = body as unknown as Times;
      return expires_at - created_at;
    };
    const file = await upload(url);
    expect(lifetime(file)).toBe(2 * 86_400);
    expect(lifetime(await upload(url, LINE, "key-b"))).toBe(30 * 86_400);
    const batch = (await create(url, file.body.id as string)).body.id as string;
    await events.reached("batch.completed", { batch });
    const ended = (await ask(url, `batches/${batch}`)).body as unknown as Times;
    expect(lifetime(await ask(url, `files/${ended.output_file_id}`))).toBe(3_600);
  });
});
