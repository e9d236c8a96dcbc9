/**
 * The pool of connections, and the three ways to use one.
 *
 * A failure that passes by itself and was noticed soon is repeated a few times if the call has certainly changed nothing: a
 * read, a deadlock, a serialisation failure, or a connection that was lost before the commit was sent. A connection that is
 * lost during a commit leaves its result unknown. Such a call fails with `StoreUnavailable`, and its caller decides. A
 * caller may repeat it. A released lease, a newer epoch, a consumed intent or a segment that has its row makes the second
 * call change nothing. `certainTransaction` is for what a second call would make once more.
 *
 * No statement is prepared under a name, and nothing but transactions keeps state on a connection, so a pooler in
 * transaction mode may stand between.
 */
import { type Clock, sleep, timeLimit } from "../../clock.ts";
import { OneByOne } from "../../one-by-one.ts";
import { StoreBusy, StoreRefusal, StoreUnavailable } from "../failures.ts";
import { cancelStatement } from "./cancel.ts";
import type { BoundedPool } from "./connection.ts";
import { ConnectionTurns, ProjectBusy } from "./connection-turns.ts";
import {
  connectionError,
  isForbidden,
  isPassing,
  isRolledBack,
  isStandby,
  isTimeout,
  isUnavailable,
  StandbyFound,
  unwrapped,
} from "./driver-errors.ts";
import { drizzle, type NodePgDatabase, Pool, type PoolClient, type SQL, sql } from "./drizzle.ts";

/** The callback for statements that go to the server. */
export type OnStatements = (count: number) => void;

/** Runs statements on one connection. */
export type Db = NodePgDatabase;

/** A lock for which the transactions of one project wait (`project-locks.ts`). */
export interface ProjectLock {
  readonly kind: "lists" | "spending";
  readonly project: string;
}

const nameOf = ({ kind, project }: ProjectLock): string => `${kind} ${project}`;

/** The timeout exists because a process may stop in the middle of a transaction (SIGSTOP, a partition). Its locks must end. */
const BEGIN =
  "begin isolation level read committed; set local idle_in_transaction_session_timeout = '15s'";
const STATEMENTS_OF_BEGIN = 2;

const STATEMENT_TIMEOUT_MS = 30_000;

/** The connections to databases that cannot notify anyone. */
const mute = new WeakSet<Db>();

export const canNotify = (db: Db): boolean => !mute.has(db);

const ATTEMPTS = 4;
const FIRST_PAUSE_MS = 20;

/** A database that restarts, or whose standby takes over, is mostly back within this. */
const CERTAIN_WITHIN_MS = 20_000;
const DOUBT_PAUSE_MS = 500;

type Attempt<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly cause: unknown; readonly changedNothing: boolean };

export interface DatabaseOptions {
  /** It times the pauses between attempts. */
  readonly clock: Pick<Clock, "after">;
  readonly onStatements?: OnStatements | undefined;
  /** Replaces the clock of the database in tests. */
  readonly nowMs?: (() => number) | undefined;
}

/** The present time by the clock of the database, as milliseconds. It stands still within a transaction. */
const NOW: SQL = sql`(extract(epoch from now()) * 1000)::bigint`;

export class Database {
  readonly #pool: InstanceType<typeof Pool>;
  readonly #turns: ConnectionTurns;
  readonly #wrapped = new WeakMap<PoolClient, Db>();
  readonly #clock: Pick<Clock, "after">;
  readonly #nowMs: (() => number) | undefined;
  readonly #onStatements: OnStatements;
  /** The transactions that take a lock, by the name of the lock. */
  readonly #locking = new OneByOne<string>();
  #closed: Promise<void> | null = null;
  #isMute = false;

