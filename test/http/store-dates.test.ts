/** What the store ends at a date begins by the clock of the store, whatever the clock of the machine says. A real PostgreSQL. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { createBatch } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { TestRepository } from "../support/git-repository.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { post } from "../support/projects.ts";
import { Scrape } from "../support/prometheus.ts";
import { startReceiver } from "../support/receiver.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";
import { clockAhead } from "../support/wrong-clock.ts";

const postgres = forAllTests(await sharePostgres("the dates of the store"));

const HOUR_MS = 3_600_000;
/** Receivers refuse a signature whose date is further off. */
const TOLERANCE_SECONDS = 300;

/** Returns the date in the database, in seconds. */
async function secondsIn(databaseUrl: string): Promise<number> {
  const [row] = await query(databaseUrl, "select extract(epoch from clock_timestamp()) as now");
  return Number(row?.["now"]);
}

const SKEWS = [
  { name: "behind", skewMs: -48 * HOUR_MS },
  { name: "ahead", skewMs: 48 * HOUR_MS },
];

describe.skipIf(postgres === null)("on a machine whose clock is two days", () => {
  test.each(SKEWS)(
    "$name, a batch has its whole window and its files their whole life",
    async ({ skewMs }) => {
      await using upstream = await startUpstream();
      const database_url = await postgres!.createDatabase();
      await using service = await startTestService({
        clock: clockAhead(() => skewMs),
        config: {
          database_url,
          upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
        },
      });
      const before = await secondsIn(database_url);
      const input = await service.openai.files.create({
        file: new File([`${chatLines(2).join("\n")}\n`], "input.jsonl"),
        purpose: "batch",
        expires_after: { anchor: "created_at", seconds: 7_200 },
      });
      const { id } = await createBatch(service.openai, input.id, {
        output_expires_after: { anchor: "created_at", seconds: 7_200 },
      });
      const batch = await service.ended(id);
      const output = await service.openai.files.retrieve(batch.output_file_id ?? "none");
      const after = await secondsIn(database_url);

      expect(batch.status).toBe("completed");
      for (const [object, seconds] of [
        [input, 7_200],
        [batch, 86_400],
        [output, 7_200],
      ] as const) {
        // The dates are of some seconds ago, and cut to whole seconds.
        expect(object.created_at).toBeGreaterThan(before - 10);
        expect(object.created_at).toBeLessThan(after + 10);
        expect(object.expires_at).toBe(object.created_at + seconds);
      }
    },
  );

  test.each(SKEWS)(
    "$name, or four, an event has the date of the store, and is sent again after a failure",
    async ({ skewMs }) => {
      await using receiver = await startReceiver();
      await using upstream = await startUpstream();
      const database_url = await postgres!.createDatabase();
      await using service = await startTestService({
        // After three days an event is given up.
        clock: clockAhead(() => 2 * skewMs),
        config: {
          database_url,
          upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
          webhooks: {
            endpoints: [{ name: "one", url: receiver.url, secret: "a key of the receiver" }],
            allow_private_hosts: ["127.0.0.1"],
          },
        },
      });
      receiver.reactNext({ status: 500 });
      const { id } = await service.submit(chatLines(1));
      const ends = ["webhook.delivered", "webhook.given_up"];
      await Promise.race(ends.map((end) => service.events.reached(end, { batch: id })));
      const now = await secondsIn(database_url);
      for (const { headers } of receiver.seen) {
        expect(Math.abs(Number(headers["webhook-timestamp"]) - now)).toBeLessThan(
          TOLERANCE_SECONDS,
        );
      }
      expect(receiver.seen).toHaveLength(2);
    },
  );

  test.each(SKEWS)(
    "$name, an answer counts on the day of the store, and tokens_per_day holds",
    async ({ skewMs }) => {
      await using upstream = await startUpstream();
      const database_url = await postgres!.createDatabase();
      await using service = await startTestService({
        clock: clockAhead(() => skewMs),
        config: {
          database_url,
          upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 1 }],
          projects: [{ name: "default", quotas: { tokens_per_day: 1_000 } }],
        },
      });
      // The model server counts words, so a few such lines take all tokens.
      const words = "word ".repeat(100);
      const { id } = await service.submit(chatLines(20, (n) => `${words}${n}`));
      const ends = ["batch.paused", "batch.completed"];
      await Promise.race(ends.map((name) => service.events.reached(name, { batch: id })));

      const day = new Date((await secondsIn(database_url)) * 1_000).toISOString().slice(0, 10);
      const used = await fetch(`${service.url}/v1/usage?group_by=day`);
      const { data } = (await used.json()) as { data: { day: string; requests: number }[] };
      const { request_counts } = await service.openai.batches.retrieve(id);
      expect(request_counts?.completed).toBeLessThan(20);
      expect(data).toMatchObject([{ day, requests: request_counts?.completed }]);
    },
  );

  test.each(SKEWS.map((each) => ({ ...each, skewMs: each.skewMs / 4 })))(
    "$name, or a quarter of that, lines go out in the hours of a schedule by the clock of the store",
    async ({ skewMs }) => {
      await using upstream = await startUpstream();
      const database_url = await postgres!.createDatabase();
      const now = await secondsIn(database_url);
      const hour = (hours: number) =>
        new Date((now + hours * 3_600) * 1_000).toISOString().slice(11, 16);
      await using service = await startTestService({
        clock: clockAhead(() => skewMs),
        config: {
          database_url,
          upstreams: [
            {
              name: "one",
              base_url: upstream.url,
              models: ["*"],
              schedule: { windows: [{ from: hour(-2), to: hour(2) }] },
            },
          ],
        },
      });
      const batch = await service.run(chatLines(3));
      expect(batch.request_counts).toMatchObject({ total: 3, completed: 3 });
    },
  );

  test.each(SKEWS)("$name, a window has the time left that the store says", async ({ skewMs }) => {
    await using upstream = await startUpstream();
    await using service = await startTestService({
      clock: clockAhead(() => skewMs),
      config: {
        database_url: await postgres!.createDatabase(),
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      },
    });
    upstream.hold();
    await service.submit(chatLines(1));
    await upstream.reached(1);
    const scrape = new Scrape(await (await fetch(`${service.url}/metrics`)).text());
    const leftSeconds = scrape.value("batchd_deadline_slack_seconds");
    expect(leftSeconds).toBeGreaterThan(86_400 - 600);
    expect(leftSeconds).toBeLessThanOrEqual(86_400);
    upstream.release();
  });

  test.each(SKEWS)("$name, a commit of results has the date of the store", async ({ skewMs }) => {
    using repository = new TestRepository();
    await using upstream = await startUpstream();
    const database_url = await postgres!.createDatabase();
    await using service = await startTestService({
      clock: clockAhead(() => skewMs),
      config: {
        database_url,
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
        locations: [{ name: "evals", kind: "git", access: "write", repository: repository.path }],
      },
    });
    const { id } = await service.run(chatLines(1));
    const asked = await post(service.url, `batches/${id}/deliveries`, { location: "evals" });
    expect(asked.status).toBe(200);
    await service.events.reached("delivery.delivered", { batch: id });
    const latest = ["log", "--all", "--max-count=1", "--format=%ct", `--grep=${id}`];
    const committedAt = Number(repository.text(...latest));
    expect(Math.abs(committedAt - (await secondsIn(database_url)))).toBeLessThan(60);
  });

  test("ahead, a key is made that ends before the date of the machine", async () => {
    const admin = { name: "operator", key: "key-admin", scopes: ["admin"] };
    await using service = await startTestService({
      clock: clockAhead(() => 48 * HOUR_MS),
      config: { database_url: await postgres!.createDatabase(), auth: { keys: [admin] } },
    });
    const expires_at = Math.floor(Date.now() / 1_000) + 3_600;
    const made = await fetch(`${service.url}/v1/admin/keys`, {
      method: "POST",
      headers: { authorization: "Bearer key-admin" },
      body: JSON.stringify({ name: "brief", project: "search", expires_at }),
    });
    expect(made.status).toBe(200);
    const { key, created_at } = (await made.json()) as { key: string; created_at: number };
    expect(created_at).toBeLessThan(expires_at);
    const headers = { authorization: `Bearer ${key}` };
    expect((await fetch(`${service.url}/v1/files`, { headers })).status).toBe(200);
  });
});

