/** Inputs that lie in a location of the operator. */
import { randomBytes } from "node:crypto";
import { mkdirSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { PutObjectCommand } from "@aws-sdk/client-s3";
import { describe, expect, test } from "vitest";
import { RunRecord } from "../../src/contract/run.ts";
import { BUCKET, BucketLocations, MIB } from "../support/bucket-locations.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { TestRepository } from "../support/git-repository.ts";
import { listening } from "../support/listening.ts";
import { losingAnswers } from "../support/lost-answer.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, S3_KEYS } from "../support/s3-server.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const root = forAllTests(temporaryFolder("batchd-locations-")).path;
const share = join(root, "share");
const LINES = `${chatLine("a", "Hi")}\n`;
const KEYS = { search: "key-of-search-0123456789", other: "key-of-other-0123456789" };

mkdirSync(join(share, "in"), { recursive: true });
writeFileSync(join(share, "in/plain.jsonl"), LINES);
writeFileSync(join(share, "in/packed.jsonl.gz"), gzipSync(LINES));
writeFileSync(join(share, "in/large.jsonl"), LINES.repeat(100_000));
writeFileSync(join(share, "in/table.csv"), "a,b\n");
writeFileSync(join(root, "secret.jsonl"), LINES);
symlinkSync(join(root, "secret.jsonl"), join(share, "in/link.jsonl"));
const upstream = forAllTests(await startUpstream());
const location = { kind: "folder", path: share };
const service = forAllTests(
  await startTestService({
    upstreamUrl: upstream.url,
    config: {
      auth: {
        keys: Object.entries(KEYS).map(([project, key]) => ({ name: project, key, project })),
      },
      limits: { max_file_bytes: 1_000_000 },
      upstreams: [{ name: "test", base_url: upstream.url, models: ["*"] }],
      locations: [
        { ...location, name: "share", access: "read", projects: ["search"] },
        { ...location, name: "outbox", access: "write" },
      ],
    },
  }),
);

interface Asked {
  readonly input: Record<string, unknown>;
  readonly key?: string;
  readonly idempotencyKey?: string;
}

async function post(path: string, body: object, { key = KEYS.search, idempotencyKey }: Asked) {
  const response = await fetch(`${service.url}/v1/${path}`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${key}`,
      "content-type": "application/json",
      ...(idempotencyKey && { "idempotency-key": idempotencyKey }),
    },
    body: JSON.stringify(body),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const copyFile = (asked: Asked) =>
  post("files", { purpose: "batch", x_batchd: { input: asked.input } }, asked);

const createBatch = (asked: Asked, more: object = {}) =>
  post(
    "batches",
    {
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      x_batchd: { input: asked.input },
      ...more,
    },
    asked,
  );

const get = async (path: string) =>
  fetch(`${service.url}/v1/${path}`, { headers: { authorization: `Bearer ${KEYS.search}` } });

const fileCount = async () =>
  ((await (await get("files?purpose=batch")).json()) as { data: object[] }).data.length;

const PLAIN = { location: "share", path: "in/plain.jsonl" };

describe("a file in a location", () => {
  test("is copied to a file, unpacked if it is packed", async () => {
    const plain = await copyFile({ input: PLAIN });
    expect(plain.body).toMatchObject({ filename: "plain.jsonl", purpose: "batch" });
    const { body } = await copyFile({ input: { ...PLAIN, path: "in/packed.jsonl.gz" } });
    expect(body).toMatchObject({ filename: "packed.jsonl", bytes: LINES.length });
    expect(await (await get(`files/${body["id"]}/content`)).text()).toBe(LINES);
  });

  test("is the input of a batch, whose run record says where it came from", async () => {
    const { status, body } = await createBatch({ input: PLAIN }, { input_file_id: null });
    expect(status).toBe(200);
    const id = String(body["id"]);
    await service.events.reached("batch.completed", { batch: id });
    const record = RunRecord.parse(await (await get(`batches/${id}/run`)).json());
    expect(record.input).toMatchObject({
      file_id: body["input_file_id"],
      filename: "plain.jsonl",
      lines: 1,
      location: { name: "share", path: "in/plain.jsonl" },
    });
  });

  test("is copied once for requests with one idempotency key", async () => {
    const before = await fileCount();
    const asked = { input: PLAIN, idempotencyKey: "copy-1" };
    const [first, second] = [await createBatch(asked), await createBatch(asked)];
    expect(second.body["id"]).toBe(first.body["id"]);
    expect(await fileCount()).toBe(before + 1);
    const other = await createBatch({ ...asked, input: { ...PLAIN, path: "in/other.jsonl" } });
    expect(other.status).toBe(422);
  });
});

describe("refused is", () => {
  test.each([
    ["a location of another project", { key: KEYS.other, input: PLAIN }, "location"],
    ["one that does not exist", { input: { ...PLAIN, location: "nowhere" } }, "location"],
    ["one that takes results only", { input: { ...PLAIN, location: "outbox" } }, "location"],
    ["a path out of it", { input: { ...PLAIN, path: "../secret.jsonl" } }, "path"],
    ["an absolute path", { input: { ...PLAIN, path: join(root, "secret.jsonl") } }, "path"],
    ["a link out of it", { input: { ...PLAIN, path: "in/link.jsonl" } }, "path"],
    ["a file that is not there", { input: { ...PLAIN, path: "in/none.jsonl" } }, "path"],
    ["a folder", { input: { ...PLAIN, path: "in" } }, "path"],
  ])("%s", async (_name, asked: Asked, param) => {
    const before = await fileCount();
    for (const answer of [await copyFile(asked), await createBatch(asked)]) {
      expect(answer).toMatchObject({
        status: 400,
        body: { error: { param: `x_batchd.input.${param}` } },
      });
      expect(JSON.stringify(answer.body)).not.toContain(share);
    }
    expect(await fileCount()).toBe(before);
  });

  test("what the projects of two locations see alike: neither learns what the other has", async () => {
    const [foreign, unknown] = await Promise.all(
      ["share", "nowhere"].map((location) =>
        copyFile({ key: KEYS.other, input: { ...PLAIN, location } }),
      ),
    );
    const text = (answer: typeof foreign) => JSON.stringify(answer).replaceAll("nowhere", "share");
    expect(text(unknown)).toBe(text(foreign));
  });

  test.each([
    ["a file above the limit", "in/large.jsonl", "too large"],
    ["a file that is no input", "in/table.csv", "Must be .jsonl"],
  ])("%s", async (_name, path, message) => {
    const { status, body } = await copyFile({ input: { ...PLAIN, path } });
    expect([status, JSON.stringify(body)]).toEqual([400, expect.stringContaining(message)]);
  });

  test("a batch with two inputs, and its copy is not kept when the batch is refused", async () => {
    const before = await fileCount();
    const two = await createBatch({ input: PLAIN }, { input_file_id: "file-x" });
    expect(two).toMatchObject({ status: 400, body: { error: { param: "input_file_id" } } });
    const unpriced = await createBatch(
      { input: PLAIN },
      { x_batchd: { input: PLAIN, budget: "1.00" } },
    );
    expect(unpriced.status).toBe(400);
    expect(await fileCount()).toBe(before);
  });
});

test("a batch whose commit was made, although the answer of the database was lost, keeps its copied input", async () => {
  await using own = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations: [{ ...location, name: "share", access: "read" }] },
    openStorage: losingAnswers,
  });
  const create = async () => {
    const answer = await fetch(`${own.url}/v1/batches`, {
      method: "POST",
      headers: { "content-type": "application/json", "idempotency-key": "copy-2" },
      body: JSON.stringify({
        endpoint: "/v1/chat/completions",
        completion_window: "24h",
        x_batchd: { input: PLAIN },
      }),
    });
    return { status: answer.status, body: (await answer.json()) as { readonly id: string } };
  };
  expect((await create()).status).toBe(503);
  const { status, body } = await create();
  expect(status).toBe(200);
  expect((await own.ended(body.id)).status).toBe("completed");
});

test("a file of a repository is fetched as far as an input may be long, and no further", async () => {
  using repository = new TestRepository();
  const lines = LINES.repeat(10_000);
  repository.commit({
    "long.jsonl": randomBytes(8_000_000).toString("base64"),
    "fits.jsonl": lines.slice(0, LINES.length * Math.floor(1_000_000 / LINES.length)),
    "short-as-a-pack.jsonl": lines,
  });
  const repo = { name: "repo", kind: "git", repository: repository.path, access: "read" };
  await using own = await startTestService({
    upstreamUrl: upstream.url,
    config: { limits: { max_file_bytes: 1_000_000 }, locations: [repo] },
  });
  const copy = async (path: string) => {
    const input = { location: "repo", path };
    const answer = await fetch(`${own.url}/v1/files`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ purpose: "batch", x_batchd: { input } }),
    });
    return [answer.status, await answer.text()];
  };
  expect(await copy("long.jsonl")).toEqual([
    400,
    expect.stringContaining("long.jsonl in repo has more than the 1000000 bytes that are taken"),
  ]);
  expect(await copy("short-as-a-pack.jsonl")).toEqual([
    400,
    expect.stringContaining("File is too large"),
  ]);
  expect((await copy("fits.jsonl"))[0]).toBe(200);
});

/** Starts a service with a location on an Oxen server that answers a request for a file so. */
async function startWithOxen(answerFile: (socket: Socket) => void) {
  const branch = JSON.stringify({ branch: { name: "main", commit_id: "abc123" } });
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (request) => {
      if (request.toString().includes("/file/")) answerFile(socket);
      else socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${branch.length}\r\n\r\n${branch}`);
    });
  });
  const url = `http://127.0.0.1:${await listening(server)}`;
  const oxen = { name: "data", kind: "oxen", url, repository: "ns/data", access: "read" };
  return startTestService({
    upstreamUrl: upstream.url,
    config: { locations: [oxen] },
  });
}

