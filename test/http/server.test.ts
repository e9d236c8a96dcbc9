import { once } from "node:events";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import { Hono } from "hono";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import type { App } from "../../src/http/app.ts";
import type { AppEnv } from "../../src/http/context.ts";
import { type Listening, listen } from "../../src/http/server.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { RawConnection, rawRequest } from "../support/raw-http.ts";

/** An app whose `/slow` answers when it is told to. */
function slowApp(): { app: App; asked: Promise<void>; answer: () => void } {
  const asked = Promise.withResolvers<void>();
  const released = Promise.withResolvers<void>();
  const app: App = new Hono<AppEnv>();
  app.get("/", (c) => c.text("ok"));
  app.get("/slow", async (c) => {
    asked.resolve();
    await released.promise;
    return c.text("slow");
  });
  return { app, asked: asked.promise, answer: () => released.resolve() };
}

async function listening(app: App, { clock = systemClock } = {}) {
  const result = await listen(app, { host: "127.0.0.1", port: 0 }, { clock });
  if (!result.ok) throw new Error(result.problem);
  return result;
}

const problemOf = async (host: string, port: number) => {
  const result = await listen(slowApp().app, { host, port }, { clock: systemClock });
  return result.ok ? result.close().then(() => "none") : result.problem;
};

describe("listening", () => {
  test("tells where, on a port of its choice if asked for none", async () => {
    const server = await listening(slowApp().app);
    expect(server.url).toMatch(/^http:\/\/127\.0\.0\.1:[1-9]\d+$/);
    expect((await fetch(server.url)).status).toBe(200);
    await server.close();
  });

  test("says in one line what is wrong with an address", async () => {
    const server = await listening(slowApp().app);
    const port = Number(new URL(server.url).port);
    expect(await problemOf("127.0.0.1", port)).toContain(
      `port ${port} on 127.0.0.1 is already in use`,
    );
    expect(await problemOf("203.0.113.77", 0)).toBe(
      "203.0.113.77 is not an address of this machine",
    );
    expect(await problemOf("no such host", 0)).toBe("the host no such host is not known");
    await server.close();
  });
});

/** Closes the server, which has to be done long before the end of the grace. */
async function closeBefore(graceMs: number, server: Listening): Promise<void> {
  const startedAtMs = performance.now();
  await server.close(graceMs);
  expect(performance.now() - startedAtMs).toBeLessThan(graceMs / 2);
}

describe("closing", () => {
  test("lets an answer finish, then takes no more", async () => {
    const { app, asked, answer } = slowApp();
    const server = await listening(app);
    using connection = await RawConnection.open(server.url);
    connection.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    await asked;
    const closed = server.close();
    await expect(RawConnection.open(server.url)).rejects.toThrow("ECONNREFUSED");
    answer();
    const { headers, body } = await connection.answer();
    expect(body).toBe("slow");
    // A client or a proxy must not send its next request here.
    expect(headers).toMatchObject({ connection: "close" });
    await closed;
  });

  test("answers a request that was on its way on a connection in use", async () => {
    const clock = new FakeClock();
    const server = await listening(slowApp().app, { clock });
    using connection = await RawConnection.open(server.url);
    const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    connection.send(request);
    await connection.answer();
    // No time passes until it is asked.
    const closed = server.close();
    connection.send(request);
    const { status, headers } = await connection.answer();
    expect(status).toBe(200);
    expect(headers).toMatchObject({ connection: "close" });
    await closed;
  });

  test("does not wait for connections that are only kept open", async () => {
    const server = await listening(slowApp().app);
    using connection = await RawConnection.open(server.url);
    connection.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    await connection.answer();
    const ended = once(connection.socket, "end");
    await closeBefore(60_000, server);
    await ended;
  });

  test("nor for those on which nothing was ever asked", async () => {
    const server = await listening(slowApp().app);
    using connection = await RawConnection.open(server.url);
    const ended = once(connection.socket, "close");
    await closeBefore(60_000, server);
    await ended;
  });

  test("cuts what is not done after the grace", async () => {
    const { app, asked } = slowApp();
    const server = await listening(app);
    using connection = await RawConnection.open(server.url);
    connection.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    await asked;
    await server.close(50);
    await expect(connection.answer()).rejects.toThrow("the connection ended");
  });

  test("lets no half answer look complete to a client of HTTP/1.0", async () => {
    const app: App = new Hono<AppEnv>();
    app.get("/half", (c) => {
      c.env.outgoing.writeHead(200).write("half");
      return RESPONSE_ALREADY_SENT;
    });
    const server = await listening(app);
    using connection = await RawConnection.open(server.url);
    const wasReset = connection.wasReset();
    connection.send("GET /half HTTP/1.0\r\n\r\n");
    await once(connection.socket, "data");
    await server.close(50);
    expect(await wasReset).toBe(true);
  });
});

