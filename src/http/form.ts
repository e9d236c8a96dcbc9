/**
 * Reads a multipart form with one large part straight from the connection. The form must never hold that part in
 * memory.
 *
 * Parts come in any order, so the fields may follow the content. Every fault ends both the content and the details with
 * the same error. So a reader of the content cannot mistake a fault for the end.
 */
import type { IncomingMessage } from "node:http";
import type { Readable } from "node:stream";
import { Busboy, type BusboyInstance } from "@fastify/busboy";
import { PublicError } from "../errors.ts";
import { truncate } from "../text/truncate.ts";
import { repeatedParameter } from "./body.ts";
import { filenameInHeader } from "./filename.ts";
import { boundaryIn, boundaryInside, FormDelimiters } from "./form-delimiters.ts";
import { assertNotCompressed } from "./read-body.ts";

const LIMITS = { fields: 32, fieldSize: 1024, files: 8, headerPairs: 64, headerSize: 16 * 1024 };

/** The expected parts of a form. */
export interface Form<Details> {
  /** The name of the large part. */
  readonly content: string;
  /** The names of the fields beside it. */
  readonly fields: readonly string[];
  /** Parses the fields once all are there; throws when their values make no sense. */
  readonly detailsFrom: (fields: ReadonlyMap<string, string>) => Details;
}

export interface IncomingForm<Details> {
  readonly filename: string;
  readonly content: AsyncIterable<Buffer>;
  /** Returns a field that came before the content. */
  readonly fieldBefore: (name: string) => string | null;
  /** Settles when the form has been read to its end; rejects for any fault of the form. */
  readonly details: () => Promise<Details>;
}

/** Resolves when the large part begins. */
export function readForm<Details>(
  incoming: IncomingMessage,
  form: Form<Details>,
): Promise<IncomingForm<Details>> {
  const boundary = boundaryOf(incoming);
  const parser = createParser(boundary, form.content);
  const delimiters = new FormDelimiters(boundary);
  const opened = Promise.withResolvers<IncomingForm<Details>>();
  const details = Promise.withResolvers<Details>();
  // The reader of the content gets the same error. Without this handler, an unread promise would end the process.
  details.promise.catch(() => {});
  const fields = new Map<string, string>();
  let content: Readable | null = null;
  let readParts = 0;

  const fail = (error: Error) => {
    incoming.unpipe(delimiters);
    delimiters.unpipe(parser);
    opened.reject(error);
    details.reject(error);
    content?.destroy(error);
  };
  parser.on("file", (name, stream, filename) => {
    stream.on("error", () => {});
    readParts++;
    if (form.fields.includes(name)) return fail(fieldAsFile(name));
    if (name !== form.content) return fail(unexpectedField(name, form));
    if (content !== null) {
      return fail(malformed(`Only one '${form.content}' can be uploaded in a request.`));
    }
    content = stream;
    opened.resolve({
      filename: filenameInHeader(filename ?? ""),
      content: piecesOf(stream),
      fieldBefore: (name) => fields.get(name) ?? null,
      details: () => details.promise,
    });
  });
  parser.on("field", (name, value, _nameTruncated, valueTruncated) => {
    readParts++;
    if (!form.fields.includes(name)) return fail(unexpectedField(name, form));
    if (valueTruncated) return fail(malformed(`The value of '${name}' is too long.`));
    if ((fields.get(name) ?? value) !== value) return fail(repeatedParameter(name));
    fields.set(name, value);
  });
  parser.on("fieldsLimit", () => fail(malformed("The form has too many fields.")));
  parser.on("filesLimit", () => fail(malformed("The form has too many files.")));
  parser.on("error", (cause) => fail(endedEarly(cause)));
  delimiters.on("error", fail);
  incoming.on("error", (cause) => fail(endedEarly(cause)));
  incoming.pipe(delimiters).pipe(parser);
  whenBothFinish(parser, delimiters, () => {
    try {
      // The parser skips a part without a name, such as the rest of a file that holds a delimiter.
      if (readParts !== delimiters.partCount) throw boundaryInside();
      details.resolve(form.detailsFrom(fields));
      if (content === null) throw malformed(`'${form.content}' is a required property`);
    } catch (error) {
      fail(error as PublicError);
    }
  });
  return opened.promise;
}

