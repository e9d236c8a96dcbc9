/** A wait whose connection dies without a word, as after a change of the network or the sleep of a machine. */
import { once } from "node:events";
import { createServer } from "node:http";
import { afterEach, expect, test, vi } from "vitest";
import { deliver } from "../../src/client/deliveries.ts";
import { Server } from "../../src/client/server.ts";
import type { Session } from "../../src/client/session.ts";
import { watch } from "../../src/client/wait.ts";
import { systemClock } from "../../src/clock.ts";
import { listening } from "../support/listening.ts";

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

const object = (status: string) =>
  JSON.stringify({ id: "batch_1", batch_id: "batch_1", status, address: "/mnt/share" });

test.each([
  ["batch", "completed", (session: Session) => watch("batch_1", session, {})],
  [
    "delivery",
    "delivered",
    (session: Session) => deliver("batch_1", { location: "share", wait: true }, session),
  ],
])("the wait for a %s asks again after 30 s without an answer", async (_, status, wait) => {
  let looks = 0;
  const server = createServer(({ method }, answer) => {
    answer.setHeader("content-type", "application/json");
    if (method === "POST") answer.end(object("pending"));
    else if (++looks > 1) answer.end(object(status));
    else server.emit("silent");
  });
  const url = `http://127.0.0.1:${await listening(server)}/v1`;
  const settings = { url, apiKey: null, isNamedByFlag: false, unusedProxy: null };
  const { signal } = new AbortController();
  const client = new Server({ ...settings, keyVariable: "BATCHD_API_KEY" }, signal);
  for (const stream of [process.stdout, process.stderr]) {
    vi.spyOn(stream, "write").mockReturnValue(true);
  }
  // Time passes as ever, and the half minute at once.
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"], shouldAdvanceTime: true });
  const silent = once(server, "silent");
  const waited = wait({ server: client, clock: systemClock, signal });
  await silent;
  await vi.advanceTimersByTimeAsync(30_000);
  await waited;
  expect(looks).toBe(2);
});
