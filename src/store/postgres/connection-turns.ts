/**
 * Shares the connections of the pool among projects. In one queue, a client would wait behind all requests that others have
 * sent before: hundreds of one project are seconds for each statement, and the renewal of leases waited as long.
 *
 * The server's own work and the requests of clients take turns, and so do the projects among the clients. A project
 * may hold no more connections than are free, since those that wait for a row must leave some to others.
 */
import type { Clock } from "../../clock.ts";
import { projectOfWork } from "../../resources/client-work.ts";

/** The server's own work has no project. */
type Party = string | null;

/** Called with the error when no connection was free in time. */
type Waiter = (error?: Error) => void;

export interface TurnsOptions {
  readonly total: number;
  readonly waitMs: number;
  readonly clock: Pick<Clock, "after">;
}

export class ConnectionTurns {
  readonly #options: TurnsOptions;
  #free: number;
  readonly #held = new Map<Party, number>();
  /** The parties that wait. The one whose turn comes next is the first that may take a connection. */
  readonly #waiting = new Map<Party, Set<Waiter>>();
  #wasOwn = false;

  constructor(options: TurnsOptions) {
    this.#options = options;
    this.#free = options.total;
  }

  /** Resolves when a connection is free for the work that asks. The caller must dispose of the result. */
  async take(): Promise<Disposable> {
    const party = projectOfWork();
    if (!this.#waiting.has(party) && this.#mayTake(party)) this.#hold(party);
    else await this.#wait(party);
    return { [Symbol.dispose]: () => this.#release(party) };
  }

  #wait(party: Party): Promise<void> {
    const { clock, waitMs } = this.#options;
    return new Promise((resolve, reject) => {
      const waiters = this.#waiting.get(party) ?? new Set();
      const waiter: Waiter = (error) => {
        cancel();
        waiters.delete(waiter);
        if (waiters.size === 0) this.#waiting.delete(party);
        if (error === undefined) resolve();
        else reject(error);
      };
      const late = () => waiter(new Error("timeout exceeded when trying to connect"));
      const cancel = clock.after(waitMs, late);
      this.#waiting.set(party, waiters.add(waiter));
    });
  }

  #mayTake(party: Party): boolean {
    const held = this.#held.get(party) ?? 0;
    return this.#free > 0 && (party === null || held < Math.max(1, this.#free));
  }

  #hold(party: Party): void {
    this.#free -= 1;
    this.#held.set(party, (this.#held.get(party) ?? 0) + 1);
    this.#wasOwn = party === null;
  }

  #release(party: Party): void {
    this.#free += 1;
    const left = (this.#held.get(party) ?? 1) - 1;
    if (left > 0) this.#held.set(party, left);
    else this.#held.delete(party);
    while (this.#passOn());
  }

  /** Returns false when no one who waits may take a connection. */
  #passOn(): boolean {
    const next = this.#next();
    const waiters = next === undefined ? undefined : this.#waiting.get(next);
    const [first] = waiters ?? [];
    if (next === undefined || waiters === undefined || first === undefined) return false;
    this.#hold(next);
    // The others of the party wait behind all other parties.
    this.#waiting.delete(next);
    if (waiters.size > 1) this.#waiting.set(next, waiters);
    first();
    return true;
  }

  #next(): Party | undefined {
    const isOwnTurn = !this.#wasOwn && this.#waiting.has(null);
    if (isOwnTurn && this.#mayTake(null)) return null;
    const client = this.#waiting.keys().find((party) => party !== null && this.#mayTake(party));
    if (client !== undefined) return client;
    return this.#waiting.has(null) && this.#mayTake(null) ? null : undefined;
  }
}
