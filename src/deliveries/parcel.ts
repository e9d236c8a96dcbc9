/** Puts the results of a batch together for a delivery: the files, the record of the run, and the message of a commit. */
import { createHash } from "node:crypto";
import type { Batch, StoredFile } from "../batch/batch.ts";
import type { BlobIntents } from "../blobs/blob-intents.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { Parcel, ParcelFile } from "../locations/location.ts";
import { parseLocationPath } from "../locations/location-path.ts";
import type { ClaimedDelivery } from "../store/deliveries.ts";
import { CONVERTED_PREFIX, convert, openerOf } from "./converted-files.ts";

/** The error for a batch that was deleted while its results were delivered. */
export class BatchGone extends Error {
  override readonly name = "BatchGone";
}

export interface ParcelDeps {
  readonly blobs: Blobs;
  readonly intents: BlobIntents;
  /** Returns `run.json` of a batch; null when the batch is gone. */
  readonly runRecord: (batch: Batch) => Promise<Buffer | null>;
  readonly findInput: (batch: Batch) => Promise<StoredFile | null>;
}

/**
 * Makes a parcel and passes it to `use`. A file without lines is left out. The files that were made for it are removed when
 * `use` ends.
 */
export async function withParcel<T>(
  claimed: ClaimedDelivery,
  { deps, signal }: { readonly deps: ParcelDeps; readonly signal: AbortSignal },
  use: (parcel: Parcel) => Promise<T>,
): Promise<T> {
  const { batch, delivery } = claimed;
  const record = await deps.runRecord(batch);
  if (record === null) throw new BatchGone(`the batch ${batch.id} is gone`);
  const manifest = fileOf("run.json", record);
  const input = await deps.findInput(batch);
  return withResults(claimed, { deps, signal }, (results) =>
    use({
      deliveryId: delivery.id,
      batchId: batch.id,
      title: titleOf(batch),
      folder: folderOf(claimed),
      files: [...results, manifest],
      message: messageOf(batch, input),
    }),
  );
}

const NAMES = ["output", "errors"] as const;

async function withResults<T>(
  { delivery, lease, output, error }: ClaimedDelivery,
  { deps, signal }: { readonly deps: ParcelDeps; readonly signal: AbortSignal },
  use: (files: readonly ParcelFile[]) => Promise<T>,
): Promise<T> {
  const { blobs, intents } = deps;
  const { format } = delivery;
  const results = [output, error].flatMap((file, i) =>
    file === null ? [] : [{ file, name: `${NAMES[i]}.${format}` }],
  );
  if (format === "jsonl") {
    return use(
      results.map(({ file: { blobKey, bytes, sha256 }, name }) => ({
        name,
        bytes,
        sha256,
        open: openerOf(blobs, blobKey, bytes),
      })),
    );
  }
  const conversions = results.map(({ file, name }) => {
    const blobKey = `${CONVERTED_PREFIX}${delivery.id}/${lease.epoch}-${name}`;
    return { file, name, format, blobKey };
  });
  let used: { readonly value: T } | null = null;
  await intents.during(
    conversions.map(({ blobKey }) => blobKey),
    async () => {
      const files: ParcelFile[] = [];
      for (const each of conversions) files.push(await convert(each, { blobs, signal }));
      used = { value: await use(files) };
      // No row is to name the blobs, so they are removed.
      return null;
    },
  );
  if (used === null) throw new Error("a parcel was not used");
  return (used as { readonly value: T }).value;
}

const fileOf = (name: string, content: Buffer): ParcelFile => ({
  name,
  bytes: content.length,
  sha256: createHash("sha256").update(content).digest("hex"),
  async *open(startByte = 0) {
    if (startByte < content.length) yield content.subarray(startByte);
  },
});

const titleOf = ({ metadata, id }: Batch): string => metadata?.["name"] ?? id;

/** The path was checked when the delivery was asked for. A later version may be stricter. */
function folderOf({ delivery: { path } }: ClaimedDelivery): Parcel["folder"] {
  if (path === null) return null;
  const parsed = parseLocationPath(path);
  if (!parsed.ok) throw new Error(`the path of a delivery ${parsed.problem}`);
  return parsed.path;
}

function messageOf(batch: Batch, input: StoredFile | null): Parcel["message"] {
  const { id, model, counts, status, inputFileId } = batch;
  const dataset = input === null ? inputFileId : `${input.filename} (${input.id})`;
  return {
    subject: `Results of ${titleOf(batch)}`,
    trailers: [
      ["Batch-Id", id],
      ["Batch-Status", status],
      ...(model === null ? [] : ([["Model", model]] as const)),
      ["Dataset", dataset],
      ["Lines", `${counts.total} (${counts.completed} completed, ${counts.failed} failed)`],
    ],
  };
}
