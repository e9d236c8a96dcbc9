/** Requests that name a file in a location. It is copied before they are answered, which may take long. */

import type { BatchRequest } from "../api/batch-request.ts";
import type { Batches } from "../api/batches.ts";
import type { CopiedInputs, InputPlace } from "../api/copied-inputs.ts";
import type { Idempotency } from "../api/idempotency.ts";
import type { Batch, StoredFile } from "../batch/batch.ts";
import { CopyFile } from "../contract/file.ts";
import { PublicError } from "../errors.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import { truncate } from "../text/truncate.ts";
import { assertStillGood } from "./auth.ts";
import { parseBody } from "./body.ts";
import { abortedByClient, allowSilence } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { answerOnce, asking } from "./idempotency.ts";
import { readJson, toAsciiJson } from "./json.ts";
import { presentFile } from "./present.ts";
import { originOf } from "./track.ts";

export interface CopyDeps {
  readonly batches: Batches;
  readonly copiedInputs: CopiedInputs;
}

export const isJson = (c: AppContext): boolean =>
  /^application\/json\b/i.test(c.req.header("content-type") ?? "");

/** Answers `POST /v1/files` with a body of JSON. */
export async function createCopy(
  c: AppContext,
  {
    copiedInputs,
    idempotency,
  }: { readonly copiedInputs: CopiedInputs; readonly idempotency: Idempotency },
): Promise<Response> {
  const json = await readJson(c).catch((error: unknown) => {
    throw isNoJson(error) ? notAForm(c, error) : error;
  });
  if (typeof json !== "object" || json === null || !("x_batchd" in json)) throw notAForm(c);
  const body = parseBody(CopyFile, json);
  const place = body.x_batchd.input;
  const asked = { place, expiresAfterSeconds: body.expires_after?.seconds ?? null };
  const request = { ...asked, origin: originOf(c), disconnected: patientSignal(c) };
  return answerOnce<StoredFile>(c, idempotency, {
    create: (receiptFor) => copiedInputs.copy(c.get("project"), request, receiptFor),
    present: (file) => toAsciiJson(presentFile(file)),
    ...asking(asked),
  });
}

/** Whether the body is no JSON, or larger than any request to copy. */
const isNoJson = (error: unknown): boolean =>
  error instanceof PublicError &&
  (error.error === "body_too_large" || (error.error === "invalid_request" && error.param === null));

/** Most often a form, or a file itself, that was sent with the type of JSON. Its client needs to read about forms. */
const notAForm = (c: AppContext, cause?: unknown) =>
  new PublicError(
    "invalid_request",
    `A file is uploaded as multipart/form-data, not as '${truncate(c.req.header("content-type") ?? "")}'. (HINT: HTTP libraries set the type of a form by themselves. JSON is only for a file to copy from a location, which 'x_batchd.input' names.)`,
    { cause },
  );

interface OfPlace {
  readonly place: InputPlace;
  readonly request: Omit<BatchRequest, "inputFileId">;
  readonly receiptFor: ReceiptFor<Batch> | undefined;
}

/** Copies the input, and makes a batch of it. The copy is not kept when the batch is refused. */
export async function createOfPlace(
  c: AppContext,
  { place, request, receiptFor }: OfPlace,
  { batches, copiedInputs }: CopyDeps,
): Promise<Batch> {
  const project = c.get("project");
  batches.assertAcceptable(request);
  const { origin } = request;
  const input = await copiedInputs.copy(project, {
    place,
    origin,
    disconnected: patientSignal(c),
    expiresAfterSeconds: null,
  });
  try {
    // The copy may have taken half an hour.
    assertStillGood(c);
    const batch = await batches.create(project, { ...request, inputFileId: input.id }, receiptFor);
    c.set("fileChange", { action: "file.create", id: input.id });
    return batch;
  } catch (error) {
    await copiedInputs.discard(input, error).catch(() => {});
    throw error;
  }
}

/** Nothing is sent while the copy is made, so the limit on silence is lifted. */
function patientSignal(c: AppContext): AbortSignal {
  allowSilence(c.env.incoming);
  return abortedByClient(c.env.outgoing);
}
