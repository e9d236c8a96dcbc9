/**
 * Removes what is no longer needed: deleted batches, journals of final batches, content of deleted files, ended uploads and their
 * parts, old idempotency keys and tombstones, and garbage. Garbage is a blob without a row that can never get one. Each step
 * deletes the blob first and the row last, so a sweep that is cut short is simply done again. An item that cannot be removed is
 * logged and left for a later sweep; it holds up no other. A damaged database ends the sweep.
 *
 * The sweeper must never delete by age: while the database is locked or the disk is full, the row of a blob may be
 * hours behind. The store knows which blobs are garbage (`findGarbage`), and garbage stays garbage, because the store
 * refuses the commit that would name the blob. The deletion is therefore safe at any later time, whichever process
 * carries it out.
 */
import type { BatchId, FileId, UploadId } from "../../batch/batch.ts";
import type { BlobIntents } from "../../blobs/blob-intents.ts";
import { BLOB_PREFIXES, type Blobs } from "../../blobs/blobs.ts";
import type { Clock } from "../../clock.ts";
import { OneByOne } from "../../one-by-one.ts";
import { isDamaged } from "../../store/failures.ts";
import { journalPrefix } from "../../store/segment-key.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";

export interface SweeperDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly intents: BlobIntents;
  readonly clock: Pick<Clock, "elapsedMs">;
  readonly log: Log;
  /** Whether the server is closing: what is left can wait for its next start. */
  readonly isDraining: () => boolean;
}

const PAGE = 100;
const LOOKUP_PAGE = 500;
const REMOVALS_AT_ONCE = 4;
/**
 * The rest after a page of which nothing could be removed, as in a bucket that refuses it. Each end of a batch starts a sweep,
 * and a deleted project one each second.
 */
const REFUSED_REST_MS = 60_000;
/**
 * A look at deleted files passes over those that open batches still read, which may be 100,000. After one that took so long, the
 * next one waits for so many times as long.
 */
const LONG_LOOK_MS = 100;
const REST_TIMES = 20;
/**
 * The time between two sweeps of all blobs. A sweep costs most where there are many blobs, and a crash leaves few
 * orphans.
 */
export const ORPHAN_SWEEP_EVERY_MS = 60 * 60 * 1000;

/**
 * The last thing of each kind that could not be removed. The next page begins behind it, so that things that nothing removes,
 * as in a bucket that refuses it, do not keep those behind them. After the last page it begins anew.
 */
interface LastKept {
  deleted?: BatchId;
  journals?: BatchId;
  files?: FileId;
  parts?: UploadId;
}

type Kind = keyof LastKept;

export interface SweepCursors extends LastKept {
  /** The elapsed times before which no page of a kind is looked for. */
  restUntilMs?: Partial<Record<Kind, number>>;
}

const turns = new OneByOne<SweepCursors>();

/**
 * Clears one page of finished data of each kind; returns true when there may be more that can be removed. Sweeps with the same
 * cursors take turns: two of them side by side would find the same pages.
 */
export const sweep = (deps: SweeperDeps, cursors: SweepCursors): Promise<boolean> =>
  turns.run(cursors, () => sweepPages(deps, cursors));

async function sweepPages(deps: SweeperDeps, cursors: SweepCursors): Promise<boolean> {
  await deps.store.forgetIdempotencyKeys();
  await deps.store.forgetTombstones();
  await deps.store.forgetUploads();
  const sweepKind = (kind: Kind) =>
    deps.clock.elapsedMs() < (cursors.restUntilMs?.[kind] ?? 0)
      ? false
      : KINDS[kind](deps, cursors);
  const haveMore = [
    await sweepKind("deleted"),
    await sweepKind("journals"),
    await sweepKind("files"),
    await sweepKind("parts"),
    (await sweepRevoked(deps)) === PAGE,
  ];
  return haveMore.includes(true);
}

const KINDS = {
  deleted: sweepDeleted,
  journals: sweepJournals,
  files: sweepFiles,
  parts: sweepParts,
} as const;

function rest(cursors: SweepCursors, kind: Kind, untilMs: number): void {
  cursors.restUntilMs = { ...cursors.restUntilMs, [kind]: untilMs };
}

interface Swept<T> {
  readonly page: readonly T[];
  readonly removed: ReadonlySet<unknown>;
  readonly clock: SweeperDeps["clock"];
}

/** Sets the cursor of a kind after a page of it. A page of which nothing went is not followed at once: the next may be the same. */
function advance<K extends Kind>(
  cursors: SweepCursors,
  kind: K,
  { page, removed, clock }: Swept<LastKept[K]>,
): boolean {
  if (page.length > 0 && removed.size === 0)
    rest(cursors, kind, clock.elapsedMs() + REFUSED_REST_MS);
  const isFull = page.length === PAGE;
  const last = page.findLast((thing) => !removed.has(thing));
  if (!isFull) delete cursors[kind];
  else if (last !== undefined) cursors[kind] = last;
  return isFull && removed.size > 0;
}

async function sweepJournals(deps: SweeperDeps, cursors: SweepCursors): Promise<boolean> {
  const { store, blobs, clock, log } = deps;
  const page = await store.listBatchesToTidy(PAGE, cursors.journals);
  const removed = await removeEach(page, deps, async (batchId) => {
    await blobs.deleteAll(journalPrefix(batchId));
    await store.forgetChunks(batchId);
    log.debug({ batch: batchId }, "journal.removed");
  });
  return advance(cursors, "journals", { page, removed, clock });
}

