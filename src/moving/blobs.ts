/**
 * Copies the blobs that rows name, and reads each one again from the target to compare hashes. A blob without a row is
 * not copied: its writer is gone, so it is garbage.
 *
 * Blobs never change, and appear whole. So what an earlier run has copied needs no record of its own: a blob that is in
 * the target is read and compared, and copied again only if it differs.
 */
import { createHash } from "node:crypto";
import { BlobNotFound, type Blobs, BlobTooShort } from "../blobs/blobs.ts";
import type { CopiedTable, CopyStore } from "../store/copying.ts";
import type { BlobProgress, Work } from "./progress.ts";
import { pagesOf } from "./rows.ts";

/** Small blobs wait for the latency of a bucket. Each copy of a large one may hold three parts in memory. */
const COPIES_AT_ONCE = 8;

const TABLES_WITH_BLOBS = ["files", "uploadParts", "segments"] as const satisfies CopiedTable[];

/** A blob, as its row describes it. */
export interface NamedBlob {
  readonly key: string;
  readonly bytes: number;
  /** It is null where the row has none. */
  readonly sha256: string | null;
  /** Whether a client may ask for it. The sweep may have removed the bytes of a deleted file before its row. */
  readonly isWanted: boolean;
  /** Whether its row lacks the checksum that segments have since version 0.2. */
  readonly lacksChecksum: boolean;
}

export interface Places {
  readonly source: Blobs;
  readonly target: Blobs;
}

export async function* namedBlobs(store: CopyStore): AsyncGenerator<NamedBlob> {
  for (const table of TABLES_WITH_BLOBS) {
    for await (const rows of pagesOf(store, table)) {
      for (const row of rows) {
        yield {
          key: String(row["blobKey"]),
          bytes: Number(row["bytes"]),
          sha256: table === "files" ? String(row["sha256"]) : null,
          isWanted: table !== "files" || row["deletedAtMs"] === null,
          lacksChecksum: table === "segments" && row["crc32"] === null,
        };
      }
    }
  }
}

export async function countBlobs(store: CopyStore): Promise<Work & { lackingChecksum: number }> {
  const work = { count: 0, bytes: 0, lackingChecksum: 0 };
  for await (const { bytes, lacksChecksum } of namedBlobs(store)) {
    work.count++;
    work.bytes += bytes;
    if (lacksChecksum) work.lackingChecksum++;
  }
  return work;
}

/** Returns sentences about blobs that are missing or damaged in the source. The target then has the same fault. */
export async function copyBlobs(
  blobs: AsyncGenerator<NamedBlob>,
  places: Places,
  progress: BlobProgress,
): Promise<string[]> {
  const present = await sizesIn(places.target);
  const faults: string[] = [];
  let isFailing = false;
  const copyNext = async () => {
    for (;;) {
      const { done, value: blob } = await blobs.next();
      if (done === true || isFailing) return;
      const { fault, bytes, wasThere } = await copyOne(blob, places, present.get(blob.key));
      if (fault !== null) faults.push(fault);
      if (bytes !== null) progress.verified(bytes, wasThere);
    }
  };
  const copies = Array.from({ length: COPIES_AT_ONCE }, () =>
    copyNext().catch((error: unknown) => {
      // The others end with the blob that they are at.
      isFailing = true;
      throw error;
    }),
  );
  await Promise.allSettled(copies);
  await Promise.all(copies);
  progress.sayState();
  return faults;
}

async function sizesIn(blobs: Blobs): Promise<ReadonlyMap<string, number>> {
  const sizes = new Map<string, number>();
  for await (const { key, bytes } of blobs.list("")) sizes.set(key, bytes);
  return sizes;
}

interface Copied {
  readonly fault: string | null;
  /** The number of verified bytes; null for a blob that the source does not have. */
  readonly bytes: number | null;
  readonly wasThere: boolean;
}

async function copyOne(
  blob: NamedBlob,
  { source, target }: Places,
  presentBytes: number | undefined,
): Promise<Copied> {
  const { key } = blob;
  if (presentBytes === blob.bytes) {
    const expected = blob.sha256 ?? (await hashOf(source, key));
    const found = expected === null ? null : await hashOf(target, key);
    if (found !== null && found === expected) {
      return { fault: null, bytes: blob.bytes, wasThere: true };
    }
  }
  if (presentBytes !== undefined) await target.delete(key);
  const sent = await send(key, source, target);
  if (sent === null) {
    const fault = blob.isWanted ? `${key} is missing in the source, and so in the target` : null;
    return { fault, bytes: null, wasThere: false };
  }
  if ((await hashOf(target, key)) !== sent.hash) {
    throw new CopyFailed(key);
  }
  return { fault: damageOf(blob, sent), bytes: sent.bytes, wasThere: false };
}

class CopyFailed extends Error {
  override readonly name = "CopyFailed";
  readonly code = "COPY_FAILED";

  constructor(key: string) {
    super(`the target has other bytes than it was sent for ${key}`);
  }
}

interface Sent {
  readonly bytes: number;
  readonly hash: string;
}

function damageOf({ key, bytes, sha256 }: NamedBlob, sent: Sent): string | null {
  if (sent.bytes === bytes && (sha256 === null || sha256 === sent.hash)) return null;
  return `${key} is damaged in the source, and copied as it is`;
}

/** Returns null if the source has no such blob. */
async function send(key: string, source: Blobs, target: Blobs): Promise<Sent | null> {
  const hash = createHash("sha256");
  const read = async function* () {
    for await (const piece of source.read(key) as AsyncIterable<Uint8Array>) {
      hash.update(piece);
      yield piece;
    }
  };
  try {
    const { bytes } = await target.put(key, read());
    return { bytes, hash: hash.digest("hex") };
  } catch (error) {
    if (error instanceof BlobNotFound) return null;
    throw error;
  }
}

/** Returns null for a blob that is missing or ends early. */
async function hashOf(blobs: Blobs, key: string): Promise<string | null> {
  const hash = createHash("sha256");
  try {
    for await (const piece of blobs.read(key) as AsyncIterable<Uint8Array>) hash.update(piece);
  } catch (error) {
    if (error instanceof BlobNotFound || error instanceof BlobTooShort) return null;
    throw error;
  }
  return hash.digest("hex");
}