/** Asks for a file, or for a batch, of `in.jsonl` in the location `data`. */
const askFrom = (
  own: TestService,
  path: "files" | "batches",
  signal: AbortSignal | null = null,
): Promise<Response> =>
  fetch(`${own.url}/v1/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      ...(path === "files"
        ? { purpose: "batch" }
        : { endpoint: "/v1/chat/completions", completion_window: "24h" }),
      x_batchd: { input: { location: "data", path: "in.jsonl" } },
    }),
    signal,
  });

test("a file of an Oxen server that the end of the connection has cut off between two lines makes no batch", async () => {
  await using own = await startWithOxen((socket) => socket.end(`HTTP/1.1 200 OK\r\n\r\n${LINES}`));
  const answer = await askFrom(own, "batches");
  expect(answer.status).toBe(400);
  expect(await answer.text()).toContain("does not say where the file ends");
});

test.each(["files", "batches"] as const)(
  "a client of /v1/%s that leaves in the middle of a copy is no failure of the server",
  async (path) => {
    const left = new AbortController();
    await using own = await startWithOxen((socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n${LINES}`);
      left.abort();
    });
    await expect(askFrom(own, path, left.signal)).rejects.toThrow("aborted");
    await own.events.reached("request.completed", { path: `/v1/${path}` });
    const [completed] = own.events.all.filter(({ event }) => event === "request.completed");
    expect(completed).toMatchObject({ level: "debug", status: 400 });
  },
);

