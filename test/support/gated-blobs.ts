/** Blobs whose reads, writes and deletions can be delayed, so that a test can act between two steps. */
import { Readable } from "node:stream";
import type {
  BlobInfo,
  BlobPart,
  Blobs,
  ByteRange,
  FindGarbage,
  LinkHeaders,
  WriteHints,
} from "../../src/blobs/blobs.ts";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import type { ServiceOptions } from "./service.ts";
import { named } from "./waits.ts";

class Gate {
  readonly #waiting: { readonly key: string; readonly open: () => void }[] = [];
  readonly #arrivals = new Set<() => void>();
  #prefix: string | null = null;

  /** Delays every operation on a blob below the prefix from now on. */
  close(prefix: string): void {
    this.#prefix = prefix;
  }

  open(): void {
    this.#prefix = null;
    for (const { open } of this.#waiting.splice(0)) open();
  }

  /** Resolves to the key of the first delayed blob, once so many operations are delayed. */
  async reached(count = 1): Promise<string> {
    for (;;) {
      const [first] = this.#waiting;
      if (first !== undefined && this.#waiting.length >= count) return first.key;
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#arrivals.add(resolve);
      await named(() => `a blob below ${this.#prefix} at the gate`, promise);
      this.#arrivals.delete(resolve);
    }
  }

  async pass(key: string): Promise<void> {
    if (this.#prefix === null || !key.startsWith(this.#prefix)) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.push({ key, open: resolve });
    for (const arrived of this.#arrivals) arrived();
    await promise;
  }
}

export class GatedBlobs implements Blobs {
  readonly puts = new Gate();
  readonly reads = new Gate();
  readonly deletes = new Gate();
  readonly #blobs: Blobs;

  constructor(blobs: Blobs) {
    this.#blobs = blobs;
  }

  async put(key: string, source: AsyncIterable<Uint8Array>): Promise<{ bytes: number }> {
    await this.puts.pass(key);
    return this.#blobs.put(key, source);
  }

  async join(
    key: string,
    parts: readonly BlobPart[],
    content: AsyncIterable<Uint8Array>,
  ): Promise<{ bytes: number }> {
    await this.puts.pass(key);
    return this.#blobs.join(key, parts, content);
  }

  linkTo(key: string, headers: LinkHeaders): Promise<string | null> {
    return this.#blobs.linkTo(key, headers);
  }

  async putBytes(key: string, bytes: readonly Uint8Array[]): Promise<void> {
    await this.puts.pass(key);
    await this.#blobs.putBytes(key, bytes);
  }

  read(key: string, range?: ByteRange): Readable {
    return Readable.from(this.#readGated(key, range), { objectMode: false });
  }

  async readRange(key: string, range: ByteRange): Promise<Buffer> {
    await this.reads.pass(key);
    return this.#blobs.readRange(key, range);
  }

  list(prefix: string): AsyncIterable<BlobInfo> {
    return this.#blobs.list(prefix);
  }

  get heldByPutBytes(): number {
    return this.#blobs.heldByPutBytes;
  }

  get mayBeBehind(): boolean {
    return this.#blobs.mayBeBehind;
  }

  get maxReadsAhead(): number {
    return this.#blobs.maxReadsAhead;
  }

  get writeHints(): WriteHints {
    return this.#blobs.writeHints;
  }

  async delete(...keys: readonly string[]): Promise<void> {
    for (const key of keys) await this.deletes.pass(key);
    await this.#blobs.delete(...keys);
  }

  removeUnfinished(findGarbage: FindGarbage): Promise<void> {
    return this.#blobs.removeUnfinished(findGarbage);
  }

  async deleteAll(prefix: string): Promise<void> {
    await this.deletes.pass(prefix);
    await this.#blobs.deleteAll(prefix);
  }

  ping(): Promise<void> {
    return this.#blobs.ping();
  }

  async *#readGated(key: string, range?: ByteRange) {
    await this.reads.pass(key);
    yield* this.#blobs.read(key, range);
  }
}

/** Puts blobs of a test around those of a service, which opens them with `open`. */
export function blobsAround<Kind extends Blobs>(Around: new (blobs: Blobs) => Kind) {
  let around: Kind | null = null;
  const open: NonNullable<ServiceOptions["openStorage"]> = async (config, deps) => {
    const opened = await openStorage(config, deps);
    if (!opened.ok) return opened;
    around = new Around(opened.blobs);
    return { ...opened, blobs: around };
  };
  const blobs = (): Kind => {
    if (around === null) throw new Error("the service has not started");
    return around;
  };
  return { open, blobs };
}
