/**
 * `batchd run`: a whole batch in one process, without a server and without a port, on the same engine and use cases. What
 * is done is in a folder, as it is for a server. So a run that was killed goes on: started again, it sends only the lines
 * without an answer.
 */
import { createHash } from "node:crypto";
import { createReadStream, existsSync } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { Readable } from "node:stream";
import type { Batch, FileId, UntrustedId } from "../batch/batch.ts";
import { isFinal } from "../batch/status.ts";
import { EXIT, exitCodeOf } from "../client/exit-codes.ts";
import { CommandFailure } from "../client/failure.ts";
import { follow } from "../client/follow.ts";
import { digestOf, endpointFor, type InputFile, openInput } from "../client/input.ts";
import { explained, interruption } from "../client/interruption.ts";
import { assertNotTooLong, isFileName } from "../client/output.ts";
import { jsonView, openView } from "../client/progress.ts";
import { writeBoth, writeRows } from "../client/results.ts";
import { type ShownBatch, whyItWaits } from "../client/shown-batch.ts";
import { assertWaitFlags, sayEnd } from "../client/wait.ts";
import { systemClock } from "../clock.ts";
import { findUpstreamKey } from "../config/client.ts";
import type { Config } from "../config/schema.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import { DEFAULT_PROJECT } from "../contract/key.ts";
import { completionWindowMs } from "../contract/window.ts";
import { PublicError } from "../errors.ts";
import { NO_DETAILS, presentBatch } from "../http/present.ts";
import { openWorkshop, type Workshop } from "../runtime/runtime.ts";
import { createLog } from "../telemetry/log.ts";
import { Metrics } from "../telemetry/metrics.ts";
import { complain, note, sayJson } from "../terminal/lines.ts";
import { neverWaitForTerminals } from "../terminal/standard-streams.ts";
import { count, lines } from "../words.ts";
import { configFor, defaultDataDir, errorsFileFor, type RunFlags } from "./run-config.ts";
import { InVain } from "./run-in-vain.ts";
import { RunTrouble } from "./run-trouble.ts";

/** Resolves to the exit code. */
export function run(file: string, flags: RunFlags): Promise<number> {
  neverWaitForTerminals();
  const signal = interruption();
  return explained({
    act: () => runFile(file, flags, signal),
    explain: (error) => (error instanceof PublicError ? error.message : null),
    signal,
  });
}

async function runFile(file: string, flags: RunFlags, signal: AbortSignal): Promise<number> {
  await assertWaitFlags(flags, file);
  await using input = await openInput(file, signal);
  const sha256 = await digestOf(input, signal);
  const outputFile = (await isFileName(flags.output)) ? flags.output : null;
  const dataDir = flags.dataDir ?? defaultDataDir(outputFile, sha256);
  if (flags.dataDir === undefined) {
    await assertNotTooLong(doneNameOf(dataDir));
    await removeDone(dataDir);
  }
  if (outputFile !== null && !flags.overwrite) assertNotDone(outputFile, dataDir);
  const endpoint = flags.endpoint ?? (await endpointFor(input, file));
  const config = configFor(flags, dataDir);
  const trouble = new RunTrouble();
  const log = createLog("error", trouble);
  const opened = await openWorkshop({ config, clock: systemClock, log, metrics: new Metrics() });
  if (!opened.ok) throw new CommandFailure(opened.problem);
  const inVain = new InVain(flags, dataDir);
  const job = { input, sha256, dataDir, endpoint, config, flags, trouble, inVain };
  const ended = await workAndClose(opened.workshop, job, signal);
  if (ended === null) return EXIT.interrupted;
  // The results are in the place that the user has named.
  if (flags.dataDir === undefined) {
    await rename(dataDir, doneNameOf(dataDir));
    await removeDone(dataDir);
  }
  return exitCodeOf(ended);
}

/**
 * The name of the folder of a finished run, until it is removed. A kill meanwhile would leave a part of it under the name from
 * which runs go on: without its results, or empty, so that all lines are sent again.
 */
const doneNameOf = (dataDir: string): string => `${dataDir}-done`;

const removeDone = (dataDir: string): Promise<void> =>
  rm(doneNameOf(dataDir), { recursive: true, force: true });

/** Refuses to send everything again because a finished run is started once more. */
function assertNotDone(output: string, dataDir: string): void {
  if (existsSync(dataDir) || !existsSync(output)) return;
  throw new CommandFailure(
    `${output} is there already; --overwrite sends all lines again and replaces it`,
  );
}

