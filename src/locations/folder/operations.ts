/**
 * Bounds how many threads wait for the file systems of locations. A share whose server is away answers no operation, and no
 * operation can be cancelled: each keeps one of the four threads that Node has for all files. Four of them would stop uploads,
 * results and journals, wherever those are.
 *
 * A location has one operation under way, and all together have two, so two threads are always left. An operation that takes
 * too long is given up, and the others of its location fail at once until it ends.
 */
import type { FileHandle } from "node:fs/promises";
import type { Clock } from "../../clock.ts";
import { Semaphore } from "../../resources/semaphore.ts";
import { LocationError } from "../location.ts";

const AT_ONCE = 2;
/** The longest time for an operation. A share may take minutes to sync a large file. */
const PATIENCE_MS = 5 * 60 * 1000;

/** Those of all locations of the process. */
const all = new Semaphore(AT_ONCE);

/** Carries out an operation beside those of the locations, when its turn comes. It may never end. */
export const onSharedThread = <T>(operate: () => Promise<T>): Promise<T> => all.run(operate);

export class Operations {
  readonly #name: string;
  readonly #clock: Pick<Clock, "after">;
  readonly #own = new Semaphore(1);
  /** The operations that were given up and have not ended. */
  #overdueCount = 0;

  /** `name` is the name of the location. */
  constructor(name: string, clock: Pick<Clock, "after">) {
    this.#name = name;
    this.#clock = clock;
  }

  /**
   * Carries an operation out when its turn comes. Throws a {@link LocationError} when that takes too long; `undo` then gets the
   * result, if there is ever one.
   */
  run<T>(operate: () => Promise<T>, undo: (result: T) => Promise<unknown> = nothing): Promise<T> {
    if (this.#overdueCount > 0) return Promise.reject(this.#silent());
    return this.#run(operate, { undo, isAlways: false });
  }

  /** Closes what is open, whenever its turn comes. No caller waits for it at a share that is away. */
  async close(handle: Pick<FileHandle, "close">): Promise<void> {
    const isAway = this.#overdueCount > 0;
    const operate = () => handle.close();
    const closed = this.#run(operate, { undo: nothing, isAlways: true }).catch((error: unknown) => {
      if (!isAway && !(error instanceof LocationError)) throw error;
    });
    if (!isAway) await closed;
  }

  /** `isAlways` says whether the operation is carried out even when it was given up before its turn. */
  #run<T>(
    operate: () => Promise<T>,
    { undo, isAlways }: { undo: (result: T) => Promise<unknown>; isAlways: boolean },
  ): Promise<T> {
    return new Promise((resolve, reject) => {
      let isGivenUp = false;
      const start = async () => {
        // It must not happen behind the back of a later attempt.
        if (isGivenUp && !isAlways) return;
        const result = await operate();
        if (isGivenUp) await undo(result);
        else resolve(result);
      };
      const cancel = this.#clock.after(PATIENCE_MS, () => {
        isGivenUp = true;
        this.#overdueCount++;
        reject(this.#silent());
      });
      const end = () => {
        cancel();
        if (isGivenUp) this.#overdueCount--;
      };
      void this.#own
        .run(() => all.run(start))
        .catch(reject)
        .finally(end);
    });
  }

  #silent(): LocationError {
    return new LocationError("unavailable", `the folder of ${this.#name} does not answer`);
  }
}

const nothing = async () => {};

/** A file of a location that is open. */
export class OpenFile implements AsyncDisposable {
  readonly #handle: FileHandle;
  readonly #operations: Operations;

  constructor(handle: FileHandle, operations: Operations) {
    this.#handle = handle;
    this.#operations = operations;
  }

  stat() {
    return this.#operations.run(() => this.#handle.stat());
  }

  read(buffer: Buffer, position: number) {
    return this.#operations.run(() => this.#handle.read(buffer, 0, buffer.length, position));
  }

  writev(pieces: readonly Uint8Array[]) {
    return this.#operations.run(() => this.#handle.writev(pieces));
  }

  appendFile(bytes: Uint8Array) {
    return this.#operations.run(() => this.#handle.appendFile(bytes));
  }

  sync() {
    return this.#operations.run(() => this.#handle.sync());
  }

  close(): Promise<void> {
    return this.#operations.close(this.#handle);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
