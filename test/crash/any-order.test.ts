/**
 * Batches are uploaded, retried, merged, sampled, deduplicated, paused, resumed, cancelled, bounded and deleted in the order of
 * a seed, while prices change and servers are killed again and again, also before they have answered, so that clients ask again.
 * The disk of the data may be full meanwhile.
 * `BATCHD_ORDER_SEED=8 BATCHD_ORDER_STEPS=150` runs another order, or a longer one.
 */
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { pathsBelow } from "../support/files-below.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { hasS3Server, newPrefix, startS3Server } from "../support/s3-server.ts";
import type { ResultRow } from "../support/service.ts";
import { Ballast, mountSmallDisk } from "../support/small-disk.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";
import { AnyOrder, FINAL, type Known, type Line, requestsOf, type Shown } from "./any-order.ts";

const seed = Number(process.env["BATCHD_ORDER_SEED"] ?? 7);
const askedSteps = process.env["BATCHD_ORDER_STEPS"];

type Lines = ReadonlyMap<number, Line>;

/** An ended batch. */
interface Ended {
  readonly shown: Shown;
  readonly output: readonly ResultRow[];
  readonly errors: readonly ResultRow[];
  /** The lines that it ran itself, by their numbers in its results. */
  readonly own: Lines;
  /** All lines of its results. */
  readonly all: Lines;
}

const numberOf = ({ id }: ResultRow) => Number.parseInt(id.slice("batch_req_".length, 18), 16);
const wasNotRun = ({ error }: ResultRow) =>
  ["batch_cancelled", "batch_expired"].includes(error?.code ?? "");
const tokensOf = (row: ResultRow) =>
  (row.response!.body["usage"] as { total_tokens: number }).total_tokens;

/** Finds the lines that a batch has to run, and those of its results. */
function linesOf({ from, lines }: Known, ended: ReadonlyMap<Known, Ended>) {
  if (from === null) return { own: lines, all: lines };
  const source = ended.get(from.source)!;
  const { output, errors } = source;
  const hasResults = output.length + errors.length > 0;
  // When no line ran, all count as failed.
  const failed = new Set(hasResults ? errors.map(numberOf) : source.own.keys());
  const isChosen = (number: number) =>
    from.lines === "all" || failed.has(number) === (from.lines === "failed");
  const chosen = [...(hasResults ? source.all : source.own)].filter(([n]) => isChosen(n));
  const isPassedOn = from.source.from?.merge === true && from.source.from.lines === from.lines;
  if (from.merge && (hasResults || isPassedOn)) return { own: new Map(chosen), all: source.all };
  const own = new Map(chosen.map(([, line], i) => [i + 1, line]));
  return { own, all: own };
}

const paidFor = ({ x_batchd }: Shown) => requestsOf(x_batchd.cost?.so_far ?? "0");

function expectRows({ output, errors, all }: Ended, about: string): void {
  for (const file of [output, errors]) {
    const numbers = file.map(numberOf);
    expect(numbers, about).toEqual(numbers.toSorted((a, b) => a - b));
  }
  const rows = [...output, ...errors].toSorted((a, b) => numberOf(a) - numberOf(b));
  expect(rows.map(numberOf), about).toEqual([...all.keys()]);
  const ids = [...all.values()].map(({ customId }) => customId);
  expect(
    rows.map((row) => row.custom_id),
    about,
  ).toEqual(ids);
  for (const row of output) {
    const [question] = all.get(numberOf(row))!.question.split(".");
    expect(JSON.stringify(row.response?.body).includes(`${question}.`), about).toBe(true);
  }
}

function expectSums({ shown, output, errors, own }: Ended, about: string): number {
  const isOwn = (row: ResultRow) => own.has(numberOf(row));
  const [completed, failed] = [output.filter(isOwn), errors.filter(isOwn)];
  const counted = failed.filter((row) => !wasNotRun(row)).length;
  const { status, request_counts, usage, x_batchd } = shown;
  const counts = { total: own.size, completed: completed.length, failed: counted };
  expect(request_counts, about).toEqual(counts);
  if (status === "completed") expect(counted, about).toBe(failed.length);
  const grouped = x_batchd.failures.reduce((sum, { lines }) => sum + lines, 0);
  expect(grouped, about).toBe(counted);
  const paid = new Map<string, ResultRow>();
  for (const row of completed) {
    const { question, customId } = own.get(numberOf(row))!;
    paid.set(x_batchd.deduplicated === null ? customId : question, row);
  }
  const tokens = [...paid.values()].reduce((sum, row) => sum + tokensOf(row), 0);
  expect(usage.total_tokens, about).toBe(tokens);
  expect(paidFor(shown), about).toBe(paid.size);
  return paid.size;
}

