/** `kill -9` at random moments of what a client does with a running batch: each has happened as a whole, or not at all. */
import { randomUUID } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import type OpenAI from "openai";
import { describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { endJournals, endLeases } from "../support/end-leases.ts";
import { pathsBelow } from "../support/files-below.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { type Served, serve } from "../support/serve.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const LINES = 160;

const postgres = forAllTests(await sharePostgres("control on PostgreSQL"));
const s3 = forAllTests(postgres !== null && hasS3Server() ? await startS3Server() : null);

interface Place extends Disposable {
  readonly configPath: string;
  /** It is null for SQLite. */
  readonly databaseUrl: string | null;
  readonly dataDir: string;
  readonly blobsDir: string;
}

/** The model of the batches that are deleted, at an upstream of its own, as those that stay take all slots of theirs. */
const DELETED = "deleted-model";

/** Makes a place for a server, with its configuration. */
async function makePlace(
  isShared: boolean,
  { upstream, ofDeleted = upstream }: { upstream: TestUpstream; ofDeleted?: TestUpstream },
): Promise<Place> {
  const folder = temporaryFolder("batchd-control-");
  const dataDir = join(folder.path, "data");
  const databaseUrl = isShared ? await postgres!.createDatabase() : null;
  const prefix = `control-${randomUUID()}/`;
  const bucket = isShared ? s3 : null;
  const config = {
    server: { port: 0 },
    data_dir: dataDir,
    upstreams: [
      { name: "only", base_url: upstream.url, models: ["test-model"], max_concurrency: 64 },
      { name: "deleted", base_url: ofDeleted.url, models: [DELETED], max_concurrency: 64 },
    ],
    // The lines of a deleted batch give their slots back soon.
    engine: { stop_grace_seconds: 1 },
    prices: [{ model: "*", per_request: "0.0025", currency: "EUR" }],
    ...(databaseUrl !== null && { database_url: databaseUrl }),
    ...(bucket !== null && { storage: bucket.storage({ prefix }) }),
  };
  const configPath = join(folder.path, "batchd.yaml");
  writeFileSync(configPath, JSON.stringify(config));
  const blobsDir = bucket === null ? join(dataDir, "blobs") : join(bucket.bucketFolder, prefix);
  return {
    configPath,
    databaseUrl,
    dataDir,
    blobsDir,
    [Symbol.dispose]: () => folder[Symbol.dispose](),
  };
}

/** Ends what a killed server held: its leases, and the right to name the blobs that it was writing. */
async function endAll(databaseUrl: string): Promise<void> {
  await endLeases(databaseUrl);
  await query(databaseUrl, "update blob_intents set expires_at_ms = 0");
}

const started = new WeakSet<Place>();

/** Starts a server; what a killed one held is over. */
async function start(place: Place) {
  const { configPath, databaseUrl } = place;
  if (databaseUrl !== null && started.has(place)) await endAll(databaseUrl);
  started.add(place);
  return serve(["--config", configPath]);
}

async function upload({ openai }: Served, content: string): Promise<string> {
  const file = new File([content], "input.jsonl");
  return (await openai.files.create({ file, purpose: "batch" })).id;
}

const LINES_TEXT = `${chatLines(LINES, (n) => `Say ${n}`).join("\n")}\n`;
const ALL_IDS = Array.from({ length: LINES }, (_, i) => `line-${i + 1}`);

async function submit(
  running: Served,
  { text = LINES_TEXT, x_batchd = {} }: { text?: string; x_batchd?: object } = {},
): Promise<string> {
  return create(running, { input_file_id: await upload(running, text), x_batchd });
}

type Controlled = OpenAI.Batch & Pick<BatchObject, "x_batchd">;

const read = async ({ openai }: Served, id: string) =>
  (await openai.batches.retrieve(id)) as unknown as Controlled;

/** Resolves to null when the server has not answered. */
async function statusOf(answer: Promise<Response>): Promise<number | null> {
  return answer.then(
    ({ status }) => status,
    () => null,
  );
}

const post = ({ url }: Served, path: string, body?: object) =>
  fetch(`${url}/v1/batches/${path}`, {
    method: "POST",
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });

const remove = ({ url }: Served, id: string) =>
  fetch(`${url}/v1/batches/${id}?files=input`, { method: "DELETE" });

/** Resolves after a moment: a kill then comes before, during or after the commits of what has been asked for. */
const aMoment = () => new Promise((resolve) => setTimeout(resolve, Math.random() * 20));

/** Counts the blobs. A server marks its prefix of a bucket with `.ping`, which is none. */
const blobsIn = ({ blobsDir }: Place): number =>
  pathsBelow(blobsDir).filter((path) => path !== ".ping").length;

/** Counts what the place has of any batch or file. */
async function leftIn(place: Place): Promise<number> {
  const tables = ["batches", "chunks", "segments", "files", "reservations", "deliveries"];
  let rowCount = 0;
  const counting = `select ${tables.map((table) => `(select count(*) from ${table})`).join(" + ")} as count`;
  if (place.databaseUrl === null) {
    const db = new Database(join(place.dataDir, "batchd.sqlite"), { readonly: true });
    rowCount = (db.prepare(counting).get() as { count: number }).count;
    db.close();
  } else {
    const [row] = await query(place.databaseUrl, counting);
    rowCount = Number(row?.["count"]);
  }
  return rowCount + blobsIn(place);
}

async function create({ url }: Served, body: object) {
  const response = await fetch(`${url}/v1/batches`, {
    method: "POST",
    body: JSON.stringify({
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      ...body,
    }),
  });
  return ((await response.json()) as { id: string }).id;
}

const listedIds = async ({ openai }: Served) =>
  (await openai.batches.list()).data.map((batch) => batch.id);

/** Returns the ids of the lines in a file. */
async function idsIn({ openai }: Served, fileId: string | null | undefined): Promise<string[]> {
  const text = await (await openai.files.content(fileId!)).text();
  return text
    .split("\n")
    .slice(0, -1)
    .map((row) => JSON.parse(row).custom_id as string);
}

async function expectWhole(running: Served, id: string): Promise<void> {
  const { request_counts, output_file_id } = await read(running, id);
  expect(request_counts).toEqual({ total: LINES, completed: LINES, failed: 0 });
  expect(await idsIn(running, output_file_id)).toEqual(ALL_IDS);
}

const pauseOf = async (running: Served, id: string) => (await read(running, id)).x_batchd.paused;

describe.each([
  // A start on PostgreSQL takes longer, so there are fewer kills.
  ["SQLite and a folder", false, true, 4],
  ["PostgreSQL and a bucket, where there is one", true, postgres !== null, 2],
] as const)("on %s", (_, isShared, canRun, KILLS) => {
  test.skipIf(!canRun)(
    "killed while batches are paused, resumed, deleted and given another budget, a server has each change as a whole or not at all",
    async () => {
      await using upstream = await startUpstream();
      await using ofDeleted = await startUpstream();
      using place = await makePlace(isShared, { upstream, ofDeleted });
      let running = await start(place);
      // No batch ends before the last kill.
      upstream.hold();
      ofDeleted.hold();
      const paused = await submit(running);
      let budget: string | null = "0.3";
      const limited = await submit(running, { x_batchd: { budget } });
      await upstream.reached(1);
      for (let n = 1; n <= KILLS; n++) {
        const deleted = await submit(running, {
          text: LINES_TEXT.replaceAll("test-model", DELETED),
        });
        await ofDeleted.reached(ofDeleted.total + 1);
        const action = n % 2 === 1 ? "pause" : "resume";
        const next = `0.${n}`;
        const answers = [
          statusOf(post(running, `${paused}/${action}`)),
          statusOf(remove(running, deleted)),
          statusOf(post(running, limited, { budget: next })),
        ];
        await aMoment();
        await running.server.kill();
        const [onPause, onDelete, onBudget] = await Promise.all(answers);
        running = await start(place);

        if (onPause === 200)
          expect((await pauseOf(running, paused)) !== null).toBe(action === "pause");
        const listed = await listedIds(running);
        if (onDelete === 200) expect(listed).not.toContain(deleted);
        expect((await running.openai.files.list()).data).toHaveLength(listed.length);
        if (listed.includes(deleted)) expect((await remove(running, deleted)).status).toBe(200);
        const shown = (await read(running, limited)).x_batchd.budget;
        expect(onBudget === 200 ? [next] : [budget, next]).toContain(shown);
        budget = shown;
      }
      expect((await post(running, `${paused}/pause`)).status).toBe(200);
      expect((await post(running, limited, { budget: "0.25" })).status).toBe(200);
      ofDeleted.release();
      upstream.release();
      await expect.poll(() => pauseOf(running, limited)).toMatchObject({ reason: "budget" });
      expect((await read(running, limited)).x_batchd.cost?.so_far).toBe("0.25");
      // What is in flight ends.
      await running.server.kill("SIGTERM");
      const sent = upstream.total;
      running = await start(place);
      // A whole batch goes through meanwhile.
      const other = await submit(running);
      await running.server.batchEnded(other);
      expect(upstream.total).toBe(sent + LINES);

      const resumed = await post(running, `${paused}/resume`);
      expect([resumed.status, await resumed.text()]).toEqual([200, expect.anything()]);
      await running.server.batchEnded(paused);
      await expectWhole(running, paused);

      for (const id of [paused, limited, other]) {
        expect((await remove(running, id)).status).toBe(200);
      }
      // The sweep looks at its start, and at each deletion.
      await running.server.kill();
      running = await start(place);
      await expect.poll(() => leftIn(place)).toBe(0);
      await running.server.kill("SIGTERM");
    },
  );

  test.skipIf(!canRun)(
    "killed while a sample runs and lines of another batch are run again, a server pauses the one after its sample and has made the other with its whole input or not at all",
    async () => {
      await using upstream = await startUpstream();
      using place = await makePlace(isShared, { upstream });
      let running = await start(place);
      const id = await submit(running);
      await running.server.batchEnded(id);
      const slow = `${chatLines(LINES, (n) => `Say ${n} [[delay 5]]`).join("\n")}\n`;
      const sampled = await submit(running, { text: slow, x_batchd: { sample: 40 } });
      const from = { batch: id, lines: "all", merge: true };
      for (let n = 0; n < KILLS / 2; n++) {
        const answered = create(running, { x_batchd: { from } }).catch(() => null);
        await aMoment();
        await running.server.kill();
        const made = await answered;
        running = await start(place);
        if (made !== null) expect(await listedIds(running)).toContain(made);
      }
      await expect.poll(() => pauseOf(running, sampled)).toMatchObject({ reason: "sample" });
      expect((await read(running, sampled)).request_counts).toMatchObject({ completed: 40 });
      expect((await post(running, `${sampled}/resume`)).status).toBe(200);
      for (const each of await listedIds(running)) {
        // One that has ended before a kill does so in no later log.
        await expect.poll(async () => (await read(running, each)).status).toBe("completed");
        const { input_file_id } = await read(running, each);
        expect(await idsIn(running, input_file_id)).toEqual(ALL_IDS);
        await expectWhole(running, each);
      }
      const fileCount = (await running.openai.files.list({ limit: 100 })).data.length;
      await running.server.kill();
      if (place.databaseUrl !== null) await endJournals(place.databaseUrl);
      running = await start(place);
      // A blob without a file is swept.
      await expect.poll(() => blobsIn(place)).toBe(fileCount);
      await running.server.kill("SIGTERM");
    },
  );
});
