/**
 * The store on PostgreSQL, for any number of processes.
 *
 * Each method is one transaction, and most are one statement. A statement sees what was committed before it began (`read
 * committed`). A condition that has to hold until the commit therefore stands in the statement that changes the row, or
 * the row is locked first. Claims pass over rows that another process is about to take (`for update skip locked`).
 */

import type { Clock } from "../../clock.ts";
import type { CopyStore } from "../copying.ts";
import { methodsOf } from "../methods.ts";
import type { Store } from "../store.ts";
import { PostgresBatches } from "./batches.ts";
import { PostgresChunks } from "./chunks.ts";
import { type ConnectionOptions, connectionOf } from "./connection.ts";
import { PostgresCopying } from "./copying.ts";
import { Database, type OnStatements } from "./database.ts";
import { PostgresDeleting } from "./deleting.ts";
import { PostgresDeliveries } from "./deliveries.ts";
import { PostgresFiles } from "./files.ts";
import { PostgresFinalizing } from "./finalizing.ts";
import { postgresForecasts } from "./forecasts.ts";
import { PostgresIdempotency } from "./idempotency.ts";
import { Installation } from "./installation.ts";
import { PostgresIntents } from "./intents.ts";
import { PostgresInteractiveSlots } from "./interactive-slots.ts";
import { PostgresJournals } from "./journals.ts";
import { PostgresKeys } from "./keys.ts";
import { PostgresLeases } from "./leases.ts";
import { MIGRATIONS_DIR, type Migrated, migrate } from "./migrations.ts";
import { PostgresModelUsage } from "./model-usage.ts";
import { NudgeListener, sendNudge } from "./nudges.ts";
import { PostgresOpenLists } from "./open-lists.ts";
import { PostgresPausing } from "./pausing.ts";
import { PostgresProgress } from "./progress.ts";
import { PostgresProjects } from "./projects.ts";
import { PostgresReplicas } from "./replicas.ts";
import { postgresRuns } from "./runs.ts";
import { PostgresSources } from "./sources.ts";
import { PostgresSpending } from "./spending.ts";
import { PostgresStopping } from "./stopping.ts";
import { PostgresTidying } from "./tidying.ts";
import { PostgresUploads } from "./uploads.ts";
import { PostgresValidation } from "./validation.ts";
import { PostgresWebhookDeliveries } from "./webhook-deliveries.ts";

export interface PostgresOptions extends ConnectionOptions {
  readonly migrationsDir?: string;
  /** Whether to receive nudges, which takes one more connection. */
  readonly listens: boolean;
  /** It times the pauses between attempts. */
  readonly clock: Pick<Clock, "after">;
  readonly onStatements?: OnStatements | undefined;
  /** Replaces the clock of the database in tests. */
  readonly nowMs?: () => number;
}

export type OpenResult =
  | {
      readonly ok: true;
      readonly store: Store;
      readonly installation: Installation;
      readonly copying: CopyStore;
    }
  | { readonly ok: false; readonly problem: string };

const NEWER =
  "the database was changed by a newer version of batchd; start that version, or restore a copy from before the upgrade";

const LOCKED =
  "the tables of the database could not be brought up to date within two minutes, because other transactions use them, such as a backup; start again when they have ended";

const NARROW_ENCODING =
  "the database cannot store every text, because of its encoding; make one with `create database … encoding 'UTF8' template template0`";

const PROBLEMS: Readonly<Record<Exclude<Migrated, "done">, string>> = {
  newer: NEWER,
  locked: LOCKED,
  narrow_encoding: NARROW_ENCODING,
};

/** Connects to the database and brings its tables up to date. Refuses a database that a newer version has changed. */
export async function openPostgresStore(options: PostgresOptions): Promise<OpenResult> {
  const { migrationsDir = MIGRATIONS_DIR, clock, nowMs, onStatements } = options;
  const connection = connectionOf(options);
  const migrated = await migrate({ connection, migrationsDir, clock });
  if (migrated !== "done") return { ok: false, problem: PROBLEMS[migrated] };
  const db = new Database(connection, { clock, nowMs, onStatements });
  await db.findWhetherItNotifies();
  const installation = new Installation(db);
  await installation.createIfNone();
  const listener = new NudgeListener({ connection, clock });
  const store: Store = {
    ...composeStore(db, installation),
    onNudge: (onNudge) => {
      if (options.listens) listener.start(onNudge);
    },
    close: async () => {
      await listener.close();
      await db.close();
    },
  };
  const copying = new PostgresCopying(db, connection.application_name ?? "");
  return { ok: true, store, installation, copying };
}

function composeStore(db: Database, installation: Installation): Omit<Store, "onNudge" | "close"> {
  return {
    ...methodsOf(new PostgresIntents(db)),
    ...methodsOf(new PostgresFiles(db)),
    ...methodsOf(new PostgresUploads(db)),
    ...methodsOf(new PostgresIdempotency(db)),
    ...methodsOf(new PostgresBatches(db)),
    ...methodsOf(new PostgresStopping(db)),
    ...methodsOf(new PostgresPausing(db)),
    ...methodsOf(new PostgresSources(db)),
    ...methodsOf(new PostgresValidation(db)),
    ...methodsOf(new PostgresOpenLists(db)),
    ...methodsOf(new PostgresChunks(db)),
    ...methodsOf(new PostgresLeases(db)),
    ...methodsOf(new PostgresJournals(db)),
    ...methodsOf(new PostgresFinalizing(db)),
    ...methodsOf(new PostgresTidying(db)),
    ...methodsOf(new PostgresDeleting(db)),
    ...methodsOf(new PostgresWebhookDeliveries(db)),
    ...methodsOf(new PostgresDeliveries(db)),
    ...methodsOf(new PostgresProjects(db)),
    ...methodsOf(new PostgresProgress(db)),
    ...methodsOf(new PostgresSpending(db)),
    ...methodsOf(new PostgresModelUsage(db)),
    ...postgresRuns(db),
    ...postgresForecasts(db),
    ...methodsOf(new PostgresReplicas(db)),
    ...methodsOf(new PostgresKeys(db)),
    ...methodsOf(new PostgresInteractiveSlots(db)),
    ping: () => installation.ping(),
    readDateMs: () => installation.readDateMs(),
    nudgeToReload: () => db.change((each) => sendNudge(each, "reload_asked")),
    nudgeStopping: () => db.change((each) => sendNudge(each, "batch_stopping")),
  };
}
