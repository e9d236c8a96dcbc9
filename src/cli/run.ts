/**
 * `batchd run`: a whole batch in one process, without a server and without a port, on the same engine and use cases. What
 * is done is in a folder, as it is for a server. So a run that was killed goes on: started again, it sends only the lines
 * without an answer.
 */
import { existsSync } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { Readable } from "node:stream";
import type { FileId } from "../batch/batch.ts";
import { isFinal } from "../batch/status.ts";
import { EXIT, exitCodeOf } from "../client/exit-codes.ts";
import { CommandFailure } from "../client/failure.ts";
import { followBatch } from "../client/follow.ts";
import { digestOf, endpointFor, openInput } from "../client/input.ts";
import { explained, interruption } from "../client/interruption.ts";
import { assertNotTooLong, isFileName } from "../client/output.ts";
import { jsonView, openView } from "../client/progress.ts";
import { resultFileIdOf, writeBoth, writeRows } from "../client/results.ts";
import { type ShownBatch, whyItWaits } from "../client/shown-batch.ts";
import { assertWaitFlags, sayEnd } from "../client/wait.ts";
import { systemClock } from "../clock.ts";
import { findUpstreamKey } from "../config/client.ts";
import { DEFAULT_PROJECT } from "../contract/key.ts";
import { PublicError } from "../errors.ts";
import { openWorkshop, type Workshop } from "../runtime/runtime.ts";
import { createLog } from "../telemetry/log.ts";
import { Metrics } from "../telemetry/metrics.ts";
import { note, sayJson } from "../terminal/lines.ts";
import { neverWaitForTerminals } from "../terminal/standard-streams.ts";
import { type AskedRun, assertReplaceable, RunBatch, RunRefused } from "./run-batch.ts";
import { configFor, defaultDataDir, errorsFileFor, type RunFlags } from "./run-config.ts";
import { InVain } from "./run-in-vain.ts";
import { RunTrouble } from "./run-trouble.ts";
import { storageTrouble } from "./system-failure.ts";

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
  // The folder of a run shows that its answers are those of an earlier one.
  if (!existsSync(dataDir)) assertReplaceable({ outputFile, flags });
  const endpoint = flags.endpoint ?? (await endpointFor(input, file));
  const config = configFor(flags, dataDir);
  const trouble = new RunTrouble();
  const log = createLog("error", trouble);
  const opened = await openWorkshop({ config, clock: systemClock, log, metrics: new Metrics() });
  if (!opened.ok) throw new CommandFailure(opened.problem);
  const inVain = new InVain(flags, dataDir);
  const asked = { input, sha256, dataDir, outputFile, endpoint, config, flags };
  const run = { ...asked, trouble, inVain };
  const ended = await workAndClose(opened.workshop, run, signal).catch(async (error: unknown) => {
    if (error instanceof RunRefused && flags.dataDir === undefined) await removeRun(dataDir);
    throw error;
  });
  if (ended === null) return EXIT.interrupted;
  // The results are in the place that the user has named.
  if (flags.dataDir === undefined) await removeRun(dataDir);
  return exitCodeOf(ended);
}

/**
 * The name of the folder of a run that is over, until it is removed. A kill meanwhile would leave a part of it under the name from
 * which runs go on: without its results, or empty, so that all lines are sent again.
 */
const doneNameOf = (dataDir: string): string => `${dataDir}-done`;

async function removeRun(dataDir: string): Promise<void> {
  await rename(dataDir, doneNameOf(dataDir));
  await removeDone(dataDir);
}

const removeDone = (dataDir: string): Promise<void> =>
  rm(doneNameOf(dataDir), { recursive: true, force: true });

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
async function endInVain(batch: ShownBatch, { flags, inVain }: Run): Promise<void> {
  const mistake = await inVain.find(batch);
  if (mistake === null) return;
  throw new CommandFailure(
    `nothing is answered, ${whyRunWaits(flags)(batch)}${mistake}. Correct it and run the same command again`,
  );
}

interface Run extends AskedRun {
  readonly trouble: RunTrouble;
  readonly inVain: InVain;
}

async function workAndClose(workshop: Workshop, run: Run, signal: AbortSignal) {
  try {
    return await work(workshop, run, signal);
  } finally {
    await workshop.close();
  }
}

/** Resolves to the batch after its results are written; null after Ctrl-C. */
async function work(workshop: Workshop, run: Run, signal: AbortSignal) {
  const own = await RunBatch.open(workshop, run, signal);
  const { json } = run.flags;
  const view = json ? jsonView(sayJson) : openView(systemClock, whyRunWaits(run.flags));
  run.trouble.showAt((problem) => view.showTrouble(problem));
  const batch = await followBatch({
    read: async () => {
      const batch = await own.read();
      if (!(await own.hasAnswered(batch))) await endInVain(batch, run);
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
  await writeResults(workshop, batch, run);
  await own.rememberWritten();
  return batch;
}

async function writeResults({ files }: Workshop, batch: ShownBatch, run: Run): Promise<void> {
  const { flags, sha256 } = run;
  const { output, format } = flags;
  // The folder of the run is deleted, and no server has its results.
  const ofPipe = { path: errorsFileFor(flags, sha256) };
  const errors = { exist: Boolean(batch.error_file_id), ofPipe };
  await writeBoth(output, errors, async (kind, to) => {
    await writeRows(await contentOf(files, resultFileIdOf(batch, kind)), format, to);
  });
}

async function contentOf(files: Workshop["files"], id: string | null) {
  if (id === null) return Readable.from([]);
  const file = await files.find({ project: DEFAULT_PROJECT, id: id as FileId });
  return files.openContent(file, { start: 0, end: file.bytes });
}
