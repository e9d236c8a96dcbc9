/** Reads and writes whole tables, with the numbers of their rows: see `../copying.ts`. */

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
import type { Database, Db } from "./database.ts";
import { batchDeliveries } from "./delivery-schema.ts";
import { asc, getTableName, gt, type SQL, sql } from "./drizzle.ts";
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
import {
  batches,
  batchProgress,
  chunks,
  replicas,
  segments,
  slotShares,
  webhookDeliveries,
} from "./schema.ts";
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

/** PostgreSQL takes 65,535 values in a statement. The widest table has 61 columns, and may get twice as many. */
const INSERTED_AT_ONCE = 500;

export class PostgresCopying implements CopyStore {
  readonly needsChecksums = true;
  readonly #db: Database;
  /** The name of this process on its connections. */
  readonly #applicationName: string;

  constructor(db: Database, applicationName: string) {
    this.#db = db;
    this.#applicationName = applicationName;
  }

  async readInstallation(): Promise<InstallationFacts> {
    const [row] = await this.#db.read((db) => db.select().from(installation));
    if (row === undefined) throw new Error("the table `installation` has lost its row");
    return row;
  }

  async beginCopy(originId: string): Promise<void> {
    await this.#db.change((db) => db.update(installation).set({ originId, copiedAtMs: null }));
  }

  async endCopy(): Promise<void> {
    const copiedAtMs = this.#db.now();
    await this.#db.change((db) => db.update(installation).set({ copiedAtMs }));
  }

  /**
   * Finds connections, and replicas whose claims have not ended. A pooler hides the connections of a replica. A stopped
   * process keeps its connections when its claim has ended.
   */
  async findUsers(): Promise<string[]> {
    const { rows } = await this.#db.read((db) =>
      db.execute<{ user: string }>(sql`
        select 'process ' || pid || coalesce(' from ' || host(client_addr), '') || ' (' || application_name || ')' as user
        from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()
          and application_name like 'batchd%' and application_name <> ${this.#applicationName}
        union
        select owner from replicas where expires_at_ms > ${this.#db.now()}`),
    );
    return rows.map(({ user }) => user);
  }

  async isServed(): Promise<boolean> {
    const isAlive = gt(replicas.expiresAtMs, this.#db.now());
    const rows = await this.#db.read((db) =>
      db.select({ one: sql`1` }).from(replicas).where(isAlive).limit(1),
    );
    return rows.length > 0;
  }

  async needsBlobs(): Promise<boolean> {
    const { rows } = await this.#db.read((db) =>
      db.execute<{ is_found: boolean }>(
        sql`select exists (select 1 from files where ${isListed})
          or exists (select 1 from batches where ${isOpenBatch} and ${isListed}) as is_found`,
      ),
    );
    return rows[0]?.is_found === true;
  }

  async countRows(name: CopiedTable): Promise<number> {
    return this.#db.read((db) => db.$count(TABLES[name]));
  }

  async readRows(name: CopiedTable, after: number, limit: number): Promise<Row[]> {
    const table = TABLES[name];
    return this.#db.read(async (db) => {
      const rows: Row[] = await db
        .select()
        .from(table)
        .where(gt(table.sequence, after))
        .orderBy(asc(table.sequence))
        .limit(limit);
      return rows;
    });
  }

  async insertRows(name: CopiedTable, rows: readonly Row[]): Promise<void> {
    await this.#db.transaction(async (db) => {
      for (let at = 0; at < rows.length; at += INSERTED_AT_ONCE) {
        await insertNumbered(db, name, rows.slice(at, at + INSERTED_AT_ONCE));
      }
    });
  }

  async deleteRows(): Promise<void> {
    const tables = [...Object.values(TABLES), usageSums, blobIntents, replicas, slotShares];
    await this.#db.change((db) =>
      db.execute(
        sql`truncate ${sql.join(
          tables.map((table) => sql`${table}`),
          sql`, `,
        )}`,
      ),
    );
  }

  async readCounters(): Promise<Counters> {
    const counters: [CopiedTable, number][] = [];
    for (const name of COPIED_TABLES) counters.push([name, await this.#readCounter(name)]);
    return Object.fromEntries(counters) as Record<CopiedTable, number>;
  }

  async setCounters(counters: Counters): Promise<void> {
    for (const name of COPIED_TABLES) {
      const last = counters[name];
      await this.#db.change((db) =>
        db.execute(
          sql`select setval(${sequenceOf(name)}, ${Math.max(1, last)}::bigint, ${last > 0})`,
        ),
      );
    }
  }

  /** A user who may not read the counter of a table gets null for it, so the rows count too. */
  async #readCounter(name: CopiedTable): Promise<number> {
    const { rows } = await this.#db.read((db) =>
      db.execute<{ last: string | null }>(
        sql`select greatest(pg_sequence_last_value(${sequenceOf(name)}), max(sequence)) as last
          from ${TABLES[name]}`,
      ),
    );
    return Number(rows[0]?.last ?? 0);
  }
}

const sequenceOf = (name: CopiedTable): SQL =>
  sql`pg_get_serial_sequence(${getTableName(TABLES[name])}, 'sequence')::regclass`;

async function insertNumbered(db: Db, name: CopiedTable, rows: readonly Row[]): Promise<void> {
  // The rows come from a table of the same name.
  const values = rows as never[];
  await db.insert(TABLES[name]).overridingSystemValue().values(values);
}
