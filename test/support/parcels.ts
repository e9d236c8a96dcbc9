/** Makes parcels of bytes in memory. */
import { createHash } from "node:crypto";
import type { BatchId } from "../../src/batch/batch.ts";
import { randomHexId } from "../../src/batch/random-id.ts";
import type {
  DeliveryCall,
  DeliveryProgress,
  Parcel,
  ParcelFile,
} from "../../src/locations/location.ts";
import { type LocationPath, parseLocationPath } from "../../src/locations/location-path.ts";

const sha256Of = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

const PIECE_BYTES = 100_003;

export function aFile(name: string, content: string | Buffer): ParcelFile {
  const bytes = Buffer.from(content);
  return {
    name,
    bytes: bytes.length,
    sha256: sha256Of(bytes),
    async *open(startByte = 0) {
      for (let at = startByte; at < bytes.length; at += PIECE_BYTES) {
        yield bytes.subarray(at, at + PIECE_BYTES);
      }
    },
  };
}

/** A file whose source breaks after so many bytes. */
export const aBrokenFile = (file: ParcelFile, afterBytes: number, reason: Error): ParcelFile => ({
  ...file,
  async *open(startByte) {
    let passed = 0;
    for await (const piece of file.open(startByte)) {
      passed += piece.length;
      if (passed > afterBytes) throw reason;
      yield piece;
    }
  },
});

export const newBatchId = () => `batch_${randomHexId()}` as BatchId;

export function aParcel(overrides: Partial<Parcel> = {}): Parcel {
  const batchId = overrides.batchId ?? newBatchId();
  return {
    deliveryId: `delivery_${randomHexId()}`,
    batchId,
    title: batchId,
    folder: null,
    files: [
      aFile("output.jsonl", '{"custom_id":"a"}\n{"custom_id":"b"}\n'),
      aFile("errors.jsonl", ""),
      aFile("run.json", JSON.stringify({ batch: batchId })),
    ],
    message: {
      subject: `Results of ${batchId}`,
      trailers: [
        ["Batch-Id", batchId],
        ["Model", "small-chat"],
        ["Lines", "2 of 2"],
      ],
    },
    ...overrides,
  };
}

/** Bytes in which every offset is told apart from its neighbours. */
export function patternOf(bytes: number): Buffer {
  const filled = Buffer.alloc(bytes);
  for (let at = 0; at + 4 <= bytes; at += 4) filled.writeUInt32LE(at, at);
  return filled;
}

export function pathOf(text: string): LocationPath {
  const parsed = parseLocationPath(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.problem}`);
  return parsed.path;
}

/** Keeps what an adapter saves, as the row of a delivery does. */
export class Progress implements DeliveryProgress {
  saved: string | null = null;

  async save(text: string): Promise<void> {
    this.saved = text;
  }
}

export const aCall = (overrides: Partial<DeliveryCall> = {}): DeliveryCall => ({
  signal: new AbortController().signal,
  progress: new Progress(),
  ...overrides,
});
