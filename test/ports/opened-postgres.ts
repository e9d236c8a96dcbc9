/** Stores on a real PostgreSQL, for the tests of their adapter. */
import { Client } from "pg";
import { expect } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore, type PostgresOptions } from "../../src/store/postgres/store.ts";
import type { Store } from "../../src/store/store.ts";
import { sharePostgres, type TestPostgres } from "../support/postgres.ts";
import { storeClock } from "../support/store-builders.ts";
import type { OpenedStore } from "./opened-store.ts";

export async function openStore(
  url: string,
  options: Pick<PostgresOptions, "migrationsDir"> = {},
): Promise<Store & AsyncDisposable> {
  const opened = await openPostgresStore({
    url,
    poolSize: 5,
    listens: false,
    clock: systemClock,
    nowMs: () => storeClock.nowMs(),
    ...options,
  });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  return { ...store, [Symbol.asyncDispose]: () => store.close() };
}

/** Each after those that name it. */
const TABLES = [
  "segments",
  "chunks",
  "deliveries",
  "batch_deliveries",
  "batch_progress",
  "batch_runs",
  "batches",
  "files",
  "upload_parts",
  "uploads",
  "blob_intents",
  "idempotency_keys",
  "slot_shares",
  "replicas",
  "forecasts",
  "api_keys",
  "key_requirement",
  "model_usage",
  "usage_sums",
  "signing_keys",
  "projects",
  "interactive_slots",
  "reservations",
];

export class PostgresStores implements AsyncDisposable {
  readonly #postgres: TestPostgres;
  #store: Store | null = null;
  #shared: Promise<{ url: string; admin: Client }> | null = null;

  private constructor(postgres: TestPostgres) {
    this.#postgres = postgres;
  }

  /** Returns null when there is no PostgreSQL. */
  static async start(leftOut: string): Promise<PostgresStores | null> {
    const postgres = await sharePostgres(leftOut);
    return postgres && new PostgresStores(postgres);
  }

  createDatabase(): Promise<string> {
    return this.#postgres.createDatabase();
  }

  createEmptyDatabase(): Promise<string> {
    return this.#postgres.createEmptyDatabase();
  }

  /** One database for the file, emptied for each test: to make one takes longer than most tests. */
  shared(): Promise<{ url: string; admin: Client }> {
    this.#shared ??= this.#makeShared();
    return this.#shared;
  }

  async #makeShared() {
    const url = await this.createDatabase();
    const admin = new Client(url);
    await admin.connect();
    return { url, admin };
  }

  /**
   * Returns a store on the shared database, which is empty. The next test gets the same one, which keeps nothing between
   * calls but its connections: to make these takes longer than most tests.
   */
  async open(): Promise<OpenedStore> {
    const { url, admin } = await this.shared();
    await admin.query(TABLES.map((table) => `delete from ${table}`).join("; "));
    return {
      store: await this.#openOnce(url),
      reopen: async () => {
        await this.#close();
        return this.#openOnce(url);
      },
    };
  }

  async #openOnce(url: string): Promise<Store> {
    this.#store ??= await openStore(url);
    // A test may close it.
    return { ...this.#store, close: () => this.#close() };
  }

  async #close(): Promise<void> {
    const store = this.#store;
    this.#store = null;
    await store?.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#close();
    await (await this.#shared)?.admin.end();
    await this.#postgres[Symbol.asyncDispose]();
  }
}

export async function connect(url: string) {
  const client = new Client(url);
  await client.connect();
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() });
}

/** Resolves once another connection waits for a lock. */
export const isWaitedFor = (admin: Client) =>
  expect
    .poll(async () => (await admin.query("select 1 from pg_locks where not granted")).rowCount ?? 0)
    .toBeGreaterThan(0);
