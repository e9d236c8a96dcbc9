/**
 * Limits the memory for the bodies of requests and answers, with one budget for all of them.
 *
 * The budget counts bytes that have come, never announced ones. It counts them at once, and their owner then waits for
 * room before it reads more. So the excess is at most one piece of each connection. Three purposes have a part each,
 * because they wait for one another. A line keeps its request until its answer is there, and an answer stays until the
 * journal is written.
 *
 * - No owner may wait for ever. Without room, one waiting room continues until it is released, and then the next one.
 *   This also admits a body that is larger than its part.
 * - No owner may take everything. It may hold twice the free bytes (dynamic thresholds, Choudhury and Hahne 1998): two
 *   thirds for a single owner, two fifths each for two. Small bodies pass as long as there is any room, because they do
 *   not fill the memory.
 */

import { Sums } from "../batch/sums.ts";

/** The purposes: bodies of clients' requests, lines of batches, and answers to lines. */
export const MEMORY_PURPOSES = ["requests", "lines", "answers"] as const;
export type MemoryPurpose = (typeof MEMORY_PURPOSES)[number];

/** The part of the budget that each purpose has. */
const SHARES: Readonly<Record<MemoryPurpose, number>> = {
  requests: 1 / 2,
  lines: 1 / 4,
  answers: 1 / 4,
};
/** An owner may hold this many times the free bytes. */
const FAIR_MULTIPLE = 2;
const SMALL_BYTES = 64 * 1024;

export class MemoryBudget {
  readonly #parts: Readonly<Record<MemoryPurpose, Part>>;

  /** `limitBytes` is called each time, because a reload may change the configuration. */
  constructor(limitBytes: () => number) {
    const partFor = (purpose: MemoryPurpose) => new Part(() => limitBytes() * SHARES[purpose]);
    this.#parts = {
      requests: partFor("requests"),
      lines: partFor("lines"),
      answers: partFor("answers"),
    };
  }

  /** Opens an empty room for one body of a project. */
  open(purpose: MemoryPurpose, owner: string): Room {
    return new Room(this.#parts[purpose], owner);
  }

  heldBytes(purpose: MemoryPurpose): number {
    return this.#parts[purpose].heldBytes;
  }

  isFull(purpose: MemoryPurpose): boolean {
    return this.#parts[purpose].isFull;
  }
}

/** The memory that one body holds. */
export class Room implements Disposable {
  readonly #part: Part;
  readonly owner: string;
  bytes = 0;

  constructor(part: Part, owner: string) {
    this.#part = part;
    this.owner = owner;
  }

  /** Adds bytes that have come. Returns null when more may come, else a promise of room for them. */
  add(bytes: number): Promise<void> | null {
    return this.#part.add(this, bytes);
  }

  /** Whether the owner holds most of what is held, and leaves room for the others. */
  get isOwnersExcess(): boolean {
    return this.#part.isExcessOf(this.owner);
  }

  /** Releases all bytes. The room may be used again. */
  release(): void {
    this.#part.release(this);
  }

  [Symbol.dispose](): void {
    this.release();
  }
}

class Part {
  readonly #limitBytes: () => number;
  readonly #bytes = new Sums<string>();
  /** The waiting rooms, first come first served. */
  readonly #waiting = new Map<Room, PromiseWithResolvers<void>>();
  /** The one room that may continue without free memory. */
  #exempt: Room | null = null;

  constructor(limitBytes: () => number) {
    this.#limitBytes = limitBytes;
  }

  get heldBytes(): number {
    return this.#bytes.total;
  }

  get isFull(): boolean {
    return this.heldBytes >= this.#limitBytes();
  }

  isExcessOf(owner: string): boolean {
    return !this.isFull && this.#bytes.of(owner) > this.heldBytes / 2;
  }

  add(room: Room, bytes: number): Promise<void> | null {
    room.bytes += bytes;
    this.#bytes.add(room.owner, bytes);
    const waiting = this.#waiting.get(room);
    if (waiting !== undefined) return waiting.promise;
    if (this.#admits(room)) return null;
    const wait = Promise.withResolvers<void>();
    this.#waiting.set(room, wait);
    return wait.promise;
  }

  release(room: Room): void {
    this.#bytes.add(room.owner, -room.bytes);
    room.bytes = 0;
    if (this.#exempt === room) this.#exempt = null;
    this.#resume(room);
    for (const waiting of this.#waiting.keys()) if (this.#admits(waiting)) this.#resume(waiting);
  }

  #admits(room: Room): boolean {
    const freeBytes = this.#limitBytes() - this.heldBytes;
    const mostBytes = FAIR_MULTIPLE * freeBytes;
    const isFair = room.bytes <= SMALL_BYTES || this.#bytes.of(room.owner) <= mostBytes;
    if (freeBytes > 0 && isFair) return true;
    this.#exempt ??= room;
    return this.#exempt === room;
  }

  #resume(room: Room): void {
    const wait = this.#waiting.get(room);
    this.#waiting.delete(room);
    wait?.resolve();
  }
}