/** Calls `fn` at the end of the request. The parser finishes at the last delimiter, and other bytes may follow. */
function whenBothFinish(parser: BusboyInstance, delimiters: FormDelimiters, fn: () => void): void {
  let unfinished = 2;
  const finishOne = () => {
    if (--unfinished === 0) fn();
  };
  parser.once("finish", () => {
    // A finished parser reads no more, and the pipe to it has just paused what it read from.
    delimiters.resume();
    finishOne();
  });
  delimiters.once("finish", finishOne);
}

function boundaryOf(incoming: IncomingMessage): string {
  const type = incoming.headers["content-type"] ?? "";
  if (!/^multipart\/form-data\b/i.test(type)) {
    throw unsupportedForm(type);
  }
  assertNotCompressed(incoming);
  const boundary = boundaryIn(type);
  if (boundary === null) throw noBoundary();
  return boundary;
}

function createParser(boundary: string, contentName: string): BusboyInstance {
  try {
    return new Busboy({
      // Both readers of the delimiters must agree on the boundary, and headers may be read in several ways.
      headers: { "content-type": `multipart/form-data; boundary="${boundary}"` },
      limits: LIMITS,
      preservePath: true,
      isPartAFile: (name, _type, filename) => name === contentName || filename !== undefined,
    });
  } catch (cause) {
    throw noBoundary(cause);
  }
}

/** The parser gives a part that ends early an error of its own, before it fails itself. */
async function* piecesOf(content: Readable): AsyncGenerator<Buffer> {
  try {
    for await (const piece of content as AsyncIterable<Buffer>) yield piece;
  } catch (error) {
    throw error instanceof PublicError ? error : endedEarly(error);
  }
}

const unsupportedForm = (type: string) =>
  malformed(
    type.trim() === ""
      ? "A file is uploaded as multipart/form-data, and this request has no Content-Type."
      : `A file is uploaded as multipart/form-data, not as '${truncate(type)}'.`,
  );

const noBoundary = (cause?: unknown) =>
  malformed(
    "The Content-Type of multipart/form-data must name its boundary. (HINT: HTTP libraries make this header with the form, so leave it to them.)",
    cause,
  );

const malformed = (message: string, cause?: unknown) =>
  new PublicError("invalid_request", message, { cause });

const endedEarly = (cause: unknown) =>
  malformed("The upload is not complete multipart/form-data: it ended early or is broken.", cause);

/** Clients make a part a file by mistake, such as by `files={"purpose": …}` in Python. */
const fieldAsFile = (name: string) =>
  malformed(`'${name}' came as a file. (HINT: Send it as a field, a part without a filename.)`);

function unexpectedField(
  name: string | undefined,
  { content, fields }: Pick<Form<unknown>, "content" | "fields">,
): PublicError {
  if (name === undefined) {
    const known = [content, ...fields].map((each) => `'${each}'`).join(", ");
    return malformed(`A part of the form has no name. (HINT: The names are ${known}.)`);
  }
  // Clients send an object as JSON, as `expires_after.anchor` (OpenAI's SDK for Go before 3.13), or as `expires_after[]`.
  const [object] = name.split(/[.[]/, 1);
  const members = fields.filter((each) => each.startsWith(`${object}[`));
  const hint =
    members.length === 0 ? "" : ` (HINT: Send a field for each member: ${members.join(", ")}.)`;
  return malformed(
    `Additional properties are not allowed ('${truncate(name)}' was unexpected)${hint}`,
  );
}