test.skipIf(postgres === null)(
  "result files are no older than the end of the last line, where a clock was just set back",
  async () => {
    await using upstream = await startUpstream();
    let setBackMs = 0;
    await using service = await startTestService({
      clock: { ...systemClock, nowMs: () => systemClock.nowMs() - setBackMs },
      config: {
        database_url: await postgres!.createDatabase(),
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      },
    });
    upstream.hold();
    const { id } = await service.submit(chatLines(2));
    await upstream.reachedLines(2);
    setBackMs = HOUR_MS;
    upstream.release();
    const batch = await service.ended(id);
    const output = await service.openai.files.retrieve(batch.output_file_id ?? "none");
    expect(output.created_at).toBeGreaterThanOrEqual(batch.finalizing_at ?? Number.NaN);
    expect(output.created_at).toBeLessThanOrEqual(batch.completed_at ?? Number.NaN);
  },
);

test.skipIf(postgres === null)(
  "a process that was killed before the clock of the database was set back keeps neither slots nor the housekeeping",
  async () => {
    await using upstream = await startUpstream();
    const database_url = await postgres!.createDatabase();
    const ahead = `(extract(epoch from now()) * 1000)::bigint + ${2 * HOUR_MS}`;
    await using service = await startTestService({
      config: {
        database_url,
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 8 }],
        engine: { stop_grace_seconds: 0 },
      },
    });
    // It was there before the service.
    await query(
      database_url,
      `insert into replicas (sequence, owner, report, may_keep_house, expires_at_ms)
         overriding system value values (0, 'killed', '{}', true, ${ahead});
       insert into slot_shares (owner, target, wanted, held, expires_at_ms)
         values ('killed', 'one', 8, 8, ${ahead})`,
    );
    const { id } = await service.submit(chatLines(8));
    expect((await service.ended(id)).status).toBe("completed");

    upstream.hold();
    const { id: late } = await service.submit(chatLines(8, (n) => `Late ${n}`));
    await upstream.reached(9);
    await query(database_url, `update batches set expires_at_ms = 1 where id = '${late}'`);
    await service.events.reached("batch.window_over", { batch: late });
    upstream.release();
    expect((await service.ended(late)).status).toBe("expired");
  },
);

