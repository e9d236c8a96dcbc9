/**
 * Stands before a server and makes it a plain one with OpenAI's API alone: routes and fields of batchd are unknown, and
 * answers show none of them. It can also break off a download in its middle.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { buffer } from "node:stream/consumers";
import { listening } from "./listening.ts";

const OWN_ROUTE =
  /^(?:DELETE \/v1\/batches\/|POST \/v1\/batches\/[^/]+\/(?:pause|resume|deliveries)|GET \/v1\/batches\/[^/]+\/)/;

export class PlainServer {
  url = "";
  /** What becomes of a request with fields of batchd. */
  onExtension: "refuse" | "ignore" = "refuse";
  /** The number of downloads that break off after half of their bytes. */
  brokenDownloads = 0;
  /** The content of each file; null for the one that it has. */
  content: string | null = null;
  /** The `range` of each download. */
  readonly ranges: (string | undefined)[] = [];
  /** The `authorization` of each request. */
  readonly keys: (string | undefined)[] = [];
  readonly #target: string;

  static async before(target: string): Promise<PlainServer> {
    const plain = new PlainServer(target);
    const server = createServer((request, response) => {
      plain.#answer(request, response).catch((error: Error) => response.destroy(error));
    });
    plain.url = `http://127.0.0.1:${await listening(server)}/v1`;
    return plain;
  }

  private constructor(target: string) {
    this.#target = target;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = "GET", url = "/", headers } = request;
    this.keys.push(headers.authorization);
    const body = await buffer(request);
    if (OWN_ROUTE.test(`${method} ${url}`)) return refuse(response, 404, `Invalid URL ${url}`);
    const asked = withoutExtension(body, headers["content-type"]);
    if (asked !== body && this.onExtension === "refuse") {
      return refuse(response, 400, "Unknown parameter: 'x_batchd'.", "x_batchd");
    }
    const answer = await fetch(`${this.#target}${withoutOwnQuery(url)}`, {
      method,
      headers: passedOn(headers),
      ...(body.length > 0 && { body: asked }),
    });
    const text = Buffer.from(await answer.arrayBuffer());
    if (url.endsWith("/content")) {
      const content = this.content === null ? text : Buffer.from(this.content);
      return this.#download(request, response, { answer, text: content });
    }
    const type = answer.headers.get("content-type") ?? "text/plain";
    response.writeHead(answer.status, { "content-type": type });
    response.end(withoutExtension(text, type));
  }

  #download(
    { headers }: IncomingMessage,
    response: ServerResponse,
    { answer, text }: { readonly answer: Response; readonly text: Buffer },
  ): void {
    this.ranges.push(headers.range);
    response.writeHead(answer.status, { "content-length": text.length });
    if (this.brokenDownloads === 0) {
      response.end(text);
      return;
    }
    this.brokenDownloads--;
    response.write(text.subarray(0, text.length / 2), () => response.destroy());
  }
}

function refuse(response: ServerResponse, status: number, message: string, param?: string): void {
  const code = param === undefined ? null : "unknown_parameter";
  const error = { message, type: "invalid_request_error", param: param ?? null, code };
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify({ error }));
}

const passedOn = (headers: IncomingMessage["headers"]): Record<string, string> =>
  Object.fromEntries(
    ["authorization", "content-type", "range", "idempotency-key"].flatMap((name) => {
      const value = headers[name];
      return typeof value === "string" ? [[name, value]] : [];
    }),
  );

/** OpenAI ignores parameters that it does not know. */
function withoutOwnQuery(url: string): string {
  const [path = "", query = ""] = url.split("?");
  const known = ["limit", "after", "order", "purpose"];
  const kept = [...new URLSearchParams(query)].filter(([name]) => known.includes(name));
  return kept.length === 0 ? path : `${path}?${new URLSearchParams(kept)}`;
}

/** Returns the same bytes where there is nothing to take out. */
function withoutExtension(body: Buffer, type: string | undefined): Buffer {
  if (type?.startsWith("application/json") !== true || !body.includes('"x_batchd"')) return body;
  return Buffer.from(
    JSON.stringify(JSON.parse(body.toString()), (key, value: unknown) =>
      key === "x_batchd" ? undefined : value,
    ),
  );
}