/** Returns why a run waits. Its user has chosen the key that a model server refuses, and has to know where it is from. */
const whyRunWaits =
  ({ upstream, config }: RunFlags) =>
  (batch: ShownBatch): string | null => {
    const why = whyItWaits(batch);
    const reason = batch.x_batchd?.waiting?.reason;
    if (reason === "wrong_address" && upstream !== undefined)
      return `${why}. It got the address ${upstream}`;
    if (reason !== "refused_credentials") return why;
    if (upstream === undefined) return `${why}. The keys of its upstreams are in ${config}`;
    const { apiKey, keyVariable } = findUpstreamKey(upstream);
    return apiKey === null
      ? `${why}. It got no key: set ${keyVariable} to one`
      : `${why}. It got the key in ${keyVariable}`;
  };

/**
 * Ends a run whose only model server has not answered to this key at this address yet, and never will. After an answer they
 * were right, also in an earlier run, and what is wrong may pass.
 */
async function endInVain(batch: ShownBatch, { flags, inVain }: Job): Promise<void> {
  const mistake = await inVain.find(batch);
  if (mistake === null) return;
  throw new CommandFailure(
    `nothing is answered, ${whyRunWaits(flags)(batch)}${mistake}. Correct it and run the same command again`,
  );
}

interface Job {
  readonly input: InputFile;
  readonly sha256: string;
  readonly dataDir: string;
  readonly endpoint: BatchEndpoint;
  readonly config: Config;
  readonly flags: RunFlags;
  readonly trouble: RunTrouble;
  readonly inVain: InVain;
}

async function workAndClose(workshop: Workshop, job: Job, signal: AbortSignal) {
  try {
    return await work(workshop, job, signal);
  } finally {
    await workshop.close();
  }
}

/** Resolves to the batch after its results are written; null after Ctrl-C. */
async function work(workshop: Workshop, job: Job, signal: AbortSignal) {
  const begun = (await begunBatch(workshop, job)) ?? (await beginBatch(workshop, job));
  const { id } = begun;
  const { json } = job.flags;
  const view = json ? jsonView(sayJson) : openView(systemClock, whyRunWaits(job.flags));
  job.trouble.showAt((problem) => view.showTrouble(problem));
  const hasAnswered = answersSince(begun, workshop, job);
  const batch = await follow({
    read: async () => {
      const batch = await readBatch(workshop, id);
      if (!(await hasAnswered(batch))) await endInVain(batch, job);
      return batch;
    },
    passing: storageTrouble,
    view,
    clock: systemClock,
    signal,
  });
  if (batch === null) {
    note("\nRequests in flight may end; Ctrl-C once more does not wait for them.");
    note("Run the same command again to go on: what is answered is kept.");
    return null;
  }
  if (!json) sayEnd(batch, null);
  if (!isFinal(batch.status) || batch.status === "failed") return batch;
  await writeResults(workshop, batch, job);
  await rememberWritten(workshop, id);
  return batch;
}

/** Returns what a disk says that is full or fails, for which the engine waits, too; null for any other error. */
function storageTrouble(error: unknown): string | null {
  if (!(error instanceof Error)) return null;
  const { code, message, cause } = error as NodeJS.ErrnoException;
  if (code !== "STORE_UNAVAILABLE") return null;
  return cause instanceof Error ? `${message}: ${cause.message}` : message;
}

/** The key of the metadata that says which input a batch has. */
const INPUT_KEY = "input_sha256";

/** The key of the metadata that says which address and key a model server has answered to. */
const ANSWERED_KEY = "answered_to";

/** The key of the metadata that says that the results are where the user wants them. */
const WRITTEN_KEY = "results_written";

async function rememberWritten({ batches }: Workshop, id: Batch["id"]): Promise<void> {
  const asked = { project: DEFAULT_PROJECT, id };
  const { metadata } = await batches.find(asked);
  await batches.update(asked, { metadata: { ...metadata, [WRITTEN_KEY]: "true" } });
}