test.skipIf(postgres === null)(
  "what a process held that was killed before the clock was set back is free after the statements of the guide",
  async () => {
    await using upstream = await startUpstream();
    const database_url = await postgres!.createDatabase();
    await using service = await startTestService({
      config: {
        database_url,
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
        projects: [{ name: "default", quotas: { interactive_at_once: 1 } }],
      },
    });
    const input_file_id = await service.upload(chatLines(3));
    const request = { input_file_id, endpoint: "/v1/chat/completions", completion_window: "24h" };
    upstream.hold();
    const ids: string[] = [];
    for (const dedupe of [false, true]) {
      const made = await post(service.url, "batches", { ...request, x_batchd: { dedupe } });
      ids.push(made.body.id ?? "none");
    }
    await upstream.reached(6);
    const ahead = `(extract(epoch from now()) * 1000)::bigint + ${2 * HOUR_MS}`;
    await query(
      database_url,
      `update batches set lease_owner = 'killed',
         lease_expires_at_ms = coalesce(lease_expires_at_ms, 0) + ${ahead};
       insert into interactive_slots (id, project, expires_at_ms) values ('one', 'default', ${ahead});
       insert into idempotency_keys (project, key, created_at_ms, lease_owner, lease_expires_at_ms)
         values ('default', 'a-key', ${ahead}, 'killed', ${ahead})`,
    );
    upstream.release();

    const guide = readFileSync(new URL("../../docs/operating.md", import.meta.url), "utf8");
    const statements = /was set back\n.*?```sql\n(.*?)```/s.exec(guide)?.[1] ?? "";
    await query(database_url, statements);
    for (const id of ids) expect((await service.ended(id)).status).toBe("completed");
    const again = await fetch(`${service.url}/v1/batches`, {
      method: "POST",
      headers: { "idempotency-key": "a-key" },
      body: JSON.stringify(request),
    });
    expect(again.status).toBe(200);
    const messages = [{ role: "user", content: "Hello" }];
    const chat = await post(service.url, "chat/completions", { model: "any", messages });
    expect(chat.status).toBe(200);
  },
);
