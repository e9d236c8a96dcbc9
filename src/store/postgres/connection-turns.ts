/**
 * Shares the connections of the pool among projects. In one queue, a client would wait behind all requests that others have
 * sent before: hundreds of one project are seconds for each statement, and the renewal of leases waited as long.
 *
 * A project may hold no more connections than are free, since those that wait for a row must leave some to others. The work of
 * the process itself leaves a quarter of all to clients for the same reason: while a table is locked, each of its loops and
 * journals waits on a connection.
 */
import { Sums } from "../../batch/sums.ts";
import type { Clock } from "../../clock.ts";
import { ClientTurns, type Party } from "../../resources/client-turns.ts";
import { projectOfWork } from "../../resources/client-work.ts";

/**
 * The error for work of a project whose other work has had all connections that it may hold, while more were free. The driver
 * says the same of a pool that has none.
 */
export class ProjectBusy extends Error {
  override readonly name = "ProjectBusy";

  constructor() {
    super(NO_TURN);
  }
}

const NO_TURN = "timeout exceeded when trying to connect";

/** Called with the error when no connection was free in time. */
type Waiter = (error?: Error) => void;

export interface TurnsOptions {
  readonly total: number;
  readonly waitMs: number;
  readonly clock: Pick<Clock, "after">;
}

/** The part of the connections that the work of the process does not take. */
const PART_OF_CLIENTS = 1 / 4;

export class ConnectionTurns {
  readonly #options: TurnsOptions;
  /** The most connections that the work of the process holds at a time. */
  readonly #ofProcess: number;
  readonly #held = new Sums<Party>();
  readonly #waiting = new ClientTurns<Waiter>();

  constructor(options: TurnsOptions) {
    this.#options = options;
    this.#ofProcess = options.total - Math.floor(options.total * PART_OF_CLIENTS);
  }

  get #free(): number {
    return this.#options.total - this.#held.total;
  }

  /** Resolves when a connection is free for the work that asks. The caller must dispose of the result. */
  async take(): Promise<Disposable> {
    const party = projectOfWork();
    if (!this.#waiting.has(party) && this.#mayTake(party)) this.#held.add(party, 1);
    else await this.#wait(party);
    return { [Symbol.dispose]: () => this.#release(party) };
  }

  #wait(party: Party): Promise<void> {
    const { clock, waitMs } = this.#options;
    return new Promise((resolve, reject) => {
      const waiter: Waiter = (error) => {
        cancel();
        if (error === undefined) resolve();
        else reject(error);
      };
      const cancel = clock.after(waitMs, () => {
        this.#waiting.remove(party, waiter);
        waiter(party !== null && this.#free > 0 ? new ProjectBusy() : new Error(NO_TURN));
      });
      this.#waiting.add(waiter);
    });
  }

  readonly #mayTake = (party: Party): boolean => {
    // Work that waited until enough are free would never have a turn beside many clients, and the leases would run out.
    const most = party === null ? this.#ofProcess : Math.max(1, this.#free);
    return this.#free > 0 && this.#held.of(party) < most;
  };

  #release(party: Party): void {
    this.#held.add(party, -1);
    for (let next = this.#next(); next !== null; next = this.#next()) {
      const [waiter, of] = next;
      this.#held.add(of, 1);
      waiter();
    }
  }

  #next(): readonly [Waiter, Party] | null {
    return this.#waiting.next(this.#mayTake);
  }
}