/** Returns whether the model server of the job has answered, and remembers it for later runs of the batch. */
function answersSince({ counts, metadata }: Batch, { batches }: Workshop, { flags }: Job) {
  const { upstream = "" } = flags;
  const asked = JSON.stringify([upstream, findUpstreamKey(upstream).apiKey]);
  const digest = createHash("sha256").update(asked).digest("hex").slice(0, 16);
  let hasAnswered = metadata?.[ANSWERED_KEY] === digest;
  return async ({ id, request_counts: now }: ShownBatch): Promise<boolean> => {
    const count = (now?.completed ?? 0) + (now?.failed ?? 0);
    if (hasAnswered || count <= counts.completed + counts.failed) return hasAnswered;
    const asked = { project: DEFAULT_PROJECT, id: id as UntrustedId<"batch"> };
    await batches.update(asked, { metadata: { ...metadata, [ANSWERED_KEY]: digest } });
    hasAnswered = true;
    return true;
  };
}

/** Finds the batch of an earlier run in the folder, to go on with it. */
async function begunBatch({ batches }: Workshop, job: Job): Promise<Batch | null> {
  const { sha256, dataDir, endpoint, flags } = job;
  const { data } = await batches.list({ project: DEFAULT_PROJECT, limit: 1, after: null });
  const [found] = data;
  if (found === undefined) return null;
  const isSame =
    found.metadata?.[INPUT_KEY] === sha256 &&
    found.endpoint === endpoint &&
    (flags.model === undefined || found.defaultModel === flags.model);
  if (!isSame) {
    throw new CommandFailure(
      `${dataDir} has a run of another input or with other options. Delete it to begin anew, or name another folder with --data-dir`,
    );
  }
  // What was wrong, such as the models of a configuration, may be mended. All lines are sent again only after their results
  // were written: a run that ended before that, at a full disk, has paid for them.
  const isWritten = found.metadata?.[WRITTEN_KEY] !== undefined;
  if (found.status === "failed" || (flags.overwrite && isWritten)) return null;
  const { total, completed, failed } = found.counts;
  if (total > 0) complain(`going on after ${count(completed + failed)} of ${lines(total)}`);
  return found;
}

const ORIGIN = { requestId: "run", traceparent: null };

async function beginBatch({ files, batches }: Workshop, job: Job): Promise<Batch> {
  const { input, sha256, endpoint, config, flags } = job;
  const file = await files.receive(DEFAULT_PROJECT, {
    filename: input.name,
    content: createReadStream(input.path),
    requestBytes: input.bytes,
    details: async () => ({ purpose: "batch", expiresAfterSeconds: null }),
    origin: ORIGIN,
  });
  return batches.create(DEFAULT_PROJECT, {
    inputFileId: file.id,
    source: null,
    endpoint,
    completionWindow: longestOf(config.limits.completion_windows),
    metadata: { [INPUT_KEY]: sha256 },
    outputExpiresAfterSeconds: null,
    priority: 0,
    budget: null,
    defaultModel: flags.model ?? null,
    sample: null,
    dedupe: null,
    deliver: [],
    origin: ORIGIN,
  });
}

const longestOf = (windows: readonly string[]): string =>
  windows.toSorted((a, b) => (completionWindowMs(b) ?? 0) - (completionWindowMs(a) ?? 0))[0] ??
  "24h";

async function readBatch(workshop: Workshop, id: UntrustedId<"batch">) {
  const batch = await workshop.batches.find({ project: DEFAULT_PROJECT, id });
  const [forecasts, costs] = await Promise.all([
    workshop.forecastsFor([batch]),
    workshop.costsFor([batch]),
  ]);
  const shown = presentBatch(batch, {
    ...NO_DETAILS,
    forecast: forecasts.get(batch.id) ?? null,
    cost: costs.get(batch.id) ?? null,
  });
  // What is made of a key stays in the folder: others may read a log with what `--json` prints.
  const { [ANSWERED_KEY]: _, [WRITTEN_KEY]: __, ...metadata } = shown.metadata ?? {};
  return { ...shown, metadata };
}

async function writeResults({ files }: Workshop, batch: ShownBatch, job: Job): Promise<void> {
  const { flags, sha256 } = job;
  const { output, format } = flags;
  // The folder of the run is deleted, and no server has its results.
  const ofPipe = { path: errorsFileFor(flags, sha256) };
  const errors = { exist: Boolean(batch.error_file_id), ofPipe };
  await writeBoth(output, errors, async (kind, to) => {
    const id = kind === "output" ? batch.output_file_id : batch.error_file_id;
    await writeRows(await contentOf(files, id ?? null), format, to);
  });
}

async function contentOf(files: Workshop["files"], id: string | null) {
  if (id === null) return Readable.from([]);
  const file = await files.find({ project: DEFAULT_PROJECT, id: id as FileId });
  return files.openContent(file, { start: 0, end: file.bytes });
}
