import { EventEmitter, getEventListeners, once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { Readable } from "node:stream";
import { buffer, text } from "node:stream/consumers";
import { setImmediate as turn } from "node:timers/promises";
import { describe, expect, onTestFinished, test } from "vitest";
import type { Proxied } from "../../../src/upstream/request.ts";
import { type ClientSettings, clientOf, exchangeOf, never, send } from "../../support/client.ts";
import { listening } from "../../support/listening.ts";

const body = Buffer.from('{"model":"m","stream":true}');
const MIB = 1024 * 1024;

/** A server that hands every response to the test, and a client for it. */
class Setup {
  readonly client;
  readonly #events = new EventEmitter();
  readonly #arrived: { request: IncomingMessage; response: ServerResponse }[] = [];

  static async start(settings: ClientSettings = {}): Promise<Setup> {
    const server = createServer((request, response) => setup.#arrive(request, response));
    const port = await listening(server);
    const setup = new Setup(port, settings);
    onTestFinished(() => setup.client.close());
    return setup;
  }

  private constructor(port: number, settings: ClientSettings) {
    this.client = clientOf(`http://127.0.0.1:${port}/v1`, settings);
  }

  #arrive(request: IncomingMessage, response: ServerResponse): void {
    this.#arrived.push({ request, response });
    this.#events.emit("arrived");
  }

  proxy(abort: AbortSignal = never) {
    return this.client.proxy(exchangeOf(this.client, { body }), abort);
  }

  /** The next request that has arrived. */
  async next() {
    while (this.#arrived.length === 0) await once(this.#events, "arrived");
    return this.#arrived.shift()!;
  }

  /** A request whose answer has begun, from both ends. */
  async begun(abort: AbortSignal = never) {
    const pending = this.proxy(abort);
    const { request, response } = await this.next();
    response.writeHead(200, { "content-type": "text/event-stream" }).write("data: 1\n\n");
    const proxied = proxiedOf(await pending);
    expect(String(await firstPiece(proxied.body))).toBe("data: 1\n\n");
    return { request, response, body: proxied.body };
  }
}

function proxiedOf(result: Awaited<ReturnType<Setup["proxy"]>>): Proxied {
  if (result.kind !== "proxied") throw new Error(`it was not proxied, but ${result.kind}`);
  return result;
}

async function firstPiece(readable: Readable): Promise<Buffer> {
  for (;;) {
    const piece: unknown = readable.read();
    if (piece instanceof Buffer) return piece;
    await once(readable, "readable");
  }
}

/** The error that the stream fails with. */
const failureOf = (readable: Readable) =>
  new Promise<Error>((resolve) => {
    readable.once("error", resolve).resume();
  });

describe("a proxied answer", () => {
  test("comes piece by piece, while the rest of it is not even written", async () => {
    const setup = await Setup.start();
    const { response, body } = await setup.begun();
    for (const piece of ["data: 2\n\n", ": ping\n\n", "data: [DONE]\n\n"]) {
      response.write(piece);
      expect(String(await firstPiece(body))).toBe(piece);
    }
    response.end();
    expect(await text(body)).toBe("");
  });

  test("has the status, the headers and the bytes that the upstream sent", async () => {
    const setup = await Setup.start();
    const bytes = Buffer.from(Array.from({ length: 3 * MIB }, (_, i) => (i * 31) % 251));
    const pending = setup.proxy();
    const { request, response } = await setup.next();
    expect(await text(request)).toBe(body.toString());
    response.writeProcessing();
    response.writeHead(429, [
      "Retry-After",
      "7",
      "Set-Cookie",
      "a=1",
      "Set-Cookie",
      "b=2",
      "X-Request-Id",
      "req-1",
    ]);
    response.end(bytes);
    const proxied = proxiedOf(await pending);
    expect(proxied.status).toBe(429);
    expect(proxied.headers).toMatchObject({
      "retry-after": "7",
      "set-cookie": ["a=1", "b=2"],
      "x-request-id": "req-1",
    });
    expect((await buffer(proxied.body)).equals(bytes)).toBe(true);
  });

  test("may be longer than an answer to a line", async () => {
    const setup = await Setup.start({ maxAnswerBytes: 10 });
    const pending = setup.proxy();
    (await setup.next()).response.end("x".repeat(100_000));
    expect((await text(proxiedOf(await pending).body)).length).toBe(100_000);
  });

  test("is read from the upstream no faster than it is taken", async () => {
    const setup = await Setup.start();
    const pending = setup.proxy();
    const { response } = await setup.next();
    const piece = Buffer.alloc(MIB, "x");
    const written = (async () => {
      for (let i = 0; i < 64; i++) if (!response.write(piece)) await once(response, "drain");
      response.end();
    })();
    const proxied = proxiedOf(await pending);
    while (proxied.body.readableLength === 0) await turn();
    // Unless it is told to stop, the client reads a piece in each turn of the loop.
    for (let i = 0; i < 200; i++) await turn();
    expect(proxied.body.readableLength).toBeLessThan(MIB / 4);
    expect((await buffer(proxied.body)).length).toBe(64 * MIB);
    await written;
  });
});

describe("an upstream connection", () => {
  test("is closed when the body is destroyed", async () => {
    const setup = await Setup.start();
    const { request, body } = await setup.begun();
    body.destroy();
    await once(request.socket, "close");
  });

  test("is closed when the signal aborts, and the body fails; no listener is left", async () => {
    const setup = await Setup.start();
    const abort = new AbortController();
    const { request, body } = await setup.begun(abort.signal);
    const failure = failureOf(body);
    abort.abort();
    expect((await failure).message).toBe("the attempt has ended");
    await once(request.socket, "close");
    expect(getEventListeners(abort.signal, "abort")).toHaveLength(0);
  });

  test("is closed when the signal aborts before the answer begins", async () => {
    const setup = await Setup.start();
    const abort = new AbortController();
    const pending = setup.proxy(abort.signal);
    const { request } = await setup.next();
    abort.abort();
    expect(await pending).toEqual({ kind: "interrupted" });
    await once(request.socket, "close");
    expect(await setup.proxy(abort.signal)).toEqual({ kind: "interrupted" });
  });

  test("is used again after an answer that was read to its end", async () => {
    const setup = await Setup.start({ max_concurrency: 1 });
    const ports = new Set<number | undefined>();
    for (let i = 0; i < 6; i++) {
      const { request, response, body } = await setup.begun();
      response.end("the end");
      expect(await text(body)).toBe("the end");
      ports.add(request.socket.remotePort);
    }
    // One for the slot, and the one that is kept for questions.
    expect(ports.size).toBeLessThanOrEqual(2);
  });
});

describe("an answer that does not come whole", () => {
  test("fails where it breaks off, also without a listener", async () => {
    const setup = await Setup.start();
    const heard = await setup.begun();
    const failure = failureOf(heard.body);
    heard.response.socket?.resetAndDestroy();
    expect((await failure).message).toBe("the answer broke off: connection reset");
    const unheard = await setup.begun();
    const closed = new Promise<void>((resolve) => unheard.body.once("close", resolve));
    unheard.response.destroy();
    await closed;
    expect(unheard.body.errored).toBeInstanceOf(Error);
  });

  test("is broken when it breaks off before it begins, or is not HTTP", async () => {
    const setup = await Setup.start();
    for (const [bytes, detail] of [
      [null, "connection closed before the answer was complete"],
      ["220 smtp ready\r\n\r\n", "the answer is not HTTP"],
    ] as const) {
      const pending = setup.proxy();
      const { response } = await setup.next();
      if (bytes === null) response.destroy();
      else response.socket?.end(bytes);
      expect(await pending).toEqual({ kind: "broken", detail });
    }
  });

  test("is unreachable when no server listens", async () => {
    const client = clientOf("http://127.0.0.1:9/v1");
    onTestFinished(() => client.close());
    expect(await client.proxy(exchangeOf(client, { body }), never)).toMatchObject({
      kind: "unreachable",
    });
  });

  test("is given up when it does not begin in time", async () => {
    const setup = await Setup.start({ first_byte_timeout_seconds: 0.05 });
    const pending = setup.proxy();
    const { request } = await setup.next();
    expect(await pending).toEqual({
      kind: "timed_out",
      afterMs: 50,
      waitingFor: "first_byte",
    });
    await once(request.socket, "close");
  });

  // A busy machine must not take as long to begin an answer.
  test.each([
    ["nothing more comes", { idle_timeout_seconds: 2 }, 2_000],
    ["it takes too long as a whole", { timeout_seconds: 2 }, 2_000],
  ])("fails when %s", async (_, settings, ms) => {
    const setup = await Setup.start(settings);
    const { request, body } = await setup.begun();
    expect((await failureOf(body)).message).toBe(`the answer was not complete within ${ms} ms`);
    await once(request.socket, "close");
  });

  test("is not given up while it waits for its reader", async () => {
    const setup = await Setup.start({ idle_timeout_seconds: 2 });
    const pending = setup.proxy();
    const { response } = await setup.next();
    response.end(Buffer.alloc(16 * MIB, "x"));
    const slowlyRead = proxiedOf(await pending).body;
    while (slowlyRead.readableLength < slowlyRead.readableHighWaterMark) await turn();
    // The upstream of this one is idle for longer, and begins to be so later.
    const idle = await setup.begun();
    expect((await failureOf(idle.body)).message).toContain("2000 ms");
    expect((await buffer(slowlyRead)).length).toBe(16 * MIB);
  });
});

describe("a client that ends", () => {
  test("interrupts what is under way when it is closed", async () => {
    const setup = await Setup.start();
    const { body } = await setup.begun();
    const waiting = setup.proxy();
    await setup.next();
    const failure = failureOf(body);
    await setup.client.close();
    expect((await failure).message).toBe("the attempt has ended");
    expect(await waiting).toEqual({ kind: "interrupted" });
    expect(await setup.proxy()).toEqual({ kind: "interrupted" });
  });

  test("lets what is in flight end while it drains, and takes nothing new", async () => {
    const setup = await Setup.start();
    const line = send(setup.client, { body });
    const lineAnswer = await setup.next();
    const passing = await setup.begun();
    const order: string[] = [];
    const drained = setup.client.drain().then(() => order.push("drained"));
    expect(await send(setup.client, { body })).toEqual({ kind: "interrupted" });
    expect(await setup.proxy()).toEqual({ kind: "interrupted" });
    lineAnswer.response.end("{}");
    expect(await line).toMatchObject({ kind: "answered" });
    order.push("line");
    passing.response.end("the end");
    expect(await text(passing.body)).toBe("the end");
    await drained;
    expect(order).toEqual(["line", "drained"]);
    await setup.client.drain();
  });

  test("with nothing in flight is drained at once", async () => {
    const setup = await Setup.start();
    await setup.client.drain();
    expect(await setup.proxy()).toEqual({ kind: "interrupted" });
  });

  test("interrupts what is left when it is closed while it drains", async () => {
    const setup = await Setup.start();
    const line = send(setup.client, { body });
    await setup.next();
    const drained = setup.client.drain();
    await setup.client.close();
    expect(await line).toEqual({ kind: "interrupted" });
    await drained;
  });
});