describe("an answer before the end of its request", () => {
  test.each([
    ["that keeps its connection", "1.1", "keep-alive"],
    ["that closes its connection", "1.1", "close"],
    ["of HTTP/1.0", "1.0", "close"],
  ])("reaches a client %s and sends on", async (_whose, version, connectionHeader) => {
    const server = await listening(slowApp().app);
    using connection = await RawConnection.open(server.url);
    const wasReset = connection.wasReset();
    const bytes = 8 * 1024 * 1024;
    connection.send(
      `POST / HTTP/${version}\r\nHost: x\r\nConnection: ${connectionHeader}\r\nContent-Length: ${bytes}\r\n\r\n`,
    );
    expect((await connection.answer()).status).toBe(404);
    const sent = new Promise((resolve) => connection.socket.write(Buffer.alloc(bytes), resolve));
    expect(await sent).toBeFalsy();
    await server.close(60_000);
    expect(await wasReset).toBe(false);
  });
});

describe("what is not HTTP", () => {
  const refusalOf = async (text: string) => {
    const server = await listening(slowApp().app);
    const { status, headers, body } = await rawRequest(server.url, text);
    await server.close();
    expect(headers).toMatchObject({
      "content-type": "application/json",
      connection: "close",
      "x-request-id": expect.stringMatching(/^req_[0-9a-f]{32}$/),
    });
    return { status, error: JSON.parse(body).error };
  };

  test("is refused in the envelope", async () => {
    expect(await refusalOf("HELLO\r\n\r\n")).toEqual({
      status: 400,
      error: {
        message: "The request is not valid HTTP.",
        type: "invalid_request_error",
        param: null,
        code: null,
      },
    });
  });

  test.each([
    ["two hosts", "GET / HTTP/1.1\r\nHost: x\r\nHost: y"],
    [
      "a length and chunks",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
    ],
    ["two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 5"],
    ["a coding besides chunked", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked"],
    [
      "chunks of HTTP/1.0",
      "POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked",
    ],
  ])("or what a proxy may take for something else, with all behind it: %s", async (_what, head) => {
    const { app, asked } = slowApp();
    const server = await listening(app);
    using connection = await RawConnection.open(server.url);
    const closed = once(connection.socket, "close");
    const body = head.startsWith("GET") ? "" : "0\r\n\r\n";
    connection.send(`${head}\r\n\r\n${body}GET /slow HTTP/1.1\r\nHost: x\r\n\r\n`);
    const { status, headers } = await connection.answer();
    expect([status, headers]).toEqual([400, expect.objectContaining({ connection: "close" })]);
    await closed;
    await expect(Promise.race([asked, Promise.resolve("nothing")])).resolves.toBe("nothing");
    await server.close();
  });

  test("or has an address or headers without end, and is told how long both may be", async () => {
    const long = "y".repeat(100_000);
    for (const head of [`GET / HTTP/1.1\r\nx: ${long}`, `GET /${long} HTTP/1.1\r\nx: y`]) {
      const { status, error } = await refusalOf(`${head}\r\n\r\n`);
      expect(status).toBe(431);
      expect(error.message).toContain(
        "The address and the headers of the request are larger than the 16384",
      );
    }
  });
});
