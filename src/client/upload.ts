/**
 * Uploads a file without holding it in memory: the SDK sends a blob that reads the file on demand. A large file goes in
 * parts, so that a broken connection costs one part and not all of them.
 */
import { randomUUID } from "node:crypto";
import { openAsBlob } from "node:fs";
import { basename } from "node:path";
import { APIError, type OpenAI } from "openai";
import { PART_MAX_BYTES } from "../contract/upload.ts";
import { note } from "../terminal/lines.ts";
import { canRedraw } from "../terminal/terminal.ts";
import { bytes } from "../words.ts";
import { CommandFailure } from "./failure.ts";
import type { InputFile } from "./input.ts";
import { sendFile } from "./sent-file.ts";
import { type Server, TIMEOUT_MS } from "./server.ts";

/** The file as a server shows it, which may leave out all but the id. */
export interface ShownFile {
  readonly id: string;
  readonly filename?: string | null | undefined;
  readonly bytes?: number | null | undefined;
  readonly purpose?: string | null | undefined;
  readonly created_at?: number | null | undefined;
  readonly expires_at?: number | null | undefined;
}

/** A slow line sends as much in a second. What takes longer is given up, and tried again. */
const SLOWEST_BYTES_PER_SECOND = 16_000;

/** The tries of a part after the first one, within 30 to 40 s: a server that starts again must not cost all parts before it. */
const PART_MAX_RETRIES = 8;

const FORGET_WITHIN_MS = 5_000;

const timeoutFor = ({ size }: Blob) =>
  TIMEOUT_MS + Math.ceil(size / SLOWEST_BYTES_PER_SECOND) * 1000;

interface Uploading {
  readonly purpose: string;
  readonly signal: AbortSignal;
}

/** Resolves to the file at the server. */
export async function uploadFile(
  server: Server,
  input: InputFile,
  uploading: Uploading,
): Promise<ShownFile> {
  const content = await openAsBlob(input.path);
  if (content.size > PART_MAX_BYTES) {
    const inParts = await uploadInParts(server, { input, content }, uploading);
    if (inParts !== null) return inParts;
  }
  const { purpose, signal } = uploading;
  const form = new FormData();
  // A server that knows the purpose first unpacks by the first bytes of the file, whatever its name is.
  form.set("purpose", purpose);
  const options = { path: input.path, name: basename(input.name), field: "file", form, signal };
  const timeout = timeoutFor(content);
  // A repeated request must not store the file twice.
  const headers = { "Idempotency-Key": randomUUID() };
  return untilCarriedOut(() =>
    sendFile(content, options, (sent) =>
      server.openai.post<ShownFile>("/files", { ...sent, headers, timeout }),
    ),
  );
}

interface Content {
  readonly input: InputFile;
  readonly content: Blob;
}

/** Resolves to null if the server does not take uploads in parts. */
async function uploadInParts(
  server: Server,
  { input, content }: Content,
  { purpose, signal }: Uploading,
): Promise<ShownFile | null> {
  const { openai } = server;
  const asked = {
    filename: basename(input.name),
    purpose: purpose as "batch",
    bytes: content.size,
    mime_type: "application/jsonl",
  };
  const upload = await openai.uploads.create(asked, { signal }).catch((error: unknown) => {
    if (error instanceof APIError && (error.status === 404 || error.status === 405)) return null;
    throw isTooLarge(error) ? tooLarge({ input, content }, server.explain(error)) : error;
  });
  if (upload === null) return null;
  const parts = `/uploads/${encodeURIComponent(upload.id)}/parts`;
  try {
    const part_ids: string[] = [];
    for (let start = 0; start < content.size; start += PART_MAX_BYTES) {
      const end = Math.min(start + PART_MAX_BYTES, content.size);
      const part = content.slice(start, end);
      const form = new FormData();
      const options = { path: input.path, name: "part", field: "data", form, signal };
      const timeout = timeoutFor(part);
      const { id } = await sendFile(part, options, (sent) =>
        openai.post<{ readonly id: string }>(parts, {
          ...sent,
          timeout,
          maxRetries: PART_MAX_RETRIES,
        }),
      );
      part_ids.push(id);
      if (canRedraw()) note(`uploaded ${bytes(end)} of ${bytes(content.size)}`);
    }
    const completed = await complete(openai.uploads, { id: upload.id, part_ids, signal });
    return completed.file as ShownFile;
  } catch (error) {
    await forget(openai.uploads, upload.id);
    throw error;
  }
}

/** The server speaks of a number in a request that its user has not written. */
const isTooLarge = (error: unknown) => error instanceof APIError && error.param === "bytes";

const tooLarge = ({ input, content }: Content, said: string | null) =>
  new CommandFailure(
    `${input.name} has ${bytes(content.size)}, and the server takes no file of this size: ${said}`,
  );

/**
 * Takes an upload back, also after Ctrl-C, whose signal ends all other requests: it would count against the quota of the
 * project for an hour, and then the server forgets it.
 */
async function forget(uploads: OpenAI["uploads"], id: string): Promise<void> {
  const { signal } = new AbortController();
  await uploads.cancel(id, { signal, timeout: FORGET_WITHIN_MS, maxRetries: 0 }).catch(() => {});
}

interface Completing {
  readonly id: string;
  readonly part_ids: string[];
  readonly signal: AbortSignal;
}

/** To give a completion up would cost all parts. */
function complete(uploads: OpenAI["uploads"], { id, part_ids, signal }: Completing) {
  const headers = { "Idempotency-Key": `complete ${id}` };
  const options = { signal, headers, maxRetries: PART_MAX_RETRIES };
  return untilCarriedOut(() => uploads.complete(id, { part_ids }, options));
}

/** A server that died keeps the key for a minute. */
const TRIES_IN_USE = 60;

/**
 * Sends a request with an `Idempotency-Key`. The SDK repeats a request whose answer was lost, and pauses before. The first one
 * may still be carried out then, so this asks on for its answer.
 */
async function untilCarriedOut<T>(send: () => PromiseLike<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await send();
    } catch (error) {
      const isInUse = error instanceof APIError && error.code === "idempotency_key_in_use";
      if (!isInUse || tries === TRIES_IN_USE) throw error;
    }
  }
}
