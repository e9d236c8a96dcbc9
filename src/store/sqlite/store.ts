/**
 * The store on one SQLite file, for one process: see `lock.ts`.
 *
 * better-sqlite3 is synchronous, and so is everything behind this file: no transaction can interleave with another.
 * In return each transaction must stay in the low milliseconds, because the event loop waits for it. Long work is
 * done in pages, each a transaction and a turn of the loop.
 */

import { existsSync } from "node:fs";
import type { Clock } from "../../clock.ts";
import type { CopyStore } from "../copying.ts";
import { methodsOf } from "../methods.ts";
import type { NudgeStore } from "../nudges.ts";
import type { Store } from "../store.ts";
import { SqliteBatches } from "./batches.ts";
import { SqliteChunks } from "./chunks.ts";
import { SqliteCopying } from "./copying.ts";
import { type OnDamaged, watchForDamage } from "./damage.ts";
import { type Db, type Now, openDatabase, write } from "./database.ts";
import { SqliteDeleting } from "./deleting.ts";
import { SqliteDeliveries } from "./deliveries.ts";
import { sql } from "./drizzle.ts";
import { SqliteFiles } from "./files.ts";
import { SqliteFinalizing } from "./finalizing.ts";
import { sqliteForecasts } from "./forecasts.ts";
import { SqliteIdempotency } from "./idempotency.ts";
import { SqliteIntents } from "./intents.ts";
import { SqliteInteractiveSlots } from "./interactive-slots.ts";
import { SqliteJournals } from "./journals.ts";
import { SqliteKeys } from "./keys.ts";
import { SqliteLeases, takeAllBack } from "./leases.ts";
import { isMigrated, isUpToDate, MIGRATIONS_DIR, migrateIfKnown } from "./migrations.ts";
import { SqliteModelUsage } from "./model-usage.ts";
import { SqliteOpenLists } from "./open-lists.ts";
import { SqlitePausing } from "./pausing.ts";
import { SqliteProgress } from "./progress.ts";
import { SqliteProjects } from "./projects.ts";
import { SqliteReplicas } from "./replicas.ts";
import { sqliteRuns } from "./runs.ts";
import { SqliteSegments } from "./segments.ts";
import { SqliteSources } from "./sources.ts";
import { SqliteSpending } from "./spending.ts";
import { SqliteStopping } from "./stopping.ts";
import { SqliteTidying } from "./tidying.ts";
import { SqliteUploads } from "./uploads.ts";
import { SqliteValidation } from "./validation.ts";
import { WalSync } from "./wal-sync.ts";
import { SqliteWebhookDeliveries } from "./webhook-deliveries.ts";

export interface SqliteOptions {
  /** The path of the database file, in a folder that exists. */
  readonly path: string;
  readonly migrationsDir?: string;
  /** Whether a server has the folder and does the rest: then nothing is migrated and no lease is taken back. */
  readonly isBesideServer?: boolean;
  /** Says what time it is for everything in the store. */
  readonly clock: Pick<Clock, "nowMs">;
  /** The callback for the first sign that the file is damaged. */
  readonly onDamaged?: OnDamaged;
}

export type OpenResult =
  | { readonly ok: true; readonly store: Store; readonly copying: CopyStore }
  | { readonly ok: false; readonly problem: string };

const OTHER_VERSION =
  "the server that is using the data folder is of another version than this command: use the command of that version";

/**
 * Opens the database, brings its tables up to date and takes back every lease, as all former holders in this folder
 * are gone. Refuses a database that a newer version has changed.
 */
export async function openSqliteStore(options: SqliteOptions): Promise<OpenResult> {
  const { path, migrationsDir = MIGRATIONS_DIR, isBesideServer = false, clock } = options;
  const { onDamaged = () => {} } = options;
  const now = () => clock.nowMs();
  const db = openDatabase(path);
  try {
    if (isBesideServer && !isUpToDate(db, migrationsDir)) {
      db.$client.close();
      return { ok: false, problem: OTHER_VERSION };
    }
    if (isBesideServer || migrateIfKnown(db, migrationsDir)) {
      if (!isBesideServer) takeAllBack(db, now());
      const copying = new SqliteCopying(db, now);
      const wal = new WalSync(db);
      const onFailure = (error: unknown) => wal.noteFailure(error);
      const watching = { onDamaged, onFailure };
      return {
        ok: true,
        store: watchForDamage(db, composeStore(db, wal, now), watching),
        copying,
      };
    }
  } catch (error) {
    db.$client.close();
    throw error;
  }
  db.$client.close();
  return {
    ok: false,
    problem: `${path} was written by a newer version of batchd; start that version, or restore a copy from before the upgrade`,
  };
}

/** Whether a server has used the database at `path`. The lock of a data folder alone makes an empty one. */
export function hasTables(path: string): boolean {
  if (!existsSync(path)) return false;
  const db = openDatabase(path);
  try {
    return isMigrated(db);
  } finally {
    db.$client.close();
  }
}

function composeStore(db: Db, wal: WalSync, now: Now): Store {
  const intents = new SqliteIntents(db, now);
  const modelUsage = new SqliteModelUsage(db);
  const segments = new SqliteSegments(db, modelUsage);
  const webhookDeliveries = new SqliteWebhookDeliveries(db, now);
  const stopping = new SqliteStopping(db, now);
  const tidying = new SqliteTidying(db);
  const deleting = new SqliteDeleting(db, now, { stopping, tidying });
  return {
    ...methodsOf(intents),
    ...methodsOf(new SqliteFiles(db, now, intents)),
    ...methodsOf(new SqliteUploads(db, now, intents)),
    ...methodsOf(new SqliteIdempotency(db, now)),
    ...methodsOf(new SqliteBatches(db, now)),
    ...methodsOf(stopping),
    ...methodsOf(new SqlitePausing(db, now)),
    ...methodsOf(new SqliteSources(db, now, intents)),
    ...methodsOf(new SqliteValidation(db, now, webhookDeliveries)),
    ...methodsOf(new SqliteOpenLists(db, now)),
    ...methodsOf(new SqliteChunks(db, now, { segments, wal })),
    ...methodsOf(new SqliteLeases(db, now)),
    ...methodsOf(new SqliteJournals(db, segments)),
    ...methodsOf(new SqliteFinalizing(db, now, { webhookDeliveries, segments, intents })),
    ...methodsOf(tidying),
    ...methodsOf(deleting),
    ...methodsOf(webhookDeliveries),
    ...methodsOf(new SqliteDeliveries(db, now)),
    ...methodsOf(new SqliteProjects(db, now, deleting)),
    ...methodsOf(new SqliteProgress(db)),
    ...methodsOf(new SqliteSpending(db, now)),
    ...methodsOf(modelUsage),
    ...sqliteRuns(db),
    ...sqliteForecasts(),
    ...methodsOf(new SqliteReplicas(now)),
    ...methodsOf(new SqliteKeys(db, now)),
    ...methodsOf(new SqliteInteractiveSlots(db, now)),
    ...NO_NUDGES,
    ping: async () => write(db, () => void db.get(sql`select 1`)),
    readDateMs: async () => now(),
    close: () => wal.close().finally(() => db.$client.close()),
  };
}

/** A store for one process has no other to nudge. */
const NO_NUDGES: NudgeStore = {
  onNudge: () => {},
  nudgeToReload: async () => {},
  nudgeStopping: async () => {},
};
