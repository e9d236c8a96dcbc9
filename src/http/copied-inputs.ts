/** Requests that name a file in a location. It is copied before they are answered, which may take long. */

import type { BatchRequest } from "../api/batch-request.ts";
import type { Batches } from "../api/batches.ts";
import type { CopiedInputs, InputPlace } from "../api/copied-inputs.ts";
import type { Files } from "../api/files.ts";
import type { Idempotency } from "../api/idempotency.ts";
import type { Batch, StoredFile } from "../batch/batch.ts";
import { CopyFile } from "../contract/file.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import { assertStillGood } from "./auth.ts";
import { parseBody } from "./body.ts";
import { abortedByClient, allowSilence } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { unsupportedForm } from "./form.ts";
import { answerOnce } from "./idempotency.ts";
import { readJson, toAsciiJson } from "./json.ts";
import { presentFile } from "./present.ts";
import { originOf } from "./track.ts";

export interface CopyDeps {
  readonly batches: Batches;
  readonly copiedInputs: CopiedInputs;
  readonly files: Pick<Files, "delete">;
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
  const json = await readJson(c);
  // A client that has sent its form with the wrong type needs to read about forms.
  if (typeof json !== "object" || json === null || !("x_batchd" in json)) throw notAForm(c);
  const body = parseBody(CopyFile, json);
  const place = body.x_batchd.input;
  const asked = { place, expiresAfterSeconds: body.expires_after?.seconds ?? null };
  const request = { ...asked, origin: originOf(c), disconnected: patientSignal(c) };
  return answerOnce<StoredFile>(c, idempotency, {
    create: (receiptFor) => copiedInputs.copy(c.get("project"), request, receiptFor),
    present: (file) => toAsciiJson(presentFile(file)),
    askedFor: () => asked,
    reread: async () => asked,
  });
}

const notAForm = (c: AppContext) => unsupportedForm(c.req.header("content-type") ?? "");

interface OfPlace {
  readonly place: InputPlace;
  readonly request: Omit<BatchRequest, "inputFileId">;
  readonly receiptFor: ReceiptFor<Batch> | undefined;
}

/** Copies the input, and makes a batch of it. The copy is not kept when the batch is refused. */
export async function createOfPlace(
  c: AppContext,
  { place, request, receiptFor }: OfPlace,
  { batches, copiedInputs, files }: CopyDeps,
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
    await files.delete({ project, id: input.id }).catch(() => {});
    throw error;
  }
}

/** Nothing is sent while the copy is made, so the limit on silence is lifted. */
function patientSignal(c: AppContext): AbortSignal {
  allowSilence(c.env.incoming);
  return abortedByClient(c.env.outgoing);
}
