/** Stands between batchd and an S3 server, and does what networks and overloaded buckets do. */
import { once } from "node:events";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { buffer } from "node:stream/consumers";
import { atTestEnd } from "./leftovers.ts";
import { closeServer } from "./model-http.ts";

const SLOW_DOWN = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`;

const ACCESS_DENIED = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>`;

const NOT_IMPLEMENTED = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>NotImplemented</Code><Message>A header has a meaning that is not implemented.</Message></Error>`;

const NO_SUCH_KEY = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>`;

const PERMANENT_REDIRECT = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>PermanentRedirect</Code><Message>Send all future requests to another endpoint.</Message></Error>`;

/** It serves as a list of objects and as one of unfinished uploads. */
const SAME_PAGE = `<?xml version="1.0" encoding="UTF-8"?>
<Result><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><NextKeyMarker>m</NextKeyMarker></Result>`;

export type Trouble =
  /** Answers every request with 503 `SlowDown`. */
  | { readonly kind: "slow_down" }
  /** Breaks each connection once so many bytes of the answer have gone through, after `beforeBreak`. */
  | { readonly kind: "cut"; readonly afterBytes: number; readonly beforeBreak?: () => void }
  /** Ends each answer to a read after so many bytes, as if it were whole. */
  | { readonly kind: "short"; readonly afterBytes: number }
  /** Answers reads of a range with one that begins so many bytes later, or ends so many bytes later. */
  | { readonly kind: "other_range"; readonly laterStart: number; readonly laterEnd: number }
  /** Sends the content of objects a byte at a time, each after `beforeByte`. */
  | { readonly kind: "trickle"; readonly beforeByte: () => void }
  /** Answers reads of objects with a page of 404, as a proxy does whose server is away. */
  | { readonly kind: "page_not_found" }
  /** Answers everything, or such requests, with a page, as a proxy does that shows one in the place of its server. */
  | { readonly kind: "page_found"; readonly path?: RegExp; readonly status?: number }
  /** Leads each request to another region. */
  | { readonly kind: "other_region" }
  /** Answers so many reads of such objects that there is none, as a bucket does whose copies are behind. */
  | { readonly kind: "behind"; readonly path: RegExp; readonly times: number }
  /** Loses the answer to the first deletion of an object, and says to each later one that there is none, as Google's buckets do. */
  | { readonly kind: "deletes_once" }
  /** Answers each request for a list with the same page, and says that there are more. */
  | { readonly kind: "same_page" }
  /** Takes requests and never answers. */
  | { readonly kind: "silent" }
  /** Passes each request on after a while, as a bucket far away does. */
  | { readonly kind: "far"; readonly delayMs: number }
  /** Does not know how to copy, as some servers do not. */
  | { readonly kind: "no_copy" }
  /** Refuses all copies but the first so many, as a bucket does whose key for decryption may not be used. */
  | { readonly kind: "no_right_to_copy"; readonly allowedCount: number }
  /** Passes on the request that completes an upload, and breaks the connection in the place of its answer. */
  | { readonly kind: "answer_lost" }
  /** Passes on each request, and breaks the connection in the place of its answer. */
  | { readonly kind: "answers_lost" }
  /** Breaks the connection of each request, which goes nowhere. */
  | { readonly kind: "reset" }
  /** Refuses requests for such an object with 403, as a bucket does whose policy has changed. */
  | { readonly kind: "denied"; readonly method: string; readonly path: RegExp }
  /** Answers the request that completes an upload with 404, as some servers do while they still join its parts. */
  | { readonly kind: "joining" }
  /** Passes on the request that completes an upload, and answers 404, as such a server does to the same request after it. */
  | { readonly kind: "joined" }
  /** Treats such a part of the requests badly, each in a way that `random` draws. */
  | { readonly kind: "unreliable"; readonly part: number; readonly random: () => number }
  /** Keeps requests for such an object until the trouble ends. They meet the one that comes next. */
  | { readonly kind: "hold"; readonly method: string; readonly path: RegExp };

export interface S3Proxy extends AsyncDisposable {
  readonly url: string;
  /** The method and the query of every request, such as `POST ?delete=`. */
  readonly requests: string[];
  /** Requests go through while it is null. */
  trouble: Trouble | null;
  /** The paths of the requests that are being kept. */
  readonly held: readonly string[];
}

export async function startS3Proxy(serverUrl: string): Promise<S3Proxy> {
  const requests: string[] = [];
  const holding = new Holding();
  const proxy = { requests, held: holding.paths };
  let trouble: Trouble | null = null;
  let copyCount = 0;
  let behindCount = 0;
  const isBehind = (asked: IncomingMessage) =>
    trouble?.kind === "behind" &&
    isMatch(asked, { method: "GET", path: trouble.path }) &&
    ++behindCount <= trouble.times;
  const isRefused = ({ headers }: IncomingMessage) =>
    trouble?.kind === "no_right_to_copy" &&
    "x-amz-copy-source" in headers &&
    ++copyCount > trouble.allowedCount;
  const deleted = new Set<string | undefined>();
  const treat = (asked: IncomingMessage, answer: ServerResponse): void => {
    const current = trouble?.kind === "unreliable" ? drawFrom(trouble) : trouble;
    const passUnder = (now: Trouble | null) => forward(asked, answer, { serverUrl, trouble: now });
    const pass = () => passUnder(current);
    if (current?.kind === "reset") asked.destroy();
    else if (current?.kind === "silent") asked.resume();
    else if (current?.kind === "slow_down") slowDown(asked, answer);
    else if (current?.kind === "page_not_found" && asked.method === "GET") {
      answer.writeHead(404, { "content-type": "text/html" }).end("<html>404 Not Found</html>");
    } else if (current?.kind === "page_found" && (current.path ?? /^/).test(asked.url ?? "")) {
      asked.resume();
      const headers = { "content-type": "text/html" };
      answer.writeHead(current.status ?? 200, headers).end("<html><hr>We are back soon</html>");
    } else if (current?.kind === "other_region") {
      asked.resume();
      const headers = { "content-type": "application/xml", "x-amz-bucket-region": "eu-central-1" };
      answer.writeHead(301, headers).end(PERMANENT_REDIRECT);
    } else if (current?.kind === "same_page" && isMatch(asked, LIST)) {
      answer.writeHead(200, { "content-type": "application/xml" }).end(SAME_PAGE);
    } else if (current?.kind === "no_copy" && "x-amz-copy-source" in asked.headers) {
      asked.resume();
      answer.writeHead(501, { "content-type": "application/xml" }).end(NOT_IMPLEMENTED);
    } else if (isRefused(asked) || (current?.kind === "denied" && isMatch(asked, current))) {
      asked.resume();
      answer.writeHead(403, { "content-type": "application/xml" }).end(ACCESS_DENIED);
    } else if (current?.kind === "joining" && isMatch(asked, COMPLETION)) {
      asked.resume();
      noSuchKey(answer);
    } else if (current?.kind === "deletes_once" && asked.method === "DELETE") {
      if (deleted.has(asked.url)) return void noSuchKey(answer);
      deleted.add(asked.url);
      passUnder({ kind: "answers_lost" });
    } else if (isBehind(asked)) noSuchKey(answer);
    else if (current?.kind === "far") setTimeout(pass, current.delayMs);
    else if (current?.kind === "hold" && isMatch(asked, current))
      holding.add(asked, () => treat(asked, answer));
    else pass();
  };
  const server = createServer((asked, answer) => {
    requests.push(`${asked.method} ${asked.url?.replace(/^[^?]*/, "")}`);
    treat(asked, answer);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = () => closeServer(server);
  atTestEnd(close);
  return {
    ...proxy,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    get trouble() {
      return trouble;
    },
    set trouble(next) {
      trouble = next;
      copyCount = 0;
      behindCount = 0;
      holding.release();
    },
    [Symbol.asyncDispose]: close,
  };
}

const noSuchKey = (answer: ServerResponse) =>
  answer.writeHead(404, { "content-type": "application/xml" }).end(NO_SUCH_KEY);

const LIST = { method: "GET", path: /[?&](?:list-type|uploads)\b/ };
const COMPLETION = { method: "POST", path: /uploadId=/ };

const isMatch = (asked: IncomingMessage, { method, path }: { method: string; path: RegExp }) =>
  asked.method === method && path.test(asked.url ?? "");

/** Draws what is done with one request; null lets it go through. */
function drawFrom({ part, random }: Trouble & { readonly kind: "unreliable" }): Trouble | null {
  if (random() >= part) return null;
  const ways: readonly Trouble[] = [
    { kind: "answers_lost" },
    { kind: "reset" },
    { kind: "slow_down" },
    { kind: "cut", afterBytes: Math.floor(4_096 * random()) },
    { kind: "far", delayMs: 2_000 * random() },
  ];
  return ways[Math.floor(ways.length * random())] ?? null;
}

class Holding {
  readonly paths: string[] = [];
  readonly #waiting: (() => void)[] = [];

  add(asked: IncomingMessage, pass: () => void): void {
    this.paths.push(asked.url ?? "");
    this.#waiting.push(pass);
  }

  release(): void {
    this.paths.length = 0;
    for (const pass of this.#waiting.splice(0)) pass();
  }
}

function slowDown(asked: IncomingMessage, answer: ServerResponse): void {
  asked.resume();
  asked.once("end", () => {
    answer.writeHead(503, { "content-type": "application/xml" }).end(SLOW_DOWN);
  });
}

interface Forwarding {
  readonly serverUrl: string;
  readonly trouble: Trouble | null;
}

/** The host that was signed stays in the headers. */
function forward(asked: IncomingMessage, answer: ServerResponse, forwarding: Forwarding): void {
  const { hostname, port } = new URL(forwarding.serverUrl);
  const { method, url: path, headers } = asked;
  const sent = request({ hostname, port, method, path, headers }, (got) => {
    const completes = method === "POST" && path?.includes("uploadId=");
    const { trouble } = forwarding;
    const isLost = trouble?.kind === "answer_lost" && completes && got.statusCode === 200;
    if (isLost || trouble?.kind === "answers_lost") {
      got.resume().once("end", () => answer.destroy());
      return;
    }
    if (trouble?.kind === "joined" && completes && got.statusCode === 200) {
      got.resume().once("end", () => noSuchKey(answer));
      return;
    }
    const isShort = trouble?.kind === "short" && method === "GET";
    if (isShort) delete got.headers["content-length"];
    if (trouble?.kind === "other_range" && got.statusCode === 206) {
      void move(got, answer, trouble);
      return;
    }
    answer.writeHead(got.statusCode ?? 502, got.headers);
    if (trouble?.kind === "cut" || isShort) {
      void cut(got, answer, { ...trouble, ends: isShort });
    } else if (trouble?.kind === "trickle" && method === "GET") {
      void trickle(got, answer, trouble.beforeByte);
    } else got.pipe(answer);
  });
  sent.on("error", () => answer.destroy());
  asked.on("error", () => sent.destroy());
  asked.pipe(sent);
}

interface Cut {
  readonly afterBytes: number;
  readonly beforeBreak?: () => void;
  /** Whether the answer ends in order. */
  readonly ends: boolean;
}

async function cut(got: IncomingMessage, answer: ServerResponse, how: Cut) {
  const { afterBytes, beforeBreak, ends } = how;
  let passedBytes = 0;
  for await (const chunk of got as AsyncIterable<Buffer>) {
    const piece = chunk.subarray(0, afterBytes - passedBytes);
    passedBytes += piece.length;
    await new Promise((written) => answer.write(piece, written));
    if (passedBytes < afterBytes) continue;
    beforeBreak?.();
    if (ends) answer.end();
    else answer.destroy();
    return;
  }
  answer.end();
}

async function move(
  got: IncomingMessage,
  answer: ServerResponse,
  { laterStart, laterEnd }: Trouble & { readonly kind: "other_range" },
) {
  const bytes = (await buffer(got)).subarray(laterStart);
  const range = got.headers["content-range"]?.replace(
    /(\d+)-(\d+)/,
    (_, first, last) => `${Number(first) + laterStart}-${Number(last) + laterEnd}`,
  );
  const length = bytes.length + laterEnd;
  answer.writeHead(206, { ...got.headers, "content-range": range, "content-length": length });
  answer.write(bytes);
  answer.end(Buffer.alloc(laterEnd, "?"));
}

async function trickle(got: IncomingMessage, answer: ServerResponse, beforeByte: () => void) {
  for await (const chunk of got as AsyncIterable<Buffer>) {
    for (const byte of chunk) {
      if (answer.destroyed) return;
      beforeByte();
      await new Promise((written) => answer.write(Buffer.of(byte), written));
      // The reader takes each byte by itself, as from a slow server.
      await new Promise(setImmediate);
    }
  }
  answer.end();
}
