/**
 * `kill -9` at several moments of one batch. The upstream lives on and counts; between a kill and the next
 * start it holds its answers, so that what the journal holds can be read before anything is added.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type OpenAI from "openai";
import { expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { submitLines } from "../support/batches.ts";
import { endLeases } from "../support/end-leases.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { mixedLines } from "../support/mixed-lines.ts";
import { sharePostgres } from "../support/postgres.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { type Served, serve } from "../support/serve.ts";
import { numbersOf, type ResultRow, rowsIn } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

/** They are three chunks. */
const LINES = 1_100;
const { lines, answered, refused } = mixedLines(LINES);

/** How far the batch has come when it is killed for the `n`th time: at once, at moments between, near and at the end. */
function killAt(n: number, kills: number): number {
  if (n === 0) return 0;
  if (n === kills - 1) return LINES;
  const share = LINES / kills;
  return Math.floor(n * share + Math.random() * share);
}

const postgres = forAllTests(await sharePostgres("kills on PostgreSQL and a bucket"));
const s3 = forAllTests(postgres !== null && hasS3Server() ? await startS3Server() : null);

interface Places {
  /** It is null for SQLite. */
  readonly databaseUrl: string | null;
  /** It is undefined for a folder. */
  readonly storage: Record<string, unknown> | undefined;
}

const PLACES: [string, number, () => Promise<Places>][] = [
  ["SQLite and a folder", 5, async () => ({ databaseUrl: null, storage: undefined })],
  ...(postgres === null || s3 === null
    ? []
    : ([
        [
          "PostgreSQL and a bucket",
          // A start takes twice as long there.
          3,
          async () => ({
            databaseUrl: await postgres.createDatabase(),
            storage: s3.storage({ prefix: `kill-${Date.now()}/` }),
          }),
        ],
      ] satisfies typeof PLACES)),
];

const PRICE = { model: "*", input: "0.15", cached_input: "0.075", output: "0.6", currency: "USD" };

interface RowUsage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

/** What the rows cost at that price, in units of 10^-9: a token of the input costs 150 of them. */
function costOf(rows: readonly ResultRow[]): number {
  let sum = 0;
  for (const row of rows) {
    const usage = row.response?.body["usage"] as RowUsage;
    const cached = usage.prompt_tokens_details.cached_tokens;
    sum += (usage.prompt_tokens - cached) * 150 + cached * 75 + usage.completion_tokens * 600;
  }
  return sum;
}

interface Setup extends Places {
  readonly folder: string;
  readonly upstream: TestUpstream;
}

function start({ folder, upstream, databaseUrl, storage }: Setup) {
  const path = join(folder, "batchd.yaml");
  // JSON is YAML too.
  writeFileSync(path, JSON.stringify({ data_dir: join(folder, "data"), storage, prices: [PRICE] }));
  return serve(
    ["--port", "0", "--config", path, "--upstream", upstream.url],
    databaseUrl === null ? {} : { BATCHD_DATABASE_URL: databaseUrl },
  );
}

const sum = (counts: Iterable<number>) => [...counts].reduce((total, count) => total + count, 0);

test.each(PLACES)(
  "on %s, killed %i times, a batch loses no line, doubles none, repeats only what was at risk, and costs what its rows do",
  async (_name, kills, findPlaces) => {
    using folder = temporaryFolder("batchd-crash-");
    await using upstream = await startUpstream();
    const setup = { folder: folder.path, upstream, ...(await findPlaces()) };
    const { databaseUrl } = setup;
    let { server, openai } = await start(setup);
    const { id } = await submitLines(openai, lines);

    let lastKill = { sent: 0, distinct: 0, atRisk: 0 };
    const checkRepeats = () => {
      const sent = sum(upstream.received.values());
      const distinct = upstream.received.size;
      const repeated = sent - lastKill.sent - (distinct - lastKill.distinct);
      expect(repeated).toBeLessThanOrEqual(lastKill.atRisk);
      return { sent, distinct };
    };
    for (let n = 0; n < kills; n++) {
      await upstream.reachedLines(killAt(n, kills));
      await server.kill();
      await upstream.disconnected();
      const { sent, distinct } = checkRepeats();
      upstream.hold();
      // On PostgreSQL the leases of a killed server would have to run out.
      if (databaseUrl !== null) await endLeases(databaseUrl);
      ({ server, openai } = await start(setup));
      const { request_counts: counts } = await openai.batches.retrieve(id);
      const recorded = counts!.completed + counts!.failed;
      expect(recorded).toBeLessThanOrEqual(distinct);
      lastKill = { sent, distinct, atRisk: distinct - recorded };
      upstream.release();
    }

    const batch = await untilFinal({ server, openai }, id);
    checkRepeats();
    expect(batch.status).toBe("completed");
    expect(batch.request_counts).toEqual({
      total: LINES,
      completed: answered.length,
      failed: refused.length,
    });
    const { x_batchd } = batch as unknown as BatchObject;
    const code = expect.anything();
    expect(x_batchd.failures).toEqual([{ status_code: 400, code, lines: refused.length }]);
    const output = await rowsIn(openai, batch.output_file_id);
    const error = await rowsIn(openai, batch.error_file_id);
    expect(x_batchd.cost?.so_far).toBe(String(costOf(output) / 1e9));
    expect(numbersOf(error)).toEqual(refused);
    expect(numbersOf(output)).toEqual(answered);
    for (const row of output) {
      expect(JSON.stringify(row.response?.body)).toContain(`Say ${row.custom_id.slice(5)}`);
    }
    await server.kill("SIGTERM");
  },
);

/** The last process ends the batch, unless the one before did so just before it was killed. */
async function untilFinal(
  { server, openai }: Pick<Served, "server" | "openai">,
  id: string,
): Promise<OpenAI.Batch> {
  const batch = await openai.batches.retrieve(id);
  if (batch.status === "completed") return batch;
  await server.batchEnded(id);
  return openai.batches.retrieve(id);
}
