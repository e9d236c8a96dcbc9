import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer as createHttpServer, type RequestListener } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { type Authority, privateAuthority } from "../../support/certificates.ts";
import { type ClientSettings, clientOf, exchangeOf, never, send } from "../../support/client.ts";
import { listening } from "../../support/listening.ts";
import { TestProxy } from "../../support/proxies.ts";

const body = Buffer.from('{"model":"m","n":9007199254740993}');
let authority: Authority;
let caFile: string;

beforeAll(async () => {
  authority = await privateAuthority();
  const folder = mkdtempSync(join(tmpdir(), "batchd-ca-"));
  caFile = join(folder, "ca.pem");
  writeFileSync(caFile, authority.cert);
  return () => rmSync(folder, { recursive: true });
});

async function startTarget(scheme: "http" | "https", answer: RequestListener): Promise<string> {
  const server =
    scheme === "http"
      ? createHttpServer(answer)
      : createTlsServer(await authority.issue({ ip: "127.0.0.1" }), answer);
  return `${scheme}://127.0.0.1:${await listening(server)}/v1`;
}

function open(url: string, settings: ClientSettings) {
  const client = clientOf(url, { ca_file: caFile, ...settings });
  onTestFinished(() => client.close());
  return client;
}

/** Counts what is in flight, and answers all of it on demand. */
class Held {
  readonly #waiting: (() => void)[] = [];
  readonly #reached = Promise.withResolvers<void>();
  readonly #count: number;
  maxInFlight = 0;
  isOpen = false;

  constructor(count: number) {
    this.#count = count;
  }

  readonly answer: RequestListener = (_, response) => {
    if (this.isOpen) {
      response.end("{}");
      return;
    }
    this.#waiting.push(() => response.end("{}"));
    this.maxInFlight = this.#waiting.length;
    if (this.#waiting.length === this.#count) this.#reached.resolve();
  };

  get reached(): Promise<void> {
    return this.#reached.promise;
  }

  release(): void {
    this.isOpen = true;
    for (const answer of this.#waiting.splice(0)) answer();
  }
}

describe.each(["http", "https"] as const)("through a proxy to an %s target", (scheme) => {
  test("a request arrives as it was sent, and its answer comes back", async () => {
    const seen: { body: string; headers: Record<string, unknown> }[] = [];
    const url = await startTarget(scheme, (request, response) => {
      void text(request).then((arrived) => {
        seen.push({ body: arrived, headers: request.headers });
        response.writeHead(200, { "x-request-id": "req-1" }).end('{"usage":null}');
      });
    });
    const proxy = await TestProxy.start();
    const client = open(url, { proxy: proxy.url, api_key: "key" });
    expect(await send(client, { body })).toMatchObject({
      kind: "answered",
      status: 200,
      requestId: "req-1",
    });
    expect(seen[0]).toMatchObject({
      body: body.toString(),
      headers: { authorization: "Bearer key", host: new URL(url).host },
    });
    const { host } = new URL(url);
    expect(proxy.asked).toEqual([
      scheme === "http" ? `${url}/chat/completions` : `CONNECT ${host}`,
    ]);
  });

  test("the credentials in its address are for the proxy alone", async () => {
    const headers: Record<string, unknown>[] = [];
    const url = await startTarget(scheme, (request, response) => {
      headers.push(request.headers);
      response.end("{}");
    });
    const proxy = await TestProxy.start();
    const address = `http://ann:p%40ss@127.0.0.1:${proxy.port}`;
    expect(await send(open(url, { proxy: address }), { body })).toMatchObject({ kind: "answered" });
    expect(proxy.credentials).toEqual([`Basic ${Buffer.from("ann:p@ss").toString("base64")}`]);
    expect(headers[0]?.["proxy-authorization"]).toBeUndefined();
    expect(headers[0]?.["authorization"]).toBeUndefined();
  });

  test("there are no more connections than slots, and the one that is kept for questions", async () => {
    const held = new Held(3);
    const url = await startTarget(scheme, held.answer);
    const proxy = await TestProxy.start();
    const client = open(url, { proxy: proxy.url, max_concurrency: 2 });
    const attempts = Array.from({ length: 12 }, () => send(client, { body }));
    await held.reached;
    held.release();
    const outcomes = await Promise.all(attempts);
    expect(outcomes.filter(({ kind }) => kind === "answered")).toHaveLength(12);
    expect([held.maxInFlight, proxy.connectionCount]).toEqual([3, 3]);
  });

  test("an answer is passed on, and giving it up closes the way to the target", async () => {
    const gone = Promise.withResolvers<void>();
    const url = await startTarget(scheme, (_, response) => {
      response.once("close", gone.resolve).write("data: 1\n\n");
    });
    const proxy = await TestProxy.start();
    const client = open(url, { proxy: proxy.url });
    const result = await client.proxy(exchangeOf(client, { body }), never);
    if (result.kind !== "proxied") throw new Error(result.kind);
    for await (const piece of result.body) {
      expect(String(piece)).toBe("data: 1\n\n");
      break;
    }
    await gone.promise;
  });

  test("a proxy that refuses leaves the target unreachable, and says why", async () => {
    const url = await startTarget(scheme, (_, response) => response.end("{}"));
    const proxy = await TestProxy.start();
    proxy.refusal = { status: 407 };
    const client = open(url, { proxy: proxy.url });
    const outcome = { kind: "unreachable", detail: "the proxy refused with status 407" };
    expect(await send(client, { body })).toEqual(outcome);
    expect(await client.proxy(exchangeOf(client, { body }), never)).toEqual(outcome);
    proxy.refusal = null;
    expect(await send(client, { body })).toMatchObject({ kind: "answered" });
  });

  test("a proxy that is down leaves the target unreachable", async () => {
    const url = await startTarget(scheme, (_, response) => response.end("{}"));
    const client = open(url, { proxy: "http://127.0.0.1:9" });
    expect(await send(client, { body })).toEqual({
      kind: "unreachable",
      detail: "connection refused",
    });
  });

  test("closing the client interrupts what is under way, wherever it is", async () => {
    const held = new Held(1);
    const url = await startTarget(scheme, held.answer);
    const proxy = await TestProxy.start();
    const client = open(url, { proxy: proxy.url });
    const attempt = send(client, { body });
    await held.reached;
    await client.close();
    expect(await attempt).toEqual({ kind: "interrupted" });
  });
});

test("a proxy that does not open its tunnel in time leaves the target unreachable", async () => {
  const url = await startTarget("https", (_, response) => response.end("{}"));
  const proxy = await TestProxy.start();
  proxy.refusal = "silence";
  const client = open(url, { proxy: proxy.url, connect_timeout_seconds: 0.1 });
  expect(await send(client, { body })).toEqual({
    kind: "unreachable",
    detail: "no connection in time",
  });
});
