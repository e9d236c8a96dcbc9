/** A connection that dies without a word, as after a change of the network or the sleep of a machine. */
import { once } from "node:events";
import { createServer, type Server as HttpServer, type ServerResponse } from "node:http";
import { afterEach, expect, test, vi } from "vitest";
import { changeBatch, deleteBatch, listBatches, showBatch } from "../../src/client/batches.ts";
import { deliver, listDeliveries } from "../../src/client/deliveries.ts";
import { deleteFile, listFiles, showFile } from "../../src/client/files.ts";
import { Server } from "../../src/client/server.ts";
import type { Session } from "../../src/client/session.ts";
import { watch } from "../../src/client/wait.ts";
import { systemClock } from "../../src/clock.ts";
import { listening } from "../support/listening.ts";

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

async function clientOf(server: HttpServer, signal: AbortSignal): Promise<Server> {
  const url = `http://127.0.0.1:${await listening(server)}/v1`;
  const settings = {
    url,
    apiKey: null,
    isNamedByFlag: false,
    proxyVariable: null,
    usesProxies: false,
  };
  return new Server({ ...settings, keyVariable: "BATCHD_API_KEY" }, signal);
}

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
  const { signal } = new AbortController();
  let looks = 0;
  const server = createServer(({ method }, answer) => {
    answer.setHeader("content-type", "application/json");
    if (method === "POST") answer.end(object("pending"));
    else if (++looks > 1) answer.end(object(status));
    else server.emit("silent");
  });
  const client = await clientOf(server, signal);
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

test.each([
  ["list", (session: Session) => listBatches({ limit: 20 }, session)],
  ["show", (session: Session) => showBatch("batch_1", {}, session)],
  ["deliveries", (session: Session) => listDeliveries("batch_1", {}, session)],
  ["files list", (session: Session) => listFiles({ limit: 20 }, session)],
  ["files show", (session: Session) => showFile("file-1", {}, session)],
  ["cancel", (session: Session) => changeBatch("batch_1", { change: "cancel" }, session)],
  ["pause", (session: Session) => changeBatch("batch_1", { change: "pause" }, session)],
  [
    "resume --budget",
    (session: Session) => changeBatch("batch_1", { change: "resume", budget: "1" }, session),
  ],
  ["delete", (session: Session) => deleteBatch("batch_1", { yes: true }, session)],
  ["files delete", (session: Session) => deleteFile("file-1", { yes: true }, session)],
])("%s gives up after three tries of 30 s without an answer, and says so", async (_, look) => {
  const { signal } = new AbortController();
  const server = createServer(() => server.emit("silent"));
  const client = await clientOf(server, signal);
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"], shouldAdvanceTime: true });
  let silent = once(server, "silent");
  const looked = look({ server: client, clock: systemClock, signal }).catch((error: unknown) =>
    client.explain(error),
  );
  for (let looks = 1; looks <= 3; looks++) {
    await silent;
    silent = once(server, "silent");
    await vi.advanceTimersByTimeAsync(30_000);
    // The SDK pauses for up to a second before it asks again.
    if (looks < 3) await vi.advanceTimersByTimeAsync(1_000);
  }
  expect(await looked).toBe(
    `${client.url} took the request and did not answer in time: the server, or a proxy before it, hangs`,
  );
});

test("the content of a file may take minutes to begin, as where a gateway fetches it first", async () => {
  const { signal } = new AbortController();
  const server = createServer((_, answer) => server.emit("asked", answer));
  const client = await clientOf(server, signal);
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"], shouldAdvanceTime: true });
  const asked = once(server, "asked");
  const content = client.openai.files.content("file-1");
  const [answer] = (await asked) as [ServerResponse];
  await vi.advanceTimersByTimeAsync(300_000);
  answer.end("late");
  expect(await (await content).text()).toBe("late");
});
