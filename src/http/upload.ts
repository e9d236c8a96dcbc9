/**
 * A multipart upload, read straight from the connection: no part of the file is ever held.
 *
 * Parts come in any order, so the fields may follow the file. Whatever is wrong ends both the content and
 * the details with the same error: a reader of the content cannot come to its end by mistake.
 */
import type { IncomingMessage } from "node:http";
import type { Readable } from "node:stream";
import { Busboy, type BusboyHeaders, type BusboyInstance } from "@fastify/busboy";
import { EXPIRES_AFTER_SECONDS } from "../contract/batch.ts";
import { type FilePurpose, UPLOAD_PURPOSES } from "../contract/file.ts";
import { PublicError } from "../errors.ts";
import type { FileDetails, IncomingFile } from "../files.ts";
import { integerTooLarge, integerTooSmall, unsupportedValue, wrongType } from "./body.ts";

const FILE_FIELD = "file";
const ANCHOR_FIELD = "expires_after[anchor]";
const SECONDS_FIELD = "expires_after[seconds]";
const FIELDS: readonly string[] = ["purpose", ANCHOR_FIELD, SECONDS_FIELD];

const LIMITS = { fields: 32, fieldSize: 1024, files: 8, headerPairs: 64, headerSize: 16 * 1024 };

/** Resolves when the file part begins. */
export function readUpload(incoming: IncomingMessage): Promise<IncomingFile> {
  const form = createParser(incoming);
  const file = Promise.withResolvers<IncomingFile>();
  const details = Promise.withResolvers<FileDetails>();
  // The reader of the content hears of it in any case.
  details.promise.catch(() => {});
  const fields = new Map<string, string>();
  let content: Readable | null = null;

  const fail = (error: Error) => {
    incoming.unpipe(form);
    file.reject(error);
    details.reject(error);
    content?.destroy(error);
  };
  form.on("file", (name, stream, filename) => {
    stream.on("error", () => {});
    if (name !== FILE_FIELD) return fail(unexpectedField(name));
    if (content !== null) return fail(malformed("Only one 'file' can be uploaded in a request."));
    content = stream;
    file.resolve({
      filename: filename || "upload",
      content: stream,
      details: () => details.promise,
    });
  });
  form.on("field", (name, value, _nameTruncated, valueTruncated) => {
    if (!FIELDS.includes(name)) return fail(unexpectedField(name));
    if (valueTruncated) return fail(malformed(`The value of '${name}' is too long.`));
    fields.set(name, value);
  });
  form.on("fieldsLimit", () => fail(malformed("The form has too many fields.")));
  form.on("filesLimit", () => fail(malformed("The form has too many files.")));
  form.on("error", (cause) => fail(endedEarly(cause)));
  form.on("finish", () => {
    try {
      details.resolve(detailsFrom(fields));
      if (content === null) throw malformed("'file' is a required property");
    } catch (error) {
      fail(error as PublicError);
    }
  });
  incoming.on("error", (cause) => fail(endedEarly(cause)));
  incoming.pipe(form);
  return file.promise;
}

function createParser(incoming: IncomingMessage): BusboyInstance {
  const type = incoming.headers["content-type"] ?? "";
  if (!/^multipart\/form-data\b/i.test(type)) {
    throw malformed(`A file is uploaded as multipart/form-data, not as '${type}'.`);
  }
  try {
    return new Busboy({
      headers: incoming.headers as BusboyHeaders,
      limits: LIMITS,
      isPartAFile: (name, _type, filename) => name === FILE_FIELD || filename !== undefined,
    });
  } catch (cause) {
    throw malformed("The Content-Type of multipart/form-data must name its boundary.", cause);
  }
}

function detailsFrom(fields: ReadonlyMap<string, string>): FileDetails {
  const purpose = fields.get("purpose");
  if (purpose === undefined || purpose === "") {
    throw malformed("'purpose' is a required property");
  }
  if (!UPLOAD_PURPOSES.some((each) => each === purpose)) throw unknownPurpose(purpose);
  return {
    purpose: purpose as FilePurpose,
    expiresAfterSeconds: expiresAfterSecondsFrom(
      fields.get(ANCHOR_FIELD),
      fields.get(SECONDS_FIELD),
    ),
  };
}

function expiresAfterSecondsFrom(
  anchor: string | undefined,
  seconds: string | undefined,
): number | null {
  if (anchor === undefined && seconds === undefined) return null;
  if (anchor === undefined) throw missing(ANCHOR_FIELD);
  if (seconds === undefined) throw missing(SECONDS_FIELD);
  if (anchor !== "created_at") throw unsupportedValue(ANCHOR_FIELD, anchor, ["created_at"]);
  if (!/^-?\d{1,15}$/.test(seconds)) throw wrongType(SECONDS_FIELD, "an integer", "a string");
  const value = Number(seconds);
  const { min, max } = EXPIRES_AFTER_SECONDS;
  if (value < min) throw integerTooSmall(SECONDS_FIELD, value, min);
  if (value > max) throw integerTooLarge(SECONDS_FIELD, value, max);
  return value;
}

const malformed = (message: string, cause?: unknown) =>
  new PublicError("invalid_request", message, { cause });

const endedEarly = (cause: unknown) =>
  malformed("The upload is not complete multipart/form-data: it ended early or is broken.", cause);

const unexpectedField = (name: string | undefined) =>
  malformed(`Additional properties are not allowed ('${name ?? ""}' was unexpected)`);

const missing = (name: string) =>
  new PublicError("missing_parameter", `Missing required parameter: '${name}'.`, { param: name });

export const unknownPurpose = (purpose: string) =>
  new PublicError(
    "invalid_request",
    `'${purpose}' is not one of [${UPLOAD_PURPOSES.map((each) => `'${each}'`).join(", ")}] - 'purpose'`,
    { param: "purpose" },
  );
