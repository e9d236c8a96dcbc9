/**
 * The HTTP interface of an Oxen server, as version 0.53 has it. Redirects are not followed, because the token would go with
 * them. An answer that is gathered has a bound.
 */
import { Agent, buildConnector, FormData } from "undici";
import { lookupOnce } from "../../resources/name-lookup.ts";
import { readingAnswers } from "../../resources/reading-time.ts";
import { LocationError, type LocationFailure } from "../location.ts";

export interface OxenAddress {
  readonly url: string;
  /** The namespace and the name. */
  readonly repository: string;
  readonly token: string | null;
  /** The longest silence on a connection. */
  readonly timeoutMs: number;
}

interface Asked {
  readonly method: "GET" | "PUT" | "POST" | "DELETE";
  /** The path is below the repository. Each part is encoded. */
  readonly path: readonly string[];
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: object | Buffer | FormData;
  /** Statuses, beside those of a success, that are an answer and no failure. */
  readonly expected?: readonly number[];
}

export interface OxenAnswer {
  readonly status: number;
  readonly body: unknown;
}

/** An answer in use is a branch or a commit. JSON of a megabyte may take a quarter of a second to parse. */
const MAX_ANSWER_BYTES = 64 * 1024;
/** The server asks for patience with a 429 while it repairs or moves a repository. */
const PASSING_STATUSES = [408, 409, 425, 429];

export class OxenApi {
  readonly #address: OxenAddress;
  readonly #dispatcher: Agent;
  readonly #root: string;

  constructor(address: OxenAddress) {
    this.#address = address;
    const { timeoutMs, url, repository } = address;
    this.#dispatcher = new Agent({
      headersTimeout: timeoutMs,
      bodyTimeout: timeoutMs,
      connect: readingAnswers(
        buildConnector({
          timeout: Math.min(timeoutMs, 10_000),
          lookup: lookupOnce,
          allowH2: false,
        }),
      ),
    });
    this.#root = `${url.replace(/\/+$/, "")}/api/repos/${encoded(repository.split("/"))}`;
  }

  async ask(asked: Asked, signal: AbortSignal): Promise<OxenAnswer> {
    const { statusCode: status, body } = await this.#send(asked, signal);
    const bytes = await bounded(body, signal);
    const parsed = parse(bytes);
    if (status < 300) return { status, body: parsed };
    if (isPage(status, bytes, parsed)) throw pageFound(status);
    if (asked.expected?.includes(status)) return { status, body: parsed };
    throw refusal(status, parsed);
  }

  /** Opens a file at a commit. Resolves to null if there is none. */
  async open(commit: string, path: string, signal: AbortSignal) {
    const asked = { method: "GET", path: ["file", commit, ...path.split("/")] } as const;
    const { statusCode: status, headers, body } = await this.#send(asked, signal);
    if (status === 200) {
      if (!hasEnd(headers)) {
        body.on("error", () => {}).destroy();
        throw new LocationError("refused", "the Oxen server does not say where the file ends");
      }
      const bytes = Number(headers["content-length"] ?? Number.NaN);
      return { bytes: Number.isSafeInteger(bytes) ? bytes : null, body };
    }
    const bytes = await bounded(body, signal);
    const answer = parse(bytes);
    if (isPage(status, bytes, answer)) throw pageFound(status);
    if (status === 404) return null;
    throw refusal(status, answer);
  }

  async #send({ method, path, query = {}, body }: Asked, signal: AbortSignal) {
    const { token } = this.#address;
    const search = new URLSearchParams(query).toString();
    const url = new URL(`${this.#root}/${encoded(path)}${search === "" ? "" : `?${search}`}`);
    const isJson = body !== undefined && !isRaw(body);
    try {
      return await this.#dispatcher.request({
        origin: url.origin,
        path: url.pathname + url.search,
        method,
        signal,
        headers: {
          ...(token !== null && { authorization: `Bearer ${token}` }),
          ...(isJson && { "content-type": "application/json" }),
        },
        body: isJson ? JSON.stringify(body) : (body ?? null),
      });
    } catch (error) {
      throw unreachable(error, signal);
    }
  }
}

/** Without a length or chunks the end of the connection is the end. Then a file that was cut off looks whole. */
const hasEnd = (headers: Readonly<Record<string, unknown>>) =>
  "content-length" in headers || "transfer-encoding" in headers;

const isRaw = (body: object): body is Buffer | FormData =>
  Buffer.isBuffer(body) || body instanceof FormData;

const encoded = (parts: readonly string[]) => parts.map(encodeURIComponent).join("/");

/** Translates an error of the connection. The address is not in the message, because clients read it. */
export function unreachable(error: unknown, signal: AbortSignal): unknown {
  if (signal.aborted) return signal.reason;
  if (!(error instanceof Error) || error instanceof LocationError) return error;
  const { code } = error as NodeJS.ErrnoException;
  const words = `the Oxen server does not answer (${code ?? error.name})`;
  return new LocationError("unavailable", words, { cause: error });
}

async function bounded(body: AsyncIterable<Buffer>, signal: AbortSignal): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of body) {
      bytes += chunk.length;
      if (bytes > MAX_ANSWER_BYTES) throw new LocationError("refused", "the answer is too long");
      chunks.push(chunk);
    }
  } catch (error) {
    throw unreachable(error, signal);
  }
  return Buffer.concat(chunks);
}

function parse(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString());
  } catch {
    return null;
  }
}

/** The Oxen server answers some wrong requests in plain text. */
const WRONG_REQUESTS = [400, 401, 403];

/** Recognizes what another server says in the place of the Oxen server, such as a proxy whose server is away. */
const isPage = (status: number, bytes: Buffer, parsed: unknown) =>
  !WRONG_REQUESTS.includes(status) && bytes.length > 0 && parsed === null;

const pageFound = (status: number) =>
  new LocationError(
    "unavailable",
    `another server answers ${status} in the place of the Oxen server`,
  );

function refusal(status: number, body: unknown): LocationError {
  const { status_message: message, status_description: description } = (body ?? {}) as Record<
    string,
    unknown
  >;
  const words = [message, description].filter((each) => typeof each === "string").join(": ");
  return new LocationError(failureOf(status), `the Oxen server answers ${status} ${words}`.trim());
}

function failureOf(status: number): LocationFailure {
  if (status === 401 || status === 403) return "forbidden";
  return status >= 500 || PASSING_STATUSES.includes(status) ? "unavailable" : "refused";
}
