/** Reads and writes whole tables, with the numbers of their rows: see `../copying.ts`. */
import { randomUUID } from "node:crypto";
import type { Usage } from "../../batch/batch.ts";
import {
  COPIED_TABLES,
  type CopiedTable,
  type CopyStore,
  type Counters,
  type InstallationFacts,
  type Row,
} from "../copying.ts";
import { apiKeys, keyRequirement, projects } from "./access-schema.ts";
import { isListed, isOpenBatch } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { batchDeliveries } from "./delivery-schema.ts";
import { asc, getTableName, gt, sql } from "./drizzle.ts";
import {
  blobIntents,
  files,
  idempotencyKeys,
  installation,
  tombstones,
  uploadParts,
  uploads,
} from "./file-schema.ts";
import { batchRuns } from "./run-schema.ts";
import { batches, batchProgress, chunks, segments, webhookDeliveries } from "./schema.ts";
import { modelUsage, usageSums } from "./usage-schema.ts";

const TABLES = {
  files,
  uploads,
  uploadParts,
  batches,
  batchProgress,
  chunks,
  segments,
  modelUsage,
  webhookDeliveries,
  batchDeliveries,
  batchRuns,
  idempotencyKeys,
  tombstones,
  apiKeys,
  keyRequirement,
  projects,
};

/** SQLite takes 32,766 values in a statement, and the widest table has some 40 columns. */
const INSERTED_AT_ONCE = 500;

export class SqliteCopying implements CopyStore {
  readonly needsChecksums = false;
  readonly #db: Db;
  readonly #nowMs: () => number;

  constructor(db: Db, nowMs: () => number) {
    this.#db = db;
    this.#nowMs = nowMs;
  }

  async readInstallation(): Promise<InstallationFacts> {
    this.#db.insert(installation).values({ id: randomUUID() }).onConflictDoNothing().run();
    const row = this.#db.select().from(installation).get();
    if (row === undefined) throw new Error("the table `installation` has lost its row");
    return row;
  }

  async beginCopy(originId: string): Promise<void> {
    write(this.#db, () => this.#db.update(installation).set({ originId, copiedAtMs: null }).run());
  }

  async endCopy(): Promise<void> {
    const copiedAtMs = this.#nowMs();
    write(this.#db, () => this.#db.update(installation).set({ copiedAtMs }).run());
  }

  /** The lock of the folder admits no other process. */
  async findUsers(): Promise<string[]> {
    return [];
  }

  async isServed(): Promise<boolean> {
    return false;
  }

  async needsBlobs(): Promise<boolean> {
    const found = this.#db.get<{ isFound: number }>(
      sql`select exists (select 1 from files where ${isListed})
        or exists (select 1 from batches where ${isOpenBatch} and ${isListed}) as isFound`,
    );
    return found?.isFound === 1;
  }

  async countRows(name: CopiedTable): Promise<number> {
    return this.#db.$count(TABLES[name]);
  }

  async readRows(name: CopiedTable, after: number, limit: number): Promise<Row[]> {
    const table = TABLES[name];
    const rows: Row[] = this.#db
      .select()
      .from(table)
      .where(gt(table.sequence, after))
      .orderBy(asc(table.sequence))
      .limit(limit)
      .all();
    return name === "segments" ? rows.map(withUsageColumns) : rows;
  }

  async insertRows(name: CopiedTable, rows: readonly Row[]): Promise<void> {
    const stored = name === "segments" ? rows.map(withUsageObject) : rows;
    write(this.#db, () => {
      for (let at = 0; at < stored.length; at += INSERTED_AT_ONCE) {
        // The rows come from a table of the same name.
        const values = stored.slice(at, at + INSERTED_AT_ONCE) as never[];
        this.#db.insert(TABLES[name]).values(values).run();
      }
    });
  }

  async deleteRows(): Promise<void> {
    write(this.#db, () => {
      for (const name of COPIED_TABLES.toReversed()) this.#db.delete(TABLES[name]).run();
      this.#db.delete(usageSums).run();
      this.#db.delete(blobIntents).run();
    });
  }

  async readCounters(): Promise<Counters> {
    const rows = this.#db.all<{ name: string; seq: number }>(
      sql`select name, seq from sqlite_sequence`,
    );
    const last = new Map(rows.map(({ name, seq }) => [name, seq]));
    const counters = COPIED_TABLES.map((name) => [name, last.get(getTableName(TABLES[name])) ?? 0]);
    return Object.fromEntries(counters) as Record<CopiedTable, number>;
  }

  async setCounters(counters: Counters): Promise<void> {
    write(this.#db, () => {
      for (const name of COPIED_TABLES) {
        const table = getTableName(TABLES[name]);
        this.#db.run(sql`delete from sqlite_sequence where name = ${table}`);
        this.#db.run(
          sql`insert into sqlite_sequence (name, seq) values (${table}, ${counters[name]})`,
        );
      }
    });
  }
}

/** A segment keeps its usage as JSON, which segments of versions before 0.2 do not have. */
function withUsageColumns({ usage, ...row }: Row): Row {
  const known = usage as Usage | null;
  return {
    ...row,
    inputTokens: known?.inputTokens ?? null,
    cachedTokens: known?.cachedTokens ?? null,
    outputTokens: known?.outputTokens ?? null,
    reasoningTokens: known?.reasoningTokens ?? null,
    totalTokens: known?.totalTokens ?? null,
  };
}

function withUsageObject(row: Row): Row {
  const { inputTokens, cachedTokens, outputTokens, reasoningTokens, totalTokens, ...rest } = row;
  if (inputTokens === null) return { ...rest, usage: null };
  const usage = { inputTokens, cachedTokens, outputTokens, reasoningTokens, totalTokens };
  return { ...rest, usage };
}
