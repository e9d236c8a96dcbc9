/** A project that asks for hundreds of things at once holds up no other one. */
import { expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { submitLines } from "../support/batches.ts";
import { blobsAround, GatedBlobs } from "../support/gated-blobs.ts";
import { GOOD } from "../support/given.ts";
import { clientOf } from "../support/projects.ts";
import { RawConnection } from "../support/raw-http.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const BUSY = 300;

test("a request is answered before most of the hundreds that another project sent before it", async () => {
  const keys = ["busy", "other"].map((name) => ({ name, key: name, project: name }));
  await using service = await startTestService({ config: { auth: { keys } } });
  const requestOf = async (key: string) => {
    const { id } = await submitLines(clientOf(service.url, key), chatLines(1));
    return `GET /v1/batches/${id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n\r\n`;
  };
  const [busy, other] = [await requestOf("busy"), await requestOf("other")];
  await using connections = new AsyncDisposableStack();
  const open = async () => connections.use(await RawConnection.open(service.url));
  const sent: [RawConnection, string][] = [];
  for (let n = 0; n < BUSY; n++) sent.push([await open(), busy]);
  sent.push([await open(), other]);
  const answered: string[] = [];
  const answers = sent.map(async ([connection, request]) => {
    expect((await connection.answer()).status).toBe(200);
    answered.push(request);
  });
  for (const [connection, request] of sent) connection.send(request);
  await Promise.all(answers);
  expect(answered.indexOf(other)).toBeLessThan(BUSY / 2);
});

test("a client that connects waits for few of the lists that hundreds of clients who came just before it ask for", async () => {
  const keys = ["busy", "other"].map((name) => ({ name, key: name, project: name }));
  await using service = await startTestService({ config: { auth: { keys } } });
  const client = clientOf(service.url, "busy");
  for (let n = 0; n < 20; n++) await submitLines(client, chatLines(1));
  const listOf = (key: string) =>
    `GET /v1/batches HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n\r\n`;
  await using connections = new AsyncDisposableStack();
  const open = async () => connections.use(await RawConnection.open(service.url));
  let answerCount = 0;
  let isOver = false;
  const ask = async (connection: RawConnection) => {
    while (!isOver) {
      connection.send(listOf("busy"));
      expect((await connection.answer()).status).toBe(200);
      answerCount++;
    }
  };
  const asking = [];
  for (let n = 0; n < 50; n++) asking.push(ask(await open()));
  await expect.poll(() => answerCount).toBeGreaterThan(100);
  const before = answerCount;
  const opening = Array.from({ length: BUSY }, () => open().then(ask));
  const other = await open();
  other.send(listOf("other"));
  expect((await other.answer()).status).toBe(200);
  expect(answerCount - before).toBeLessThan(BUSY);
  isOver = true;
  await Promise.all([...asking, ...opening]);
});

/** Blobs whose puts are done, and end once a test lets them. */
class LateBlobs extends GatedBlobs {
  readonly #ends: (() => void)[] = [];

  get doneCount(): number {
    return this.#ends.length;
  }

  override async put(...[key, source]: Parameters<GatedBlobs["put"]>) {
    const result = await super.put(key, source);
    await new Promise<void>((resolve) => this.#ends.push(resolve));
    return result;
  }

  endAll(): void {
    for (const end of this.#ends.splice(0)) end();
  }
}

const asBusy = { authorization: "Bearer busy" };

/** Makes what sends one file, or one part of an upload. */
const SENDERS = {
  files: async () => ({ path: "files", field: "file" }),
  "parts of an upload": async (url: string) => {
    const asked = { filename: "a", purpose: "batch", bytes: 3 * BUSY, mime_type: "text/jsonl" };
    const request = { method: "POST", body: JSON.stringify(asked), headers: asBusy };
    const { id } = (await (await fetch(`${url}/v1/uploads`, request)).json()) as { id: string };
    return { path: `uploads/${id}/parts`, field: "data" };
  },
};

test.each(Object.entries(SENDERS))(
  "a request waits for few of the hundreds of %s of another project that the disk ends at the same moment",
  async (_, senderAt) => {
    const keys = ["busy", "other"].map((name) => ({ name, key: name, project: name }));
    const late = blobsAround(LateBlobs);
    await using service = await startTestService({
      config: { auth: { keys } },
      openStorage: late.open,
    });
    const { path, field } = await senderAt(service.url);
    using connection = await RawConnection.open(service.url);
    let storedCount = 0;
    const send = async () => {
      const body = new FormData();
      if (field === "file") body.set("purpose", "batch");
      body.set(field, new Blob(["{}\n"]), "in.jsonl");
      const request = { method: "POST", body, headers: asBusy };
      expect((await fetch(`${service.url}/v1/${path}`, request)).status).toBe(200);
      storedCount++;
    };
    const sending = Array.from({ length: BUSY }, send);
    await expect.poll(() => late.blobs().doneCount).toBe(BUSY);
    connection.send("GET /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer other\r\n\r\n");
    late.blobs().endAll();
    expect((await connection.answer()).status).toBe(200);
    expect(storedCount).toBeLessThan(BUSY / 2);
    await Promise.all(sending);
  },
);

test("a batch ends though all the lines that wait for its upstream are those of another project that it cannot answer", async () => {
  await using upstream = await startUpstream({
    answers: ({ body }) => (body.includes("bad") ? { body: "no JSON" } : GOOD),
  });
  const keys = ["busy", "other"].map((name) => ({ name, key: name, project: name }));
  const only = { name: "only", base_url: upstream.url, models: ["*"], max_concurrency: 128 };
  const config = { auth: { keys }, upstreams: [only], engine: { stop_grace_seconds: 0 } };
  await using service = await startTestService({ config });
  const busy = clientOf(service.url, "busy");
  const { id } = await submitLines(
    busy,
    chatLines(300, () => "bad"),
  );
  const waiting = async () =>
    ((await busy.batches.retrieve(id)) as unknown as BatchObject).x_batchd.waiting?.reason;
  await expect.poll(waiting).toBe("upstream_down");
  const other = clientOf(service.url, "other");
  const good = await submitLines(other, chatLines(5));
  const status = async () => (await other.batches.retrieve(good.id)).status;
  await expect.poll(status).toBe("completed");
  await busy.batches.cancel(id);
});

test("a batch has its place behind those of its own project, and does not tell how many another one has", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  const keys = ["busy", "other"].map((name) => ({ name, key: name, project: name }));
  const only = { name: "only", base_url: upstream.url, models: ["*"], max_concurrency: 1 };
  const engine = { stop_grace_seconds: 0 };
  await using service = await startTestService({
    config: { auth: { keys }, upstreams: [only], engine },
  });
  const clients = { busy: clientOf(service.url, "busy"), other: clientOf(service.url, "other") };
  const placesOf = async (key: keyof typeof clients) => {
    const { data } = await clients[key].batches.list();
    return (data as unknown as BatchObject[]).map(({ x_batchd }) => x_batchd.queue_position);
  };
  await submitLines(clients.busy, chatLines(1));
  await upstream.reached(1);
  for (let n = 0; n < 4; n++) await submitLines(clients.busy, chatLines(1));
  await submitLines(clients.other, chatLines(1));
  await expect.poll(() => placesOf("busy")).toEqual([4, 3, 2, 1, 0]);
  await expect.poll(() => placesOf("other")).toEqual([1]);
  upstream.release();
});
