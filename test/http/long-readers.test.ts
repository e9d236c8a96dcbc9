/** Clients that read the lines of a batch for long: without a good key they read no further, and an idle one keeps no place. */
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { truncate } from "node:fs/promises";
import type { IncomingMessage } from "node:http";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { ask, clientOf, post } from "../support/projects.ts";
import { RawConnection } from "../support/raw-http.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const admin = "key-admin";
const SILENCE_MS = 300_000;
const READERS_OF_PROJECT = 8;

const upstream = forAllTests(await startUpstream());
const keys = [{ name: "operator", key: admin, scopes: ["admin"] }];
const service = forAllTests(
  await startTestService({ upstreamUrl: upstream.url, config: { auth: { keys } } }),
);
afterAll(() => upstream.release());

async function makeKey(project: string): Promise<{ id: string; key: string }> {
  const { body } = await post(service.url, "admin/keys", { name: "reader", project }, admin);
  return body as unknown as { id: string; key: string };
}

const revoke = (id: string) => ask(service.url, `admin/keys/${id}`, { method: "DELETE" }, admin);

async function submit(key: string, lines: readonly string[]): Promise<string> {
  return (await submitLines(clientOf(service.url, key), lines)).id;
}

test("a stream of lines and a wait for lines end when their key is revoked, while the batch runs on", async () => {
  const { id, key } = await makeKey("revoked");
  upstream.hold();
  const batch = await submit(key, chatLines(3));
  const headers = { authorization: `Bearer ${key}` };
  const url = `${service.url}/v1/batches/${batch}/output`;
  const stream = await fetch(url, { headers: { ...headers, accept: "text/event-stream" } });
  const wait = fetch(`${url}?wait=60`, { headers });
  expect((await revoke(id)).status).toBe(200);
  expect((await wait).status).toBe(401);
  // The connection is cut without an event `end`, so a client connects again, and is refused.
  const text = await stream.text().catch((error: Error) => error.message);
  expect(text).not.toContain("event: end");
  expect((await fetch(url, { headers })).status).toBe(401);
  upstream.release();
  await service.events.reached("batch.completed", { batch });
});

test("rows that end with their key do not look complete, not even to a client of HTTP/1.0", async () => {
  const { id, key } = await makeKey("cut");
  const large = chatLines(40, () => "[[big 500000]]");
  const batch = await submit(key, large);
  await service.events.reached("batch.completed", { batch });
  using connection = await RawConnection.open(service.url);
  const wasReset = connection.wasReset();
  connection.send(
    `GET /v1/batches/${batch}/output HTTP/1.0\r\nAuthorization: Bearer ${key}\r\n\r\n`,
  );
  await once(connection.socket, "data");
  connection.socket.pause();
  expect((await revoke(id)).status).toBe(200);
  await service.events.reached("download.broken", { batch });
  connection.socket.resume();
  expect(await wasReset).toBe(true);
});

test.each(["application/jsonl", "text/event-stream"])(
  "lines as %s that the storage breaks off are a warning that says why",
  async (accept) => {
    const { key } = await makeKey("broken");
    const large = chatLines(3, () => "[[big 500000]]");
    const batch = await submit(key, large);
    await service.events.reached("batch.completed", { batch });
    const { output_file_id } = await clientOf(service.url, key).batches.retrieve(batch);
    await truncate(join(service.dataDir, "blobs", "files", output_file_id ?? ""), 1_000_000);
    const headers = { authorization: `Bearer ${key}`, accept };
    const answer = await fetch(`${service.url}/v1/batches/${batch}/output`, { headers });
    await expect(answer.text()).rejects.toThrow();
    await service.events.reached("download.broken", { batch });
    expect(service.events.all.findLast(({ event }) => event === "download.broken")).toMatchObject({
      level: "warn",
      err: { message: expect.stringContaining("ends before byte") },
    });
  },
);

test("a client that reads nothing of its answer takes little memory, and loses its place after a silence", async () => {
  const { key } = await makeKey("idle");
  const batch = await submit(
    key,
    chatLines(40, () => "[[big 500000]]"),
  );
  await service.events.reached("batch.completed", { batch });
  const sockets = new Set<Socket>();
  const onRequest = (message: unknown) => {
    const { request } = message as { readonly request: IncomingMessage };
    if (request.url?.endsWith("/output") === true) sockets.add(request.socket);
  };
  subscribe("http.server.request.start", onRequest);
  const { hostname, port } = new URL(service.url);
  const clients = Array.from({ length: READERS_OF_PROJECT }, (_, n) => {
    const client = connect(Number(port), hostname);
    const accept = n % 2 === 0 ? "text/event-stream" : "application/jsonl";
    client.write(
      `GET /v1/batches/${batch}/output HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${key}\r\naccept: ${accept}\r\n\r\n`,
    );
    // It is never read from.
    return client.on("error", () => {}).pause();
  });
  const status = async () => (await ask(service.url, `batches/${batch}/lines`, {}, key)).status;
  const isStuck = (socket: Socket) => socket.writableNeedDrain;
  await expect.poll(() => [...sockets].filter(isStuck)).toHaveLength(READERS_OF_PROJECT);
  expect(await status()).toBe(429);
  for (const socket of sockets) {
    expect(socket.writableLength).toBeLessThan(2_000_000);
    // The silence of this test is shorter.
    expect(socket.timeout).toBe(SILENCE_MS);
    socket.setTimeout(1);
  }
  await Promise.all([...sockets].map((socket) => socket.closed || once(socket, "close")));
  await expect.poll(status).toBe(200);
  unsubscribe("http.server.request.start", onRequest);
  for (const client of clients) client.destroy();
});

test("pages of long lines that clients are slow to read have a bound in memory", async () => {
  await using small = await startTestService({
    upstreamUrl: upstream.url,
    config: { limits: { memory_bytes: 32 * 1024 * 1024 } },
  });
  const [short] = chatLines(1);
  const long = (short as string).replace(
    '"custom_id"',
    `"note":"${"x".repeat(12_000_000)}","custom_id"`,
  );
  const batch = await small.run([long]);
  const url = `${small.url}/v1/batches/${batch.id}/lines`;
  const unread = await fetch(url);
  expect(unread.status).toBe(200);

  const refused = await fetch(url);

  expect(refused.status).toBe(503);
  expect(refused.headers.get("retry-after")).toBe("5");
  await refused.body?.cancel();
  await unread.body?.cancel();
  await expect
    .poll(async () => (await fetch(url)).text(), { timeout: 30_000 })
    .toContain('"last_line":1}');
});
