/**
 * Results in another form than the files have them. A delivery needs to know their size and their hash before it begins, and
 * a repeated upload needs the same bytes. So they are written as blobs first, which an intent keeps from the sweep while the
 * attempt lasts. They are removed with it, and those of a process that died are swept.
 */
import { createHash } from "node:crypto";
import type { StoredFile } from "../batch/batch.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { TableFormat } from "../contract/results.ts";
import { converted } from "../formats/converted.ts";
import type { ParcelFile } from "../locations/location.ts";
import { workFor } from "../resources/client-work.ts";
import { Semaphore } from "../resources/semaphore.ts";

export const CONVERTED_PREFIX = "deliveries/";

export interface Conversion {
  readonly file: StoredFile;
  readonly format: TableFormat;
  /** The key of the blob to be written, whose intent is declared. */
  readonly blobKey: string;
  /** The name of the file in the parcel. */
  readonly name: string;
}

interface ConversionDeps {
  readonly blobs: Blobs;
  readonly signal: AbortSignal;
}

/**
 * The conversions at once, of all deliveries together: each has a thread and takes some 150 MB. The others wait. Those of large
 * files last for minutes, so further projects have one each.
 */
const OF_ANY_PROJECT = 2;
const MOST = 4;
const conversions = new Semaphore(OF_ANY_PROJECT, MOST);

export const convert = (conversion: Conversion, deps: ConversionDeps): Promise<ParcelFile> =>
  workFor(conversion.file.project, () => conversions.run(() => convertNow(conversion, deps)));

async function convertNow(
  { file, format, blobKey, name }: Conversion,
  { blobs, signal }: ConversionDeps,
): Promise<ParcelFile> {
  const hash = createHash("sha256");
  // Without the range, the rows that a shorter blob has lost would be left out in silence.
  const whole = { start: 0, end: file.bytes };
  async function* hashed() {
    for await (const piece of converted(blobs.read(file.blobKey, whole), format, signal)) {
      hash.update(piece);
      yield piece;
    }
  }
  const { bytes } = await blobs.put(blobKey, hashed());
  return { name, bytes, sha256: hash.digest("hex"), open: openerOf(blobs, blobKey, bytes) };
}

/** Returns what reads a blob from any byte on. */
export const openerOf =
  (blobs: Blobs, key: string, bytes: number) =>
  (startByte = 0): AsyncIterable<Buffer> =>
    startByte >= bytes ? nothing() : blobs.read(key, { start: startByte, end: bytes });

async function* nothing(): AsyncGenerator<Buffer> {}