/** Removes deleted batches. */
async function sweepDeleted(deps: SweeperDeps, cursors: SweepCursors): Promise<boolean> {
  const { store, blobs, clock, log } = deps;
  const page = await store.listDeletedBatches(PAGE, cursors.deleted);
  const removed = await removeEach(page, deps, async (batchId) => {
    await blobs.deleteAll(journalPrefix(batchId));
    await store.forgetBatch(batchId);
    log.debug({ batch: batchId }, "batch.removed");
  });
  return advance(cursors, "deleted", { page, removed, clock });
}

async function sweepFiles(deps: SweeperDeps, cursors: SweepCursors): Promise<boolean> {
  const { store, clock, log } = deps;
  const beganAtMs = clock.elapsedMs();
  const files = await store.listUnusedFiles(PAGE, cursors.files);
  const tookMs = clock.elapsedMs() - beganAtMs;
  if (files.length < PAGE && tookMs >= LONG_LOOK_MS)
    rest(cursors, "files", beganAtMs + REST_TIMES * tookMs);
  const blobKeys = files.map(({ blobKey }) => blobKey);
  const deletedKeys = await deleteBlobs(blobKeys, deps);
  const deleted = files.filter(({ blobKey }) => deletedKeys.has(blobKey)).map(({ id }) => id);
  const removed = await removeTogether(deleted, deps, (ids) => store.forgetFiles(ids));
  for (const file of removed) log.debug({ file }, "file.removed");
  return advance(cursors, "files", { page: files.map(({ id }) => id), removed, clock });
}

async function sweepParts(deps: SweeperDeps, cursors: SweepCursors): Promise<boolean> {
  const { store, blobs, clock, log } = deps;
  const page = await store.listUploadsToTidy(PAGE, cursors.parts);
  const removed = await removeEach(page, deps, async (uploadId) => {
    for await (const parts of store.partPages(uploadId)) {
      await blobs.delete(...parts.map(({ blobKey }) => blobKey));
    }
    await store.forgetParts(uploadId);
    log.debug({ upload: uploadId }, "upload.parts_removed");
  });
  return advance(cursors, "parts", { page, removed, clock });
}

/** Removes the blobs that vanished writers had declared. */
async function sweepRevoked(deps: SweeperDeps): Promise<number> {
  const { store, intents } = deps;
  // The renewal comes first: after a pause of the machine this process must not revoke its own intents.
  await intents.renew();
  const keys = await store.revokeExpiredIntents(PAGE);
  await deleteGarbage(keys, deps);
  return keys.length;
}

type RemovalDeps = Pick<SweeperDeps, "log" | "isDraining">;

/** Returns what could be removed. Some things go side by side: each takes many steps, one after the other, in a far database. */
export async function removeEach<T>(
  things: readonly T[],
  { log, isDraining }: RemovalDeps,
  remove: (thing: T) => Promise<void>,
): Promise<ReadonlySet<T>> {
  const removed = new Set<T>();
  const waiting = things.values();
  const damages: Error[] = [];
  const removeNext = async (): Promise<void> => {
    for (const thing of waiting) {
      if (isDraining() || damages.length > 0) return;
      try {
        await remove(thing);
        removed.add(thing);
      } catch (err) {
        // What was read before the damage was found says nothing either.
        if (isDamaged(err)) damages.push(err);
        else log.error({ thing, err }, "sweep.failed");
      }
    }
  };
  await Promise.all(Array.from({ length: REMOVALS_AT_ONCE }, removeNext));
  const [damage] = damages;
  if (damage !== undefined) throw damage;
  return removed;
}

/** Removes all in one call. If that fails, it removes each by itself, so that one cannot hold up the others. */
async function removeTogether<T>(
  things: readonly T[],
  deps: RemovalDeps,
  remove: (things: readonly T[]) => Promise<void>,
): Promise<ReadonlySet<T>> {
  if (things.length === 0) return new Set();
  try {
    await remove(things);
    return new Set(things);
  } catch {
    return removeEach(things, deps, (thing) => remove([thing]));
  }
}

/** Deletes all garbage, which a crash leaves behind. */
export async function sweepOrphans(deps: SweeperDeps): Promise<void> {
  const { store, blobs, isDraining } = deps;
  let candidates: string[] = [];
  for (const prefix of BLOB_PREFIXES) {
    for await (const { key } of blobs.list(prefix)) {
      if (isDraining()) return;
      candidates.push(key);
      if (candidates.length < LOOKUP_PAGE) continue;
      await deleteGarbage(candidates, deps);
      candidates = [];
    }
  }
  await deleteGarbage(candidates, deps);
  await blobs.removeUnfinished((keys) => store.findGarbage(keys));
}

async function deleteGarbage(keys: readonly string[], deps: SweeperDeps): Promise<void> {
  const deletedKeys = await deleteBlobs(await deps.store.findGarbage(keys), deps);
  for (const blob of deletedKeys) deps.log.info({ blob }, "orphan.removed");
}

const deleteBlobs = (keys: readonly string[], deps: SweeperDeps) =>
  removeTogether(keys, deps, (some) => deps.blobs.delete(...some));
