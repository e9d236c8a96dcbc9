/** The routes of files. */
import type { CopiedInputs } from "../api/copied-inputs.ts";
import type { Files, ReceivedFile } from "../api/files.ts";
import type { Idempotency } from "../api/idempotency.ts";
import type { Tables } from "../api/tables.ts";
import type { StoredFile, UntrustedId } from "../batch/batch.ts";
import { FILE_PAGE, FILENAME_MAX_LENGTH, FilePurpose } from "../contract/file.ts";
import { RESULT_FORMATS } from "../contract/results.ts";
import { PublicError } from "../errors.ts";
import type { FileQuery } from "../store/files.ts";
import type { Log } from "../telemetry/log.ts";
import { shortText } from "./body.ts";
import { type AppContext, scopedIdOf } from "./context.ts";
import { createCopy, isJson } from "./copied-inputs.ts";
import { answerContent } from "./download.ts";
import { FILE_FORM, unknownPurpose } from "./file-form.ts";
import { readForm } from "./form.ts";
import { answerOnce } from "./idempotency.ts";
import { answerJson, toAsciiJson } from "./json.ts";
import { answerPage } from "./list.ts";
import { presentFile } from "./present.ts";
import { choiceParam, integerParam, textParam } from "./query.ts";
import type { Routes } from "./routes.ts";
import { answerTable } from "./table-download.ts";
import { originOf } from "./track.ts";

export interface FileRoutesDeps {
  readonly files: Files;
  readonly tables: Tables;
  readonly copiedInputs: CopiedInputs;
  readonly idempotency: Idempotency;
  readonly log: Log;
}

export function mountFiles(
  app: Routes,
  { files, tables, copiedInputs, idempotency, log }: FileRoutesDeps,
): void {
  app.post("/v1/files", async (c) => {
    if (isJson(c)) return createCopy(c, { copiedInputs, idempotency });
    const project = c.get("project");
    const form = await readForm(c.env.incoming, FILE_FORM);
    const knownPurpose = () => form.fieldBefore("purpose");
    const startedAtMs = c.get("startedAtMs");
    const request = { requestBytes: announcedBytes(c), origin: originOf(c), startedAtMs };
    const incoming = { ...form, knownPurpose, ...request };
    shortText("filename", incoming.filename, FILENAME_MAX_LENGTH);
    return answerOnce<StoredFile>(c, idempotency, {
      create: (receiptFor) => files.receive(project, incoming, receiptFor),
      present: (file) => toAsciiJson(presentFile(file)),
      askedFor: contentOf,
      reread: async () => contentOf(await files.inspect(project, incoming)),
    });
  });

  app.get("/v1/files", async (c) =>
    answerPage(c, fileQuery(c), { read: (query) => files.list(query), present: presentFile }),
  );

  app.get("/v1/files/:id", async (c) =>
    answerJson(c, presentFile(await files.find(scopedIdOf(c)))),
  );

  app.delete("/v1/files/:id", async (c) => {
    const id = await files.delete(scopedIdOf(c));
    return answerJson(c, { object: "file", id, deleted: true });
  });

  app.get("/v1/files/:id/content", async (c) => {
    const format = choiceParam(c, "format", RESULT_FORMATS) ?? "jsonl";
    const file = await files.findDownloadable(scopedIdOf(c));
    if (format === "jsonl") return answerContent(c, file, { files, log });
    return answerTable(c, { file, format, tables, log });
  });
}

function announcedBytes(c: AppContext): number | null {
  const length = c.req.header("content-length");
  return length === undefined ? null : Number(length);
}

/** Returns everything that distinguishes one upload from another. */
const contentOf = (file: ReceivedFile) => ({
  purpose: file.purpose,
  filename: file.filename,
  sha256: file.sha256,
  keptMs: file.expiresAtMs === null ? null : file.expiresAtMs - file.createdAtMs,
});

function fileQuery(c: AppContext): FileQuery {
  const limit = integerParam(c, "limit") ?? FILE_PAGE.default;
  if (limit < FILE_PAGE.min || limit > FILE_PAGE.max) {
    throw new PublicError(
      "invalid_request",
      `limit must be between ${FILE_PAGE.min} and ${FILE_PAGE.max}.`,
    );
  }
  const order = choiceParam(c, "order", ["asc", "desc"]) ?? "desc";
  return {
    project: c.get("project"),
    purpose: purposeParam(c),
    order,
    limit,
    after: textParam(c, "after") as UntrustedId<"file"> | null,
  };
}

function purposeParam(c: AppContext): FilePurpose | null {
  const purpose = textParam(c, "purpose");
  if (purpose === null) return null;
  const parsed = FilePurpose.safeParse(purpose);
  if (!parsed.success) throw unknownPurpose(purpose, FilePurpose.options);
  return parsed.data;
}
