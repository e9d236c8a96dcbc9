/**
 * The parts of an upload: how large one may be, how many there may be, and which of them a completion lists. The listed parts
 * must belong to the upload, come once, and have the bytes together for which the upload was created.
 */
import type { PartId, UntrustedId, UploadId } from "../batch/batch.ts";
import { PART_MAX_BYTES, UPLOAD_MAX_PARTS } from "../contract/upload.ts";
import { PublicError } from "../errors.ts";
import type { Upload, UploadPart } from "../store/uploads.ts";
import { truncate } from "../text/truncate.ts";

export interface IncomingPart {
  readonly content: AsyncIterable<Buffer>;
  /** Settles when the content has been read to its end; rejects for any fault of the request. */
  readonly details: () => Promise<unknown>;
}

/** Yields the content of a part, and throws for any fault of it or of the rest of the request. */
export async function* contentOfPart({ content, details }: IncomingPart): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const chunk of content) {
    bytes += chunk.length;
    if (bytes > PART_MAX_BYTES) {
      throw new PublicError(
        "invalid_request",
        `The part is too large: a part may have at most ${PART_MAX_BYTES} bytes.`,
        { param: "data" },
      );
    }
    yield chunk;
  }
  await details();
}

export const tooManyParts = (uploadId: UploadId) =>
  new PublicError(
    "invalid_request",
    `The upload '${uploadId}' has ${UPLOAD_MAX_PARTS} parts, and may have no more. Complete it, or begin another one with larger parts.`,
    { param: "data" },
  );

/** Holds the listed parts alone. */
export async function chosenParts(
  upload: Upload,
  pages: AsyncIterable<readonly UploadPart[]>,
  partIds: readonly UntrustedId<"part">[],
): Promise<UploadPart[]> {
  const listed = new Set(partIds);
  const known = new Map<UntrustedId<"part">, UploadPart>();
  for await (const parts of pages) {
    for (const part of parts) if (listed.has(part.id)) known.set(part.id, part);
  }
  const chosen = new Map<UntrustedId<"part">, UploadPart>();
  for (const id of partIds) {
    const part = known.get(id);
    if (part === undefined) {
      throw wrongParts(`The part '${truncate(id)}' does not belong to the upload '${upload.id}'.`);
    }
    if (chosen.has(id)) throw wrongParts(`The part '${id}' is listed more than once.`);
    chosen.set(id, part);
  }
  const inOrder = [...chosen.values()];
  const bytes = inOrder.reduce((sum, part) => sum + part.bytes, 0);
  if (bytes === upload.bytes) return inOrder;
  throw wrongParts(
    `The parts have ${bytes} bytes together, but the upload was created for ${upload.bytes} bytes.`,
  );
}

export const lostPart = (id: PartId) =>
  wrongParts(
    `The content of the part '${id}' is gone or damaged in the storage of this server. Add it again, and list the new part.`,
  );

const wrongParts = (message: string) =>
  new PublicError("invalid_request", message, { param: "part_ids" });
