/**
 * What clients and models send does not fill the memory: a real server, looked at from outside, with a budget that is
 * small beside what it is sent. Others are served meanwhile.
 */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { submitLines } from "./support/batches.ts";
import { forAllTests } from "./support/for-all-tests.ts";
import { BatchdProcess } from "./support/process.ts";
import { hasS3Server, newPrefix, startS3Server } from "./support/s3-server.ts";
import { chatLine, chatLines } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";

const MEBIBYTE = 1024 * 1024;
/** Half of it is for requests, and a quarter for answers. */
const BUDGET_BYTES = 64 * MEBIBYTE;
/** The process alone takes some 200 MB. A buffer that grows is there twice for a moment, and garbage is not collected at once. */
const MAX_MEMORY_BYTES = 400 * MEBIBYTE;

const folder = forAllTests(temporaryFolder("batchd-memory-")).path;
const upstream = forAllTests(await startUpstream());
upstream.forget();

async function start() {
  const dataDir = await mkdtemp(join(folder, "data-"));
  const config = `${dataDir}.yaml`;
  await writeFile(
    config,
    `limits: { memory_bytes: ${BUDGET_BYTES} }
auth: { keys: [{ name: a, key: key-of-a, project: a }, { name: b, key: key-of-b, project: b }] }
`,
  );
  const server = new BatchdProcess([
    "serve",
    "--port",
    "0",
    "--config",
    config,
    "--data-dir",
    dataDir,
    "--upstream",
    upstream.url,
  ]);
  const url = await server.listening();
  return { server, url };
}

const clientOf = (url: string, key: string) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });

async function run(client: OpenAI, server: BatchdProcess, lines: readonly string[]) {
  const { id } = await submitLines(client, lines);
  await server.batchEnded(id);
  return client.batches.retrieve(id);
}

/** Reads the rows of a file one by one: the custom id of each, and a digest of what is behind it. */
async function longRows(client: OpenAI, fileId: string) {
  const { body } = await client.files.content(fileId);
  const rows: { customId: string; rest: string }[] = [];
  const lines = createInterface({ input: Readable.fromWeb(body as ReadableStream) });
  for await (const line of lines) {
    const [, customId = "", rest = ""] = /"custom_id":"([^"]*)"(.*)$/s.exec(line) ?? [];
    rows.push({ customId, rest: createHash("sha256").update(rest).digest("hex") });
  }
  return rows;
}

interface HalfRequest {
  readonly path: string;
  readonly type: string;
  /** What the body begins with. */
  readonly begin: string;
  /** The bytes that follow. */
  readonly bytes: number;
}

const LONG_REQUEST: HalfRequest = {
  path: "/v1/chat/completions",
  type: "application/json",
  begin: '{"model":"m","messages":[{"content":"',
  bytes: 8 * MEBIBYTE,
};

const UPLOAD: HalfRequest = {
  path: "/v1/files",
  type: "multipart/form-data; boundary=b",
  begin: '--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n',
  bytes: 1_000_000,
};

/** Announces a body of 16 MB and sends a part of it, as far as it is taken. */
class HalfSent {
  readonly socket: Socket;
  readonly answered: Promise<string>;

  constructor(url: string, { path, type, begin, bytes }: HalfRequest) {
    const { hostname, port } = new URL(url);
    this.socket = connect(Number(port), hostname);
    this.socket.on("error", () => {});
    this.answered = new Promise((resolve) => {
      this.socket.once("data", (answer) => resolve(answer.toString("latin1")));
      this.socket.once("close", () => resolve(""));
    });
    const head = [
      `POST ${path} HTTP/1.1`,
      "Host: localhost",
      "Authorization: Bearer key-of-a",
      `Content-Type: ${type}`,
      `Content-Length: ${16 * MEBIBYTE}`,
      "",
      begin,
    ].join("\r\n");
    this.socket.write(head);
    this.socket.write(Buffer.alloc(bytes, "x"));
  }
}

