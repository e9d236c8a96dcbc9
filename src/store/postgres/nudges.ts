/**
 * Nudges by LISTEN and NOTIFY, on one connection beside the pool. PostgreSQL sends them with the commit of their
 * transaction. Through a pooler in transaction mode they may not arrive, and nothing depends on them.
 */
import { type Cancel, type Clock, sleep } from "../../clock.ts";
import type { StoreNudge } from "../nudges.ts";
import { canNotify, type Db } from "./database.ts";
import { Client, type PoolConfig, sql } from "./drizzle.ts";

const CHANNEL = "batchd";
const LISTEN = `listen ${CHANNEL}`;
const NUDGES: readonly string[] = [
  "batch_created",
  "batch_started",
  "batch_stopping",
  "delivery_due",
  "delivery_cancelled",
  "keys_changed",
  "reload_asked",
] satisfies readonly StoreNudge[];

/** The nudges that a listener takes for missed when it begins. */
const NUDGES_MISSED = [
  "batch_created",
  "batch_started",
  "batch_stopping",
  "delivery_due",
  "keys_changed",
] as const;

/** Nudges of one kind are gathered for so long, because each makes every process ask the database. */
const GATHER_MS = 500;
const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 10_000;
/** A proxy may keep a connection open through which nothing passes any more. Only an answer shows that it works. */
const ASK_EVERY_MS = 30_000;
const ANSWER_WITHIN_MS = 10_000;

/** Takes part in a transaction, and is sent with its commit. It does nothing on a database that cannot notify. */
export async function sendNudge(db: Db, nudge: StoreNudge): Promise<void> {
  if (!canNotify(db)) return;
  await db.execute(sql`select pg_notify(${CHANNEL}, ${nudge})`);
}

const isNudge = (payload: string | undefined): payload is StoreNudge =>
  payload !== undefined && NUDGES.includes(payload);

/** Waits for no goodbye, because a server that stands still says none. */
async function hangUp(client: InstanceType<typeof Client>): Promise<void> {
  const ended = client.end().catch(() => {});
  client.connection.stream.destroy();
  await ended;
}

export interface NudgeListenerOptions {
  readonly connection: PoolConfig;
  readonly clock: Pick<Clock, "after">;
}

/** Listens until it is closed, and connects again after each loss. */
export class NudgeListener {
  readonly #options: NudgeListenerOptions;
  #onNudge: (nudge: StoreNudge) => void = () => {};
  /** The nudges that came during a pause, by their kind. A kind without an entry has no pause. */
  readonly #gathered = new Map<StoreNudge, { hasCome: boolean; readonly cancel: Cancel }>();
  #client: InstanceType<typeof Client> | null = null;
  #pauseMs = FIRST_PAUSE_MS;
  #cancelPause: Cancel = () => {};
  #isClosed = false;

  constructor(options: NudgeListenerOptions) {
    this.#options = options;
  }

  start(onNudge: (nudge: StoreNudge) => void): void {
    this.#onNudge = onNudge;
    void this.#connect();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelPause();
    for (const { cancel } of this.#gathered.values()) cancel();
    if (this.#client !== null) await hangUp(this.#client);
  }

  async #connect(): Promise<void> {
    const client = new Client({ query_timeout: ANSWER_WITHIN_MS, ...this.#options.connection });
    this.#client = client;
    client.on("notification", ({ payload }) => {
      if (isNudge(payload)) this.#receive(payload);
    });
    const lost = new AbortController();
    client.once("end", () => lost.abort());
    client.once("error", () => lost.abort());
    try {
      await client.connect();
      await client.query(LISTEN);
      this.#pauseMs = FIRST_PAUSE_MS;
      // Nudges may have been missed before.
      for (const nudge of NUDGES_MISSED) {
        this.#receive(nudge);
      }
      while (!lost.signal.aborted) {
        await sleep(this.#options.clock, ASK_EVERY_MS, lost.signal);
        await client.query(LISTEN);
      }
    } catch {
      // The next attempt follows below.
    }
    await hangUp(client);
    if (this.#isClosed) return;
    this.#cancelPause = this.#options.clock.after(this.#pauseMs, () => void this.#connect());
    this.#pauseMs = Math.min(MAX_PAUSE_MS, this.#pauseMs * 2);
  }

  /** Passes the first nudge on at once, and one for all that follow within {@link GATHER_MS}. */
  #receive(nudge: StoreNudge): void {
    if (this.#isClosed) return;
    const pause = this.#gathered.get(nudge);
    if (pause !== undefined) {
      pause.hasCome = true;
      return;
    }
    const cancel = this.#options.clock.after(GATHER_MS, () => {
      const gathered = this.#gathered.get(nudge);
      this.#gathered.delete(nudge);
      if (gathered?.hasCome === true) this.#receive(nudge);
    });
    this.#gathered.set(nudge, { hasCome: false, cancel });
    this.#onNudge(nudge);
  }
}