  constructor(config: BoundedPool, { clock, nowMs, onStatements = () => {} }: DatabaseOptions) {
    this.#clock = clock;
    this.#nowMs = nowMs;
    this.#onStatements = onStatements;
    const { max: total, connectionTimeoutMillis: waitMs } = config;
    this.#turns = new ConnectionTurns({ total, waitMs, clock });
    this.#pool = new Pool({
      query_timeout: STATEMENT_TIMEOUT_MS,
      ...config,
      verify: (client, done) => void this.#refuseStandby(client).then(() => done(), done),
    });
    // An unhandled error of an idle connection would end the process. The next statement finds the connection closed.
    this.#pool.on("error", () => {});
    this.#pool.on("connect", (client) => client.on("error", () => {}));
  }

  /** Finds out whether the database can notify, which some that speak the protocol of PostgreSQL cannot. */
  async findWhetherItNotifies(): Promise<void> {
    const { rows } = await this.read((db) =>
      db.execute<{ known: boolean }>(
        sql`select exists (select 1 from pg_proc where proname = 'pg_notify') as known`,
      ),
    );
    this.#isMute = rows[0]?.known !== true;
  }

  /** Returns the present time for a statement. The clock of the database decides, because the clocks of replicas differ. */
  now(): SQL {
    return this.#nowMs === undefined ? NOW : sql`${this.#nowMs()}::bigint`;
  }

  /** Adds the present time to a claim, as each of its statements has it. */
  timed<C extends object>(claim: C): C & { readonly now: SQL } {
    return { ...claim, now: this.now() };
  }

  /** Runs statements that change nothing. */
  read<T>(work: (db: Db) => Promise<T>): Promise<T> {
    return this.#repeat(async (client) => ({ value: await work(this.#on(client)) }), "read");
  }

  /** Runs one statement, which is a transaction by itself. */
  change<T>(work: (db: Db) => Promise<T>): Promise<T> {
    return this.#repeat(async (client, commits) => {
      commits();
      return { value: await work(this.#on(client)) };
    }, "write");
  }

  /** Runs several statements as one transaction. */
  transaction<T>(work: (db: Db) => Promise<T>): Promise<T> {
    return this.#repeat(async (client, commits) => {
      await this.#send(client, BEGIN, STATEMENTS_OF_BEGIN);
      try {
        const value = await work(this.#on(client));
        commits();
        await this.#send(client, "commit");
        return { value };
      } catch (thrown) {
        // If there was no answer, the connection is closed, which rolls back too.
        if (isRolledBack(unwrapped(thrown))) await this.#send(client, "rollback");
        throw thrown;
      }
    }, "write");
  }

  /**
   * Runs a transaction that takes a lock of a project. This process runs one at a time for each lock.
   * Others would wait for the lock, each on a connection that the leases and other projects need.
   */
  lockingTransaction<T>(lock: ProjectLock, work: (db: Db) => Promise<T>): Promise<T> {
    return this.#locking.run(nameOf(lock), () => this.transaction(work));
  }

  /**
   * Does as {@link lockingTransaction}. A commit without an answer is waited for. `findMade` returns what it has made, or null:
   * then the transaction runs again. `findMade` must wait for the lock, which the transaction in doubt holds until its end.
   */
  certainTransaction<T>(
    lock: ProjectLock,
    work: (db: Db) => Promise<T>,
    findMade: (db: Db) => Promise<T | null>,
  ): Promise<T> {
    return this.#locking.run(nameOf(lock), async () => {
      try {
        return await this.transaction(work);
      } catch (error) {
        if (!isInDoubt(error)) throw error;
        return this.#untilCertain(error, work, findMade);
      }
    });
  }

  /** The time counts from the doubt, because the transaction may have waited for longer before its commit. */
  async #untilCertain<T>(
    firstDoubt: StoreUnavailable,
    work: (db: Db) => Promise<T>,
    findMade: (db: Db) => Promise<T | null>,
  ): Promise<T> {
    using limit = timeLimit(this.#clock, CERTAIN_WITHIN_MS);
    for (let doubt: StoreUnavailable | null = firstDoubt; ; ) {
      await sleep(this.#clock, DOUBT_PAUSE_MS);
      try {
        const made = await this.transaction(findMade);
        if (made !== null) return made;
        doubt = null;
        return await this.transaction(work);
      } catch (error) {
        // Whatever keeps the look from its answer, the doubt stays.
        doubt ??= isInDoubt(error) ? error : null;
        if (doubt === null || limit.signal.aborted) throw doubt ?? error;
      }
    }
  }

  /** It may be called twice. */
  close(): Promise<void> {
    this.#closed ??= this.#pool.end();
    return this.#closed;
  }

  async #repeat<T>(
    work: (client: PoolClient, commits: () => void) => Promise<{ readonly value: T }>,
    kind: "read" | "write",
  ): Promise<T> {
    for (let n = 1; ; n++) {
      const attempt = await this.#attempt(work);
      if (attempt.ok) return attempt.value;
      const { cause, changedNothing } = attempt;
      const isHarmless = changedNothing || kind === "read";
      if (n === ATTEMPTS || !isHarmless || !isPassing(cause) || isTimeout(cause)) {
        throw errorFor(cause, !isHarmless);
      }
      const pauseMs = Math.random() * FIRST_PAUSE_MS * 4 ** n;
      await sleep(this.#clock, pauseMs);
    }
  }

  async #attempt<T>(
    work: (client: PoolClient, commits: () => void) => Promise<{ readonly value: T }>,
  ): Promise<Attempt<T>> {
    let client: PoolClient | undefined;
    let isCommitting = false;
    try {
      using _turn = await this.#turns.take();
      client = await this.#pool.connect().catch((cause: unknown) => {
        throw connectionError(cause);
      });
      const { value } = await work(client, () => {
        isCommitting = true;
      });
      client.release();
      return { ok: true, value };
    } catch (thrown) {
      const cause = unwrapped(thrown);
      const wasAnswered = isRolledBack(cause);
      if (client !== undefined && isTimeout(cause)) cancelStatement(client);
      client?.release(!wasAnswered || isStandby(cause));
      return { ok: false, cause, changedNothing: wasAnswered || !isCommitting };
    }
  }

  /** A standby may be behind: results would lack lines, and the blobs of new files would be taken for garbage. */
  async #refuseStandby(client: PoolClient): Promise<void> {
    this.#onStatements(1);
    const { rows } = await client.query<{ is_standby: boolean | null }>(
      "select current_setting('in_hot_standby', true) = 'on' as is_standby",
    );
    if (rows[0]?.is_standby === true) throw new StandbyFound();
  }

  async #send(client: PoolClient, text: string, statementCount = 1): Promise<void> {
    this.#onStatements(statementCount);
    await client.query(text);
  }

  #on(client: PoolClient): Db {
    const db = this.#wrapped.get(client) ?? this.#wrap(client);
    if (this.#isMute) mute.add(db);
    return db;
  }

  #wrap(client: PoolClient): Db {
    const db = drizzle(client, { logger: { logQuery: () => this.#onStatements(1) } });
    this.#wrapped.set(client, db);
    return db;
  }
}

const isInDoubt = (error: unknown): error is StoreUnavailable =>
  error instanceof StoreUnavailable && error.mayBeMade;

function errorFor(cause: unknown, mayBeMade: boolean): unknown {
  if (cause instanceof ProjectBusy) return new StoreBusy(cause);
  if (isUnavailable(cause)) return new StoreUnavailable(cause, { mayBeMade });
  return isForbidden(cause) ? new StoreRefusal(cause) : cause;
}
