/**
 * Copies one installation of batchd to another database and another place for blobs: see ADR 26.
 *
 * Blobs come first, and rows last. A run that is killed leaves a target that no server serves, and the next run goes on.
 * The source is only read. No server may use either side, which is checked at the beginning and again before the end.
 */
import { isDeepStrictEqual } from "node:util";
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import { COPIED_TABLES, type CopyStore, isUnfinishedCopy } from "../store/copying.ts";
import { bytes, count } from "../words.ts";
import { copyBlobs, countBlobs, namedBlobs } from "./blobs.ts";
import { BlobProgress } from "./progress.ts";
import { copyRows } from "./rows.ts";

export interface Side {
  /** What messages call it. */
  readonly name: string;
  readonly copying: CopyStore;
  readonly blobs: Blobs;
}

export interface Move {
  readonly source: Side;
  readonly target: Side;
  readonly clock: Pick<Clock, "elapsedMs">;
  /** Prints a line of progress. */
  readonly say: (line: string) => void;
  /** Prints a warning. */
  readonly warn: (line: string) => void;
}

/** Returns the reason for which the target is not a copy, or null. */
export async function moveInstallation(move: Move): Promise<string | null> {
  const { source, target, say } = move;
  const refusal = (await usersOf(move)) ?? (await claimTarget(move));
  if (refusal !== null) return refusal;
  const before = await source.copying.readCounters();
  const work = await countBlobs(source.copying);
  if (target.copying.needsChecksums && work.lackingChecksum > 0) {
    return `${count(work.lackingChecksum)} segments of the journal are from a version before 0.2 and have no checksum: start batchd on the source until the batches that are open have ended, stop it, and try again`;
  }
  // No server uses the target, so everything unfinished there is of an earlier run.
  await target.blobs.removeUnfinished(async (keys) => keys);
  const progress = new BlobProgress(work, move.clock, say);
  const places = { source: source.blobs, target: target.blobs };
  const faults = await copyBlobs(namedBlobs(source.copying), places, progress);
  const rows = await copyRows(source.copying, target.copying, say);
  if (!rows.ok) return rows.problem;
  const intruder = await usersOf(move);
  if (intruder !== null) return intruder;
  // A server that came and went has left rows of which the copy lacks some, or whose blobs it lacks.
  if (!isDeepStrictEqual(await source.copying.readCounters(), before)) {
    return `batchd has run on ${source.name} meanwhile: stop it, and try again`;
  }
  await target.copying.endCopy();
  for (const fault of faults) move.warn(fault);
  const { files, batches } = rows.counts;
  const rowCount = COPIED_TABLES.reduce((sum, table) => sum + rows.counts[table], 0);
  const blobs = `${count(progress.verifiedCount)} blobs with ${bytes(progress.verifiedBytes)}`;
  say(
    `done: ${count(files)} files, ${count(batches)} batches, ${blobs}, ${count(rowCount)} rows; all verified by SHA-256`,
  );
  if (faults.length > 0) say(`${count(faults.length)} blobs have a fault in the source`);
  return null;
}

async function usersOf({ source, target }: Move): Promise<string | null> {
  for (const { name, copying } of [source, target]) {
    const users = await copying.findUsers();
    if (users.length === 0) continue;
    return `batchd is running on ${name}: stop ${users.join(", ")}, and try again. The claim of a process that was killed ends by itself, after engine.lease_seconds`;
  }
  return null;
}

/** Makes the target an unfinished copy. Returns the reason for which it may not become one, or null. */
async function claimTarget({ source, target, say }: Move): Promise<string | null> {
  const origin = await source.copying.readInstallation();
  if (isUnfinishedCopy(origin)) return `${source.name} is an unfinished copy itself`;
  const found = await target.copying.readInstallation();
  if (found.id === origin.id) return `${source.name} and ${target.name} are the same database`;
  if (found.originId !== null) {
    if (found.originId !== origin.id) return `${target.name} is a copy of another installation`;
    if (found.copiedAtMs !== null) {
      return `${target.name} has been a complete copy of ${source.name} since ${new Date(found.copiedAtMs).toISOString()}: start batchd on it, or name an empty target`;
    }
    say("an earlier run has begun this copy: going on");
    return null;
  }
  if (!(await isEmpty(target))) return `${target.name} is not empty`;
  await target.copying.beginCopy(origin.id);
  return null;
}

async function isEmpty({ copying, blobs }: Side): Promise<boolean> {
  for (const table of COPIED_TABLES) if ((await copying.countRows(table)) > 0) return false;
  for await (const _ of blobs.list("")) return false;
  return true;
}
