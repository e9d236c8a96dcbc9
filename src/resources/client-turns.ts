/**
 * Lets what waits for something shared take turns: the server's own work and the work of clients, and the projects among
 * the clients. So a request waits behind one of each project that waits, and never behind hundreds of one.
 */
import { projectOfWork } from "./client-work.ts";

/** The server's own work has no project. */
export type Party = string | null;

export class ClientTurns<Waiter> {
  /** What waits, by its party. The party whose turn comes next is the first that may go. */
  readonly #waiting = new Map<Party, Set<Waiter>>();
  #wasOwn = false;

  get isEmpty(): boolean {
    return this.#waiting.size === 0;
  }

  has(party: Party): boolean {
    return this.#waiting.has(party);
  }

  /** Adds what waits for the work that calls this. What waits already keeps its place. */
  add(waiter: Waiter): void {
    const party = projectOfWork();
    const waiters = this.#waiting.get(party) ?? new Set();
    this.#waiting.set(party, waiters.add(waiter));
  }

  remove(party: Party, waiter: Waiter): void {
    const waiters = this.#waiting.get(party);
    waiters?.delete(waiter);
    if (waiters?.size === 0) this.#waiting.delete(party);
  }

  /** Removes what comes next, and returns it with its party; null when nothing that waits may go. */
  next(mayGo: (party: Party) => boolean = () => true): readonly [Waiter, Party] | null {
    const party = this.#nextParty(mayGo);
    const waiters = party === undefined ? undefined : this.#waiting.get(party);
    if (party === undefined || waiters === undefined) return null;
    const [first] = waiters as ReadonlySet<Waiter>;
    waiters.delete(first as Waiter);
    // The others of the party wait behind all other parties.
    this.#waiting.delete(party);
    if (waiters.size > 0) this.#waiting.set(party, waiters);
    this.#wasOwn = party === null;
    return [first as Waiter, party];
  }

  #nextParty(mayGo: (party: Party) => boolean): Party | undefined {
    const isOwnPossible = this.#waiting.has(null) && mayGo(null);
    if (isOwnPossible && !this.#wasOwn) return null;
    const client = this.#waiting.keys().find((party) => party !== null && mayGo(party));
    return client ?? (isOwnPossible ? null : undefined);
  }
}
