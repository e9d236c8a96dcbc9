/** Clients that are gone before a route asks about their connection, such as while the server counted their request. */
import { once } from "node:events";
import { Hono } from "hono";
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { readerOf } from "../../src/http/auth.ts";
import { abortedByClient } from "../../src/http/connection.ts";
import type { AppContext, AppEnv } from "../../src/http/context.ts";
import { listen } from "../../src/http/server.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { RawConnection } from "../support/raw-http.ts";

/** Returns what `look` sees of a request whose client has disconnected. */
async function afterDisconnection<T>(look: (c: AppContext) => T): Promise<T> {
  const begun = Promise.withResolvers<void>();
  const seen = Promise.withResolvers<T>();
  const app = new Hono<AppEnv>();
  app.get("/", async (c) => {
    const closed = once(c.env.outgoing, "close");
    begun.resolve();
    await closed;
    seen.resolve(look(c));
    return c.text("too late");
  });
  const server = await listen(app, { host: "127.0.0.1", port: 0 }, { clock: systemClock });
  if (!server.ok) throw new Error(server.problem);
  const connection = await RawConnection.open(server.url);
  connection.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  await begun.promise;
  connection.socket.destroy();
  const result = await seen.promise;
  await server.close();
  return result;
}

test("a request whose client is gone is known to be over", async () => {
  expect(await afterDisconnection((c) => abortedByClient(c.env.outgoing).aborted)).toBe(true);
});

test("the key of a client that is gone is not looked at for ever", async () => {
  const clock = new FakeClock();
  const isOver = await afterDisconnection((c) => {
    c.set("clock", clock);
    c.set("isKeyGood", () => true);
    return readerOf(c).aborted;
  });
  expect([isOver, clock.sleeperCount]).toEqual([true, 0]);
});
