/**
 * One budget for what is held in memory of the bodies of requests and of answers.
 *
 * What counts is what has come, not what was announced. Bytes that have come are counted at once; whoever holds them
 * then waits until there is room before more is read, so the budget is passed by one piece of each connection at the
 * most. Three purposes have a part each, because they wait for one another: a line keeps its request until its answer
 * is there, and an answer stays until the journal is written.
 *
 * - Nothing waits for ever: where there is no room, one of those that wait may go on all the same until it has let go of
 *   what it holds, and then the next one. This also lets in what is larger than its part.
 * - One owner never takes all: he may hold twice what is free for one more (dynamic thresholds, Choudhury and Hahne
 *   1998), so alone two thirds, and two of them two fifths each. What is small is let through as long as there is any
 *   room: it is not who fills the memory.
 */

/** Bodies of clients' requests, lines of batches, and answers to lines. */
export const MEMORY_PURPOSES = ["requests", "lines", "answers"] as const;
export type MemoryPurpose = (typeof MEMORY_PURPOSES)[number];

/** Of the budget. */
const SHARES: Readonly<Record<MemoryPurpose, number>> = {
  requests: 1 / 2,
  lines: 1 / 4,
  answers: 1 / 4,
};
/** Of what is free, that one owner may hold. */
const FAIR_MULTIPLE = 2;
const SMALL_BYTES = 64 * 1024;

export class MemoryBudget {
  readonly #parts: Readonly<Record<MemoryPurpose, Part>>;

  /** Asked each time, as the configuration may be loaded again. */
  constructor(limitBytes: () => number) {
    const partFor = (purpose: MemoryPurpose) => new Part(() => limitBytes() * SHARES[purpose]);
    this.#parts = {
      requests: partFor("requests"),
      lines: partFor("lines"),
      answers: partFor("answers"),
    };
  }

  /** Room for one thing of a project, which holds nothing yet. */
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

/** What one thing holds. */
export class Room implements Disposable {
  readonly #part: Part;
  readonly owner: string;
  bytes = 0;

  constructor(part: Part, owner: string) {
    this.#part = part;
    this.owner = owner;
  }

  /** So many bytes have come. Null when more may come, else when it may. */
  add(bytes: number): Promise<void> | null {
    return this.#part.add(this, bytes);
  }

  /** It holds nothing any more. It may be used again. */
  release(): void {
    this.#part.release(this);
  }

  [Symbol.dispose](): void {
    this.release();
  }
}

class Part {
  readonly #limitBytes: () => number;
  readonly #ownedBytes = new Map<string, number>();
  /** Those that wait, in the order in which they began to. */
  readonly #waiting = new Map<Room, PromiseWithResolvers<void>>();
  /** The one that may go on although there is no room. */
  #exempt: Room | null = null;
  heldBytes = 0;

  constructor(limitBytes: () => number) {
    this.#limitBytes = limitBytes;
  }

  get isFull(): boolean {
    return this.heldBytes >= this.#limitBytes();
  }

  add(room: Room, bytes: number): Promise<void> | null {
    room.bytes += bytes;
    this.heldBytes += bytes;
    this.#ownedBytes.set(room.owner, (this.#ownedBytes.get(room.owner) ?? 0) + bytes);
    const waiting = this.#waiting.get(room);
    if (waiting !== undefined) return waiting.promise;
    if (this.#admits(room)) return null;
    const wait = Promise.withResolvers<void>();
    this.#waiting.set(room, wait);
    return wait.promise;
  }

  release(room: Room): void {
    const leftBytes = (this.#ownedBytes.get(room.owner) ?? 0) - room.bytes;
    if (leftBytes > 0) this.#ownedBytes.set(room.owner, leftBytes);
    else this.#ownedBytes.delete(room.owner);
    this.heldBytes -= room.bytes;
    room.bytes = 0;
    if (this.#exempt === room) this.#exempt = null;
    this.#letOn(room);
    for (const waiting of this.#waiting.keys()) if (this.#admits(waiting)) this.#letOn(waiting);
  }

  #admits(room: Room): boolean {
    const freeBytes = this.#limitBytes() - this.heldBytes;
    const ownedBytes = this.#ownedBytes.get(room.owner) ?? 0;
    const isFair = room.bytes <= SMALL_BYTES || ownedBytes <= FAIR_MULTIPLE * freeBytes;
    if (freeBytes > 0 && isFair) return true;
    this.#exempt ??= room;
    return this.#exempt === room;
  }

  #letOn(room: Room): void {
    const wait = this.#waiting.get(room);
    this.#waiting.delete(room);
    wait?.resolve();
  }
}
