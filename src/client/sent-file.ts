/**
 * Sends a file of this machine in a form. `fetch` of Node.js 24 does not notice that a file cannot be read: the process would
 * end with a stack, or wait for ever. A file that changes while it is read cannot be read any more, so that what arrives is
 * never a mixture.
 */
import { access, constants } from "node:fs/promises";
import { CommandFailure, cannotRead } from "./failure.ts";

interface Sending {
  /** The place of the file, for the user. */
  readonly path: string;
  /** The name that the server gets to know. */
  readonly name: string;
  readonly form: FormData;
  /** The field of the form. */
  readonly field: string;
  readonly signal: AbortSignal;
}

interface Sent {
  readonly body: FormData;
  readonly signal: AbortSignal;
}

/** Calls `send` with the form and the content in it. Rejects in words where the file cannot be read to its end. */
export async function sendFile<T>(
  content: Blob,
  { path, name, form, field, signal }: Sending,
  send: (sent: Sent) => PromiseLike<T>,
): Promise<T> {
  const broken = new AbortController();
  form.set(field, new SentFile(content, name, (cause) => broken.abort(cause)));
  try {
    return await send({ body: form, signal: AbortSignal.any([signal, broken.signal]) });
  } catch (error) {
    if (!broken.signal.aborted) throw error;
    await access(path, constants.R_OK).catch((cause: Error) => {
      throw cannotRead(path, cause);
    });
    throw new CommandFailure(`${path} changed while it was sent: try again once it is written`, {
      cause: broken.signal.reason,
    });
  }
}

class SentFile extends File {
  readonly #onBroken: (cause: unknown) => void;

  constructor(content: Blob, name: string, onBroken: (cause: unknown) => void) {
    super([content], name);
    this.#onBroken = onBroken;
  }

  override stream() {
    return ReadableStream.from(this.#pieces(super.stream()));
  }

  async *#pieces(content: AsyncIterable<Uint8Array<ArrayBuffer>>) {
    try {
      yield* content;
    } catch (cause) {
      this.#onBroken(cause);
    }
  }
}
