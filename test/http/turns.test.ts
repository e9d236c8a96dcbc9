/** Requests that a client sends before it has the answer to the first. */
import { Hono } from "hono";
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { whenClosed } from "../../src/http/connection.ts";
import type { AppEnv } from "../../src/http/context.ts";
import { listen } from "../../src/http/server.ts";
import { MAX_SENT_AHEAD } from "../../src/http/turns.ts";
import { RawConnection } from "../support/raw-http.ts";

/** A server that answers `/slow/NAME` when it is told to. */
async function startServer() {
  const begun: string[] = [];
  const asked = Promise.withResolvers<void>();
  const closed = Promise.withResolvers<void>();
  const released = Promise.withResolvers<void>();
  const app = new Hono<AppEnv>();
  app.get("/slow/:name", async (c) => {
    begun.push(c.req.param("name"));
    asked.resolve();
    whenClosed(c.env.outgoing, () => closed.resolve());
    await released.promise;
    return c.text(c.req.param("name"));
  });
  const server = await listen(app, { host: "127.0.0.1", port: 0 }, { clock: systemClock });
  if (!server.ok) throw new Error(server.problem);
  return {
    begun,
    asked: asked.promise,
    /** Resolves once the first answer has ended, or its client is gone. */
    closed: closed.promise,
    answer: () => released.resolve(),
    open: () => RawConnection.open(server.url),
    fetch: (path: string) => fetch(server.url + path),
    [Symbol.asyncDispose]: () => server.close(),
  };
}

const slow = (name: string | number) => `GET /slow/${name} HTTP/1.1\r\nHost: x\r\n\r\n`;

test("the requests of a connection are carried out one after the other, and answered in their order", async () => {
  await using server = await startServer();
  using connection = await server.open();
  connection.send(slow("first") + slow("second") + slow("third"));
  await server.asked;
  // The answer to another client shows that the server had time for all three.
  expect((await server.fetch("/unknown")).status).toBe(404);
  expect(server.begun).toEqual(["first"]);
  server.answer();
  const bodies = [await connection.answer(), await connection.answer(), await connection.answer()];
  expect(bodies.map(({ body }) => body)).toEqual(["first", "second", "third"]);
});

test("requests that wait are not begun after their connection has ended", async () => {
  await using server = await startServer();
  using connection = await server.open();
  connection.send(slow("first") + slow("second"));
  await server.asked;
  connection.socket.destroy();
  await server.closed;
  server.answer();
  expect((await server.fetch("/slow/other")).status).toBe(200);
  expect(server.begun).toEqual(["first", "other"]);
});

test("what cannot be read behind a request is not answered in its place", async () => {
  await using server = await startServer();
  using connection = await server.open();
  connection.send(slow("first"));
  await server.asked;
  connection.send("BAD\r\n\r\n");
  expect((await server.fetch("/unknown")).status).toBe(404);
  server.answer();
  expect(await connection.answer()).toMatchObject({ status: 200, body: "first" });
  await expect(connection.answer()).rejects.toThrow("the connection ended");
});

test("a connection on which too many requests wait is closed", async () => {
  await using server = await startServer();
  using connection = await server.open();
  const texts = Array.from({ length: MAX_SENT_AHEAD + 2 }, (_, i) => slow(i));
  connection.send(texts.join(""));
  await expect(connection.answer()).rejects.toThrow("the connection ended");
  expect(server.begun).toEqual(["0"]);
  server.answer();
});
