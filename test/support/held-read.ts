/** Blobs of which one read waits, so that a test can act between its order and its first byte. */
import { Readable } from "node:stream";
import type { ByteRange } from "../../src/blobs/blobs.ts";
import { GatedBlobs } from "./gated-blobs.ts";

export class HeldRead extends GatedBlobs {
  readonly reached = Promise.withResolvers<void>();
  readonly released = Promise.withResolvers<void>();
  #prefix: string | null = null;
  #rangePrefix: string | null = null;

  /** Has the next stream of a blob below the prefix wait. */
  hold(prefix: string): void {
    this.#prefix = prefix;
  }

  /** Has the next read within a blob below the prefix wait, such as one row of a journal. */
  holdRange(prefix: string): void {
    this.#rangePrefix = prefix;
  }

  override async readRange(key: string, range: ByteRange): Promise<Buffer> {
    if (this.#rangePrefix !== null && key.startsWith(this.#rangePrefix) && range.start > 0) {
      this.#rangePrefix = null;
      this.reached.resolve();
      await this.released.promise;
    }
    return super.readRange(key, range);
  }

  override read(key: string, range?: ByteRange): Readable {
    if (this.#prefix === null || !key.startsWith(this.#prefix)) return super.read(key, range);
    this.#prefix = null;
    return Readable.from(this.#readHeld(key, range), { objectMode: false });
  }

  async *#readHeld(key: string, range?: ByteRange) {
    this.reached.resolve();
    await this.released.promise;
    yield* super.read(key, range);
  }
}