test("a copy beyond those that a project may have at a time is told to come back, and why", async () => {
  const atOnce = 8;
  let askedCount = 0;
  const allAsked = Promise.withResolvers<void>();
  await using own = await startWithOxen(() => {
    askedCount++;
    if (askedCount === atOnce) allAsked.resolve();
  });
  const left = new AbortController();
  const copies = Array.from({ length: atOnce }, () => askFrom(own, "files", left.signal));
  for (const copy of copies) copy.catch(() => {});
  await allAsked.promise;
  const answer = await askFrom(own, "batches");
  expect([answer.status, answer.headers.get("retry-after")]).toEqual([429, "1"]);
  expect(await answer.text()).toContain("wait for a copy of an input");
  left.abort();
  await own.events.reached("request.completed", { path: "/v1/files", count: atOnce });
});

test("a copy ends with its client in the middle of what a single piece unpacks to", async () => {
  await using own = await startTestService({
    config: { locations: [{ ...location, name: "data", access: "read" }] },
  });
  // It is read in one piece, and unpacks to 110 MB.
  const packed = Buffer.concat(Array<Buffer>(80).fill(gzipSync(LINES.repeat(10_000))));
  expect(packed.length).toBeLessThan(500_000);
  writeFileSync(join(share, "in.jsonl"), packed);
  const left = new AbortController();
  const answer = askFrom(own, "batches", left.signal);
  answer.catch(() => {});
  await expect.poll(() => readdirSync(join(own.dataDir, "blobs/.tmp"))).toHaveLength(1);
  left.abort();
  await own.events.reached("request.completed", { path: "/v1/batches" });
  expect(own.events.count("request.completed", { status: 400 })).toBe(1);
  expect((await own.openai.files.list()).data).toEqual([]);
});

test.runIf(hasS3Server())(
  "an object that is replaced while it is read makes no file, and its client is told to try again",
  async () => {
    await using bucket = await BucketLocations.start();
    await using proxy = await startS3Proxy(bucket.url);
    const put = (lines: string) =>
      bucket.client.send(
        new PutObjectCommand({ Bucket: BUCKET, Key: "in.jsonl", Body: lines.repeat(50_000) }),
      );
    await put(LINES);
    const place = { bucket: BUCKET, region: "us-east-1", endpoint: proxy.url, ...S3_KEYS };
    const lake = { name: "data", kind: "s3", access: "read", force_path_style: true, ...place };
    await using own = await startTestService({ config: { locations: [lake] } });
    let replaced: Promise<unknown> | null = null;
    const beforeBreak = () => {
      replaced ??= put(LINES.replace("Hi", "Ho"));
    };
    proxy.trouble = { kind: "cut", afterBytes: MIB, beforeBreak };
    const answer = await askFrom(own, "files");
    await replaced;
    expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, "5"]);
    expect(await answer.text()).toContain("in.jsonl in data changed while it was read");
    expect((await own.openai.files.list()).data).toEqual([]);
  },
);

test("a bucket that is configured as an address or with a folder is no server that may answer later", async () => {
  for (const bucket of ["s3://results", "results/runs"]) {
    const place = { bucket, region: "us-east-1", endpoint: "http://127.0.0.1:9", ...S3_KEYS };
    const lake = { name: "data", kind: "s3", access: "read", ...place };
    await using own = await startTestService({ config: { locations: [lake] } });
    const answer = await askFrom(own, "files");
    expect(answer.status).toBe(400);
    expect(await answer.text()).toContain("Bucket name shouldn't contain '/'");
  }
});
