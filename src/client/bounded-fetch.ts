/** Asks a server without trust in how much it answers. */

/** A page of a list has at most 4 MiB at batchd. Content of files is read as a stream, and has no bound. */
const TEXT_MAX_BYTES = 16 * 1024 * 1024;

/** An answer that no server with OpenAI's API would give, such as the page of a web server. */
export class NotTheApi extends Error {}

/** Works as `fetch`, but reads no answer of any size as one text. */
export async function boundedFetch(url: string | URL | Request, init?: RequestInit) {
  const response = await fetch(url, init);
  return Object.assign(response, { text: () => textOf(response) });
}

async function textOf({ body }: Response): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of body ?? []) {
    bytes += piece.length;
    if (bytes > TEXT_MAX_BYTES) throw new NotTheApi("more than 16 MiB where a few kB are expected");
    pieces.push(piece);
  }
  return new TextDecoder().decode(Buffer.concat(pieces));
}
