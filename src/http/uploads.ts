/** The routes of uploads. */
import type { Idempotency } from "../api/idempotency.ts";
import type { CompletedUpload, Completion, UploadRequest, Uploads } from "../api/uploads.ts";
import type { UntrustedId } from "../batch/batch.ts";
import { CompleteUpload, CreateUpload } from "../contract/upload.ts";
import type { Upload } from "../store/uploads.ts";
import { parseBody } from "./body.ts";
import { abortedByClient } from "./connection.ts";
import { scopedIdOf } from "./context.ts";
import { filenameInPath } from "./filename.ts";
import { type Form, readForm } from "./form.ts";
import { answerOnce, asking } from "./idempotency.ts";
import { answerJson, readJson, readJsonInto, roomFor, toAsciiJson } from "./json.ts";
import { presentUpload, presentUploadPart } from "./present.ts";
import type { Routes } from "./routes.ts";
import { originOf } from "./track.ts";

export interface UploadRoutesDeps {
  readonly uploads: Uploads;
  readonly idempotency: Idempotency;
}

export function mountUploads(app: Routes, { uploads, idempotency }: UploadRoutesDeps): void {
  app.post("/v1/uploads", async (c) => {
    const request = uploadRequest(await readJson(c));
    return answerOnce<Upload>(c, idempotency, {
      create: (receiptFor) => uploads.create(c.get("project"), request, receiptFor),
      present: (upload) => toAsciiJson(presentUpload(upload)),
      ...asking(request),
    });
  });

  app.post("/v1/uploads/:id/parts", async (c) => {
    const part = await readForm(c.env.incoming, PART_FORM);
    return answerJson(c, presentUploadPart(await uploads.addPart(scopedIdOf(c), part)));
  });

  app.post("/v1/uploads/:id/complete", async (c) => {
    // The list of parts stays in memory while the completion waits for another one of the upload.
    using room = roomFor(c);
    const asked = completionOf(await readJsonInto(room, c, COMPLETION_BODY));
    const disconnected = abortedByClient(c.env.outgoing);
    const completion = { ...asked, origin: originOf(c), disconnected };
    // The server takes a while to join gigabytes, and the silent connection must not time out meanwhile.
    c.env.outgoing.setTimeout(0);
    return await answerOnce<CompletedUpload>(c, idempotency, {
      create: async (receiptFor) => {
        const completed = await uploads.complete(scopedIdOf(c), completion, receiptFor);
        c.set("fileChange", { action: "file.create", id: completed.file.id });
        return completed;
      },
      present: ({ upload, file }) => toAsciiJson(presentUpload(upload, file)),
      ...asking(asked),
    });
  });

  // The body is never read, as with batches.
  app.post("/v1/uploads/:id/cancel", async (c) =>
    answerJson(c, presentUpload(await uploads.cancel(scopedIdOf(c)))),
  );
}

/** The longest body. The ids of as many parts as an upload may have take less than half of it. */
const COMPLETION_BODY = { maxBytes: 1024 * 1024, param: "part_ids" };

const PART_FORM: Form<null> = { content: "data", fields: [], detailsFrom: () => null };

function uploadRequest(json: unknown): UploadRequest {
  const body = parseBody(CreateUpload, json);
  return {
    filename: filenameInPath(body.filename),
    purpose: body.purpose,
    bytes: body.bytes,
    mimeType: body.mime_type,
    fileExpiresAfterSeconds: body.expires_after?.seconds ?? null,
  };
}

function completionOf(json: unknown): Omit<Completion, "origin" | "disconnected"> {
  const body = parseBody(CompleteUpload, json);
  return { partIds: body.part_ids as UntrustedId<"part">[], md5: body.md5 ?? null };
}