describe("the memory is bounded, and others are served,", () => {
  test("while a hundred clients of a project have sent half of a long request", async () => {
    const { server, url } = await start();
    await using _server = server;
    const peakBytes = await server.peakMemoryBytes(async () => {
      const attackers = Array.from({ length: 100 }, () => new HalfSent(url, LONG_REQUEST));
      const first = await Promise.race(attackers.map(({ answered }) => answered));
      expect(first).toMatch(/^HTTP\/1.1 503 [\s\S]*\r\nretry-after: \d+\r\n/i);

      const other = clientOf(url, "key-of-b");
      const batch = await run(other, server, chatLines(50));
      expect(batch.request_counts).toEqual({ total: 50, completed: 50, failed: 0 });
      const content = "y".repeat(5 * MEBIBYTE);
      for (const client of [other, clientOf(url, "key-of-a")]) {
        const long = client === other ? content : "short";
        const messages = [{ role: "user" as const, content: long }];
        const answer = await client.chat.completions.create({ model: "m", messages });
        expect(answer.choices).toHaveLength(1);
      }
      for (const { socket } of attackers) socket.destroy();
      await Promise.all(attackers.map(({ socket }) => socket.destroyed || once(socket, "close")));
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });

  test("while hundreds of clients stop in the middle of an upload", async () => {
    const { server, url } = await start();
    await using _server = server;
    const peakBytes = await server.peakMemoryBytes(async () => {
      const attackers = Array.from({ length: 400 }, () => new HalfSent(url, UPLOAD));
      const { request_counts } = await run(clientOf(url, "key-of-b"), server, chatLines(50));
      expect(request_counts?.completed).toBe(50);
      await Promise.all(attackers.map(({ socket }) => once(socket.destroy(), "close")));
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });

  test("while eight answers of 30 MB come at once", async () => {
    const { server, url } = await start();
    await using _server = server;
    const lines = Array.from({ length: 8 }, (_, i) => chatLine(`line-${i}`, "[[big 30000000]]"));
    const peakBytes = await server.peakMemoryBytes(async () => {
      const large = run(clientOf(url, "key-of-a"), server, lines);
      const small = await run(clientOf(url, "key-of-b"), server, chatLines(50));
      expect(small.request_counts?.completed).toBe(50);
      expect((await large).request_counts).toEqual({ total: 8, completed: 8, failed: 0 });
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });

  test("while lines with equal bodies all get the row of an answer of 30 MB", async () => {
    const { server, url } = await start();
    await using _server = server;
    const client = clientOf(url, "key-of-a");
    const questions = ["[[big 30000000]]", "[[status 400]] [[big 30000000]]"];
    const lines = Array.from({ length: 8 }, (_, i) => {
      const question = questions[i % 2] ?? "";
      return chatLine(`line-${i}`, question, { user: question });
    });
    const peakBytes = await server.peakMemoryBytes(async () => {
      const { id } = await submitLines(client, lines, { x_batchd: { dedupe: true } });
      await server.batchEnded(id);
      const batch = await client.batches.retrieve(id);
      expect(batch.request_counts).toEqual({ total: 8, completed: 4, failed: 4 });
      const failures = [{ status_code: 400, lines: 4 }];
      expect(batch).toMatchObject({ x_batchd: { deduplicated: 6, failures } });
      for (const [i, fileId] of [batch.output_file_id, batch.error_file_id].entries()) {
        const rows = await longRows(client, fileId ?? "");
        const ids = [0, 1, 2, 3].map((n) => `line-${2 * n + i}`);
        expect(rows.map(({ customId }) => customId)).toEqual(ids);
        // Only the ids of the rows differ.
        expect(new Set(rows.map(({ rest }) => rest)).size).toBe(1);
      }
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });

  test("while long results are written that have a failed row here and there", async () => {
    const { server, url } = await start();
    await using _server = server;
    const lines = Array.from({ length: 9_000 }, (_, i) =>
      chatLine(`line-${i}`, i % 30 === 0 ? "[[status 400]]" : "[[big 28000]]"),
    );
    const peakBytes = await server.peakMemoryBytes(async () => {
      const { request_counts } = await run(clientOf(url, "key-of-a"), server, lines);
      expect(request_counts).toEqual({ total: 9_000, completed: 8_700, failed: 300 });
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });

  test("and a request that is larger than its part of the budget goes through", async () => {
    const { server, url } = await start();
    await using _server = server;
    const body = { model: "m", messages: [{ role: "user", content: "z".repeat(17 * MEBIBYTE) }] };
    const requests = [1, 2, 3].map(() =>
      fetch(`${url}/v1/chat/completions`, {
        method: "POST",
        headers: { authorization: "Bearer key-of-a", "content-type": "application/json" },
        body: JSON.stringify(body),
      }).then(async (response) => {
        await response.arrayBuffer();
        return response.status;
      }),
    );
    expect(await Promise.all(requests)).toEqual([200, 200, 200]);
  });
});

/** A client that reads the beginning of an answer, and then no more. */
async function stalledReader(
  url: string,
  path: string,
  accept: string,
  key = "key-of-a",
): Promise<Socket> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on("error", () => {});
  const head = [`GET ${path} HTTP/1.1`, `host: ${hostname}`, `accept: ${accept}`];
  socket.write(`${head.join("\r\n")}\r\nauthorization: Bearer ${key}\r\n\r\n`);
  let text = "";
  while (!text.includes('"custom_id"')) {
    const [piece] = (await once(socket, "data")) as [Buffer];
    text += piece.toString("latin1");
  }
  socket.pause();
  return socket;
}

describe("clients that stop reading long rows hold no row", () => {
  const LONG = "[[big 30000000]]";
  const READERS = 8;

  test("of a batch that runs, nor of one that has ended", async () => {
    const { server, url } = await start();
    await using _server = server;
    const client = clientOf(url, "key-of-a");
    const lines = [1, 2, 3].map((i) => chatLine(`line-${i}`, LONG));
    const { id } = await submitLines(client, [...lines, chatLine("line-4", "[[hang]]")]);
    const completed = async () => (await client.batches.retrieve(id)).request_counts?.completed;
    await expect.poll(completed).toBe(3);
    const path = `/v1/batches/${id}/output`;
    const expectBounded = async () => {
      for (const accept of ["application/jsonl", "text/event-stream"]) {
        const peakBytes = await server.peakMemoryBytes(async () => {
          const readers = await Promise.all(
            Array.from({ length: READERS }, () => stalledReader(url, path, accept)),
          );
          await Promise.all(readers.map((reader) => once(reader.destroy(), "close")));
        });
        expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
      }
    };
    await expectBounded();
    await client.batches.cancel(id);
    await server.batchEnded(id);
    await expectBounded();
  });
});

describe.skipIf(!hasS3Server())("clients that stop reading the results of batches that run", () => {
  const PROJECTS = [0, 1, 2, 3];
  const READERS_OF_PROJECT = 8;
  const LINES = 2_500;
  /** Some megabytes are the lines of a chunk. All that a merge may read ahead would be twice as much for each reader. */
  const MAX_READER_BYTES = 8 * MEBIBYTE;

  test("hold little of what was read ahead from a bucket", async () => {
    await using s3 = await startS3Server();
    const dataDir = await mkdtemp(join(folder, "data-"));
    const config = `${dataDir}.json`;
    const keys = PROJECTS.map((i) => ({ name: `p${i}`, key: `key-of-p${i}`, project: `p${i}` }));
    const storage = s3.storage({ prefix: newPrefix() });
    const limits = { memory_bytes: BUDGET_BYTES };
    await writeFile(config, JSON.stringify({ limits, auth: { keys }, storage }));
    const given = ["--config", config, "--data-dir", dataDir, "--upstream", upstream.url];
    await using server = new BatchdProcess(["serve", "--port", "0", ...given]);
    const url = await server.listening();
    const paths: string[] = [];
    for (const { key } of keys) {
      const client = clientOf(url, key);
      const lines = Array.from({ length: LINES }, (_, i) => chatLine(`line-${i}`, "[[big 7500]]"));
      const { id } = await submitLines(client, [...lines, chatLine("last", "[[hang]]")]);
      const completed = async () => (await client.batches.retrieve(id)).request_counts?.completed;
      await expect.poll(completed).toBe(LINES);
      paths.push(`/v1/batches/${id}/output`);
    }
    const before = await readFile(`/proc/${server.pid}/status`, "utf8");
    const usedBytes = Number(/^VmRSS:\s+(\d+) kB$/m.exec(before)?.[1]) * 1024;
    let readerCount = 0;
    const peakBytes = await server.peakMemoryBytes(async () => {
      const readers: Socket[] = [];
      for (const [i, path] of paths.entries()) {
        // A project may have no more readers than what is free.
        const count = Math.min(READERS_OF_PROJECT, 2 ** (5 - i));
        for (let n = 0; n < count; n++) {
          readers.push(await stalledReader(url, path, "text/event-stream", keys[i]?.key));
        }
      }
      readerCount = readers.length;
      await Promise.all(readers.map((reader) => once(reader.destroy(), "close")));
    });
    expect((peakBytes - usedBytes) / readerCount).toBeLessThan(MAX_READER_BYTES);
  });
});

describe("clients that stop reading a download", () => {
  /** A piece of 512 KiB for each, and as much in its connection, would be 300 MB. */
  const READERS = 300;

  test("hold some short pieces of it, however many they are", async () => {
    const { server, url } = await start();
    await using _server = server;
    const lines = Array.from({ length: 16 }, () => chatLine("a", "x".repeat(MEBIBYTE)));
    const file = new File([lines.join("\n")], "i.jsonl");
    const { id } = await clientOf(url, "key-of-a").files.create({ file, purpose: "batch" });
    const peakBytes = await server.peakMemoryBytes(async () => {
      const readers = await Promise.all(
        Array.from({ length: READERS }, () =>
          stalledReader(url, `/v1/files/${id}/content`, "application/octet-stream"),
        ),
      );
      const { request_counts } = await run(clientOf(url, "key-of-b"), server, chatLines(50));
      expect(request_counts?.completed).toBe(50);
      await Promise.all(readers.map((reader) => once(reader.destroy(), "close")));
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });
});

describe("clients that look at long lines at the same time hold no more than the budget", () => {
  const CLIENTS = 8;
  const LONG = "[[status 400]] [[big 30000000]]";
  let server: BatchdProcess;
  let batchUrl: string;

  beforeAll(async () => {
    const started = await start();
    server = started.server;
    const lines = [1, 2].map((i) => chatLine(`line-${i}`, LONG));
    const { id } = await run(clientOf(started.url, "key-of-a"), server, lines);
    batchUrl = `${started.url}/v1/batches/${id}`;
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test.each(["lines", "lines?status=failed", "failures"])("%s", async (page) => {
    const ask = async () => {
      const headers = { authorization: "Bearer key-of-a" };
      const response = await fetch(`${batchUrl}/${page}`, { headers });
      for await (const _ of response.body ?? []);
      return response.status;
    };
    const statuses: number[] = [];
    const peakBytes = await server.peakMemoryBytes(async () => {
      statuses.push(...(await Promise.all(Array.from({ length: CLIENTS }, ask))));
    });
    expect(statuses).toContain(200);
    expect(statuses.every((status) => status === 200 || status === 503)).toBe(true);
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });
});
