/** API servers and workers on one PostgreSQL: the roles, the death of a worker, and the return of one that was stopped. */
import { describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { submitLines } from "../support/batches.ts";
import { endJournals } from "../support/end-leases.ts";
import {
  answeredLines,
  completed,
  eventually,
  expectEveryLineOnce,
  Fleet,
  type Member,
  submit,
  type Worker,
} from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { Scrape } from "../support/prometheus.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, newPrefix, startS3Server } from "../support/s3-server.ts";
import { chatLine, chatLines } from "../support/service.ts";

/** They are two chunks, of which each worker takes one. */
const LINES = 700;
/** The lines that a worker gets answers for before it is disturbed. */
const ANSWERED = 100;

const postgres = forAllTests(await sharePostgres("the fleet on PostgreSQL"));
const s3 = forAllTests(postgres !== null && hasS3Server() ? await startS3Server() : null);

/**
 * Creates a batch, and resolves once each worker has got answers for some of its lines and holds others. None of them
 * takes all lines before the others have their part of the slots.
 */
async function submitHeld(api: Member, workers: readonly Worker[]): Promise<string> {
  for (const { upstream } of workers) upstream.holdAfter(ANSWERED);
  const id = await submit(api, LINES);
  await Promise.all(workers.map(({ upstream }) => upstream.reachedLines(ANSWERED + 1)));
  return id;
}

const metric = async ({ url }: Member, name: string, labels: Record<string, string>) =>
  new Scrape(await (await fetch(`${url}/metrics`)).text()).value(name, labels);

async function rowsOf(databaseUrl: string, id: string): Promise<unknown> {
  return {
    batches: await query(databaseUrl, "select * from batches where id = $1", [id]),
    files: await query(databaseUrl, "select * from files order by sequence"),
    segments: await query(databaseUrl, "select * from segments"),
  };
}

const PLACES: [string, () => Record<string, unknown> | undefined][] = [
  ["a shared folder", () => undefined],
  ...(s3 === null
    ? []
    : ([["a bucket", () => s3.storage({ prefix: `fleet-${Date.now()}/` })]] as typeof PLACES)),
];

describe.skipIf(postgres === null)("a fleet", () => {
  test.each(PLACES)(
    "on %s works on one batch with all workers, and goes on when one of them is killed",
    async (_name, storage) => {
      const place = storage();
      const databaseUrl = await postgres!.createDatabase();
      await using fleet = new Fleet({ databaseUrl, ...(place && { storage: place }) });
      const [first, second] = await Promise.all([fleet.api(), fleet.api()]);
      const [killed, other] = await Promise.all([fleet.worker(), fleet.worker()]);
      const id = await submitHeld(first, [killed, other]);
      await killed.batchd.kill();
      other.upstream.release();
      await completed(second, id);
      await expectEveryLineOnce(first, id, LINES);
    },
  );

  test("is not changed by a worker that was stopped beyond its lease and wakes up", async () => {
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl });
    const api = await fleet.api();
    const [zombie, other] = await Promise.all([fleet.worker(), fleet.worker()]);
    const id = await submitHeld(api, [zombie, other]);
    zombie.batchd.signal("SIGSTOP");
    other.upstream.release();
    await expectEveryLineOnce(api, id, LINES);
    // The sweep forgets the segments of the batch, so that later ones would show.
    await endJournals(databaseUrl);
    await eventually("the segments of the batch", async () => {
      return ((await rowsOf(databaseUrl, id)) as { segments: unknown[] }).segments;
    }).toEqual([]);
    const before = await rowsOf(databaseUrl, id);

    zombie.upstream.release();
    zombie.batchd.signal("SIGCONT");
    const lost = () =>
      metric(zombie, "batchd_lease_changes_total", { kind: "chunk", change: "lost" });
    await eventually("the lost chunks of the worker", lost).toBeGreaterThan(0);
    expect(await rowsOf(databaseUrl, id)).toEqual(before);
    await expectEveryLineOnce(api, id, LINES);

    // It is a worker like any other again.
    await other.batchd.kill();
    const next = await submit(api, LINES);
    await expectEveryLineOnce(api, next, LINES);
  });

  test.skipIf(s3 === null)(
    "says that answers cannot be written while one of its workers alone has lost the bucket",
    async () => {
      await using proxy = await startS3Proxy(s3!.url);
      // biome-ignore lint/suspicious/noTemplateCurlyInString: batchd puts the variable in
      const storage = s3!.storage({ prefix: newPrefix(), endpoint: "${BUCKET_URL}" });
      const databaseUrl = await postgres!.createDatabase();
      await using fleet = new Fleet({ databaseUrl, storage });
      const direct = { env: { BUCKET_URL: s3!.url } };
      const api = await fleet.api(direct);
      const lonely = await fleet.worker({
        env: { BUCKET_URL: proxy.url },
        fields: { models: ["test-model"] },
      });
      lonely.upstream.hold();
      const id = await submit(api, LINES / 7);
      await lonely.upstream.reached(1);
      await fleet.worker(direct);
      // No other worker takes these lines, so all know of it when they have ended.
      const others = chatLines(3).map((line) => line.replace("test-model", "other"));
      await completed(api, (await submitLines(api.openai, others)).id);
      proxy.trouble = { kind: "reset" };
      lonely.upstream.release();
      await eventually("why it waits", async () => {
        const batch: object = await api.openai.batches.retrieve(id);
        return (batch as BatchObject).x_batchd.waiting?.reason;
      }).toBe("journal_not_writable");
      proxy.trouble = null;
      await expectEveryLineOnce(api, id, LINES / 7);
    },
  );

  test("honours one Idempotency-Key at all its API servers", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const [first, second] = await Promise.all([fleet.api(), fleet.api()]);
    const content = chatLine("line-1", "Say 1");
    const file = new File([content], "input.jsonl");
    const input = await first.openai.files.create({ file, purpose: "batch" });
    const create = ({ url }: Member, key: string) =>
      fetch(`${url}/v1/batches`, {
        method: "POST",
        headers: { "content-type": "application/json", "idempotency-key": key },
        body: JSON.stringify({
          input_file_id: input.id,
          endpoint: "/v1/chat/completions",
          completion_window: "24h",
        }),
      });
    const made = await create(first, "one after the other");
    const again = await create(second, "one after the other");
    expect([made.status, again.status]).toEqual([200, 200]);
    expect(again.headers.get("idempotent-replayed")).toBe("true");
    expect(await again.text()).toBe(await made.text());

    // At once: each is answered with the one batch, or told to wait for it.
    const members = Array.from({ length: 10 }, (_, i) => (i % 2 === 0 ? first : second));
    const answers = await Promise.all(members.map((member) => create(member, "at once")));
    const statuses = new Set(answers.map(({ status }) => status));
    expect([...statuses].filter((status) => status !== 200 && status !== 409)).toEqual([]);
    const { data } = await second.openai.batches.list();
    expect(data).toHaveLength(2);
  });

  test("has workers that serve health and metrics only, and API servers that need no upstream", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const config = { server: { host: "0.0.0.0", port: 0 } };
    const [api, worker] = await Promise.all([fleet.api(), fleet.worker({ config })]);
    for (const path of ["/health", "/ready", "/metrics"]) {
      expect((await fetch(worker.url + path)).status, path).toBe(200);
      expect((await fetch(api.url + path)).status, path).toBe(200);
    }
    for (const path of [
      "/v1/batches",
      "/v1/files",
      "/v1/models",
      "/docs",
      "/v1/chat/completions",
    ]) {
      const answer = await fetch(worker.url + path);
      expect([answer.status, await answer.text()], path).toEqual([
        404,
        expect.stringContaining("This is a worker"),
      ]);
    }
    const id = await submit(api, 3);
    await completed(api, id);
    expect(await answeredLines(api, id)).toEqual([1, 2, 3]);
    api.batchd.signal("SIGHUP");
    await api.batchd.logged("config.reloaded");
    const { stderr } = await api.batchd.kill("SIGTERM");
    expect(stderr).not.toContain("no upstream is configured");
    expect((await worker.batchd.kill("SIGTERM")).stderr).not.toContain("no keys are configured");
  });
});
