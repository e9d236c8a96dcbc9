/** Real blobs in a temporary folder, for tests that read files without a server. */
import { join } from "node:path";
import type { StoredFile } from "../../src/batch/batch.ts";
import { openDiskBlobs } from "../../src/blobs/disk.ts";
import { aFile, temporaryFolder } from "./store-builders.ts";

export async function openBlobFolder() {
  const dir = temporaryFolder("batchd-blobs-");
  const blobs = await openDiskBlobs(join(dir.path, "blobs"));
  /** Stores a file with this content. */
  const store = async (content: string | Buffer): Promise<StoredFile> => {
    const bytes = Buffer.from(content);
    const file = aFile({ bytes: bytes.length });
    await blobs.putBytes(file.blobKey, [bytes]);
    return file;
  };
  return { blobs, store, [Symbol.dispose]: () => dir[Symbol.dispose]() };
}