async function check(known: Known, world: AnyOrder, before: ReadonlyMap<Known, Ended>) {
  const shown = await world.look(known);
  const output = await world.rows(shown.output_file_id);
  const errors = await world.rows(shown.error_file_id);
  const ended: Ended = { shown, output, errors, ...linesOf(known, before) };
  const about = `${JSON.stringify(shown)}\n${world.about(known)}`;
  if (shown.status === "failed") {
    const code = shown.errors?.data[0]?.code;
    const isGone = known.isInputDeleted && code === "invalid_request";
    expect(isGone || (known.from !== null && code === "source_unusable"), about).toBe(true);
  } else if (shown.request_counts.total === 0) {
    expect(["cancelled", "expired"], about).toContain(shown.status);
    expect([output, errors], about).toEqual([[], []]);
  } else {
    expectRows(ended, about);
    const cost = expectSums(ended, about);
    expect(cost, about).toBeLessThanOrEqual(known.highestBudget ?? Number.POSITIVE_INFINITY);
  }
  return ended;
}

const TABLES_OF_BATCHES = [
  ...(["batches", "batch_progress", "batch_runs", "chunks", "segments", "reservations"] as const),
  ...(["files", "stored_sums", "blob_intents"] as const),
];

/** Deletes all batches, and expects the server that starts next to remove what they and the killed servers have left. */
async function expectNothingLeft(world: AnyOrder, dataDir: string): Promise<void> {
  await world.deleteAll();
  await world.end();
  const database = new Database(join(dataDir, "batchd.sqlite"));
  // A killed server counts as gone after five minutes.
  database.exec("update blob_intents set expires_at_ms = 0");
  await world.start();
  const left = () => [
    ...TABLES_OF_BATCHES.filter((name) => database.prepare(`select 1 from ${name}`).get()),
    ...pathsBelow(join(dataDir, "blobs")),
  ];
  await expect.poll(left).toEqual([]);
  database.close();
  await world.end();
}

const postgres = forAllTests(await sharePostgres("any order on two servers"));
const s3 = forAllTests(postgres !== null && hasS3Server() ? await startS3Server() : null);

const ON_ONE_MACHINE = { serverCount: 1, steps: 30, open: async () => ({}) };
const ON_TWO = {
  serverCount: 2,
  // What a killed server had waits for its lease to end.
  steps: 12,
  open: async () => ({
    database_url: await postgres!.createDatabase(),
    storage: s3!.storage({ prefix: newPrefix() }),
  }),
};

const disk = forAllTests(temporaryFolder("batchd-any-order-disk-")).path;
const smallDisk = forAllTests(mountSmallDisk(disk, 8 * 1024 * 1024));

const ON_A_SMALL_DISK = {
  serverCount: 1,
  steps: 12,
  open: async () => ({ data_dir: join(disk, "data") }),
  ballast: new Ballast(disk),
};

/** Returns the way to end the window of a batch. */
function windowsOf(places: Readonly<Record<string, unknown>>, dataDir: string) {
  const url = places["database_url"];
  return async ({ id }: Pick<Known, "id">) => {
    const statement = `update batches set expires_at_ms = created_at_ms where id = '${id}'`;
    if (url !== undefined) await query(String(url), statement);
    else {
      const database = new Database(join(dataDir, "batchd.sqlite"));
      database.exec(statement);
      database.close();
    }
  };
}

interface Order {
  readonly serverCount: number;
  readonly steps: number;
  readonly open: () => Promise<Readonly<Record<string, unknown>>>;
  readonly ballast?: Ballast;
}

async function runInAnyOrder({ serverCount, steps, open, ballast }: Order) {
  using folder = temporaryFolder("batchd-any-order-");
  await using upstream = await startUpstream();
  const places = await open();
  const ended = new Map<Known, Ended>();
  const remember = async (known: Known) => {
    const source = known.from?.source;
    if (ended.has(known) || (source !== undefined && !ended.has(source))) return ended.has(known);
    if (FINAL.includes((await world.look(known)).status)) {
      ended.set(known, await check(known, world, ended));
    }
    return ended.has(known);
  };
  const parts = { seed, folder: folder.path, upstream, remember, serverCount, places };
  const dataDir = String(places["data_dir"] ?? join(folder.path, "data"));
  const endWindow = windowsOf(places, dataDir);
  const world = new AnyOrder({
    ...parts,
    ...(ballast === undefined ? { endWindow } : { ballast }),
  });
  await world.start();
  for (let step = 0; step < Number(askedSteps ?? steps); step++) await world.step();
  await world.finish();
  for (const known of world.batches) expect(await remember(known), world.about(known)).toBe(true);
  const paid = [...ended.values()].reduce((sum, { shown }) => sum + paidFor(shown), 0);
  expect(requestsOf(await world.cost())).toBe(paid);
  if (serverCount === 1) await expectNothingLeft(world, dataDir);
  else await world.end();
}

test.for([ON_ONE_MACHINE, ...(s3 === null ? [] : [ON_TWO])])(
  "whatever is done to batches, and whenever one of $serverCount servers is killed, each line has one row, all sums are those of the rows, and nothing is left of what is deleted",
  runInAnyOrder,
);

test.skipIf(smallDisk === null)(
  "on a disk that is full again and again, each line has one row, all sums are those of the rows, and nothing is left of what is deleted",
  () => runInAnyOrder(ON_A_SMALL_DISK),
);
