/**
 * Runs a server on a bucket through `kill -9` and all that a bucket may do to it. A proxy between server and bucket makes
 * the trouble. The upstream lives on and counts.
 */
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import type OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { submitLines, uploadLines } from "../support/batches.ts";
import { runCommand } from "../support/command.ts";
import { pathsBelow } from "../support/files-below.ts";
import { mixedLines } from "../support/mixed-lines.ts";
import { type S3Proxy, startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, newPrefix, type S3Server, startS3Server } from "../support/s3-server.ts";
import { serve } from "../support/serve.ts";
import { chatLines, numbersOf, rowsIn } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const LINES = 1_200;
const { lines, answered, refused } = mixedLines(LINES);

let server: S3Server;

interface Setup {
  readonly folder: string;
  readonly upstreamUrl: string;
  readonly storage: Record<string, unknown>;
}

const argsFor = ({ folder, upstreamUrl, storage }: Setup): string[] => {
  const config = join(folder, "batchd.yaml");
  // JSON is YAML too.
  const engine = { lease_seconds: 3 };
  writeFileSync(config, JSON.stringify({ data_dir: join(folder, "data"), storage, engine }));
  return ["--port", "0", "--config", config, "--upstream", upstreamUrl];
};

async function start(setup: Setup) {
  const { server: batchd, ...rest } = await serve(argsFor(setup));
  return { batchd, ...rest };
}

type Running = Awaited<ReturnType<typeof start>>;

const uploadOne = ({ openai }: Running) => uploadLines(openai, chatLines(1));

const submit = ({ openai }: Running) => submitLines(openai, lines);

/** Each line stands once in one of the two files, in the order of the input. */
async function expectEveryLineOnce(running: Running, id: string): Promise<OpenAI.Batch> {
  const final = await running.openai.batches.retrieve(id);
  if (final.status !== "completed") await running.batchd.batchEnded(id);
  const batch = await running.openai.batches.retrieve(id);
  const output = await rowsIn(running.openai, batch.output_file_id);
  const error = await rowsIn(running.openai, batch.error_file_id);
  expect(numbersOf(output)).toEqual(answered);
  expect(numbersOf(error)).toEqual(refused);
  return batch;
}

/** The keys of all blobs of a prefix. */
const stored = (prefix: string): string[] =>
  pathsBelow(join(server.bucketFolder, prefix)).filter((path) => !basename(path).startsWith("."));

const answerOf = (error: unknown) => {
  const { status, headers } = error as InstanceType<typeof OpenAI.APIError>;
  return { status, retryAfter: headers?.get("retry-after") };
};

async function expectUnavailable(running: Running, fileId: string): Promise<void> {
  const unavailable = { status: 503, retryAfter: "5" };
  const refusals = [uploadOne(running), running.openai.files.content(fileId)];
  for (const refusal of await Promise.all(refusals.map((each) => each.catch(answerOf)))) {
    expect(refusal).toEqual(unavailable);
  }
  expect((await fetch(`${running.url}/ready`)).status).toBe(503);
}

async function outage(
  kind: "slow_down" | "silent" | "page_found",
  { proxy, running, fileId }: { proxy: S3Proxy; running: Running; fileId: string },
): Promise<void> {
  proxy.trouble = { kind };
  await running.batchd.logged("journal.write_failed");
  await expectUnavailable(running, fileId);
  proxy.trouble = null;
}

describe.skipIf(!hasS3Server())("files, journals and results in a bucket", () => {
  beforeAll(async () => {
    server = await startS3Server();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test("outlive kill -9, an outage of the bucket and cut connections: no line is lost or doubled", async () => {
    using dir = temporaryFolder("batchd-s3-");
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const prefix = "crash/";
    const storage = server.storage({ prefix, endpoint: proxy.url });
    const setup = { folder: dir.path, upstreamUrl: upstream.url, storage };
    let running = await start(setup);
    const { id, input_file_id: inputId } = await submit(running);
    await upstream.reached(LINES / 6);
    await running.batchd.kill();
    running = await start(setup);
    await upstream.reached(upstream.total + LINES / 6);
    await outage("slow_down", { proxy, running, fileId: inputId });
    await upstream.reached(upstream.total + LINES / 6);
    const { stderr } = await running.batchd.kill();
    const ofOutage = stderr.split("\n").filter((line) => line.includes("BLOBS_UNAVAILABLE"));
    expect(ofOutage.join("\n")).toContain("SlowDown");
    expect(ofOutage.join("\n")).not.toContain("stack");
    proxy.trouble = { kind: "cut", afterBytes: 20_000 };
    running = await start(setup);

    const batch = await expectEveryLineOnce(running, id);

    // The start sweeps what the one before has left, and the bucket holds nothing but the files of the client.
    await running.batchd.kill("SIGTERM");
    proxy.trouble = null;
    running = await start(setup);
    const files = [inputId, batch.output_file_id, batch.error_file_id];
    await expect.poll(() => stored(prefix)).toEqual(files.map((file) => `files/${file}`).sort());
    expect(existsSync(join(dir.path, "data/blobs"))).toBe(false);
    for (const file of files) await running.openai.files.delete(file!);
    await expect.poll(() => stored(prefix)).toEqual([]);
    await running.batchd.kill("SIGTERM");
  });

  test("wait for a bucket that says nothing, while answers are kept and while results are written, and for one far away", async () => {
    using dir = temporaryFolder("batchd-s3-");
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({
      prefix: newPrefix(),
      endpoint: proxy.url,
      timeout_seconds: 1,
    });
    const setup = { folder: dir.path, upstreamUrl: upstream.url, storage };
    const running = await start(setup);
    proxy.trouble = { kind: "far", delayMs: 100 };
    const { id, input_file_id: inputId } = await submit(running);
    await upstream.reached(LINES / 6);
    await outage("silent", { proxy, running, fileId: inputId });

    // The results are the first objects that are written under `files/` since the input.
    proxy.trouble = { kind: "hold", method: "PUT", path: /\/files\// };
    await running.batchd.loggedLike(/"event":"loop\.pass_failed"/);
    expect(proxy.held.length).toBeGreaterThan(0);
    proxy.trouble = { kind: "far", delayMs: 100 };
    await expectEveryLineOnce(running, id);
    await running.batchd.kill("SIGTERM");
  });

  test("are never taken for stored because of a page that a proxy shows in the place of the bucket", async () => {
    using dir = temporaryFolder("batchd-s3-");
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    const running = await start({ folder: dir.path, upstreamUrl: upstream.url, storage });
    const { id, input_file_id: inputId } = await submit(running);
    await upstream.reached(LINES / 6);
    await outage("page_found", { proxy, running, fileId: inputId });
    await expectEveryLineOnce(running, id);
    const { stderr } = await running.batchd.kill("SIGTERM");
    expect(stderr).toContain("S3: NotFromBucket: what was written has no ETag or id");
  });

  test("are not taken for garbage by a server without their database", async () => {
    using dir = temporaryFolder("batchd-s3-");
    const prefix = newPrefix();
    const storage = server.storage({ prefix });
    const setup = { folder: dir.path, upstreamUrl: "http://127.0.0.1:9/v1", storage };
    const running = await start(setup);
    const id = await uploadOne(running);
    await running.batchd.kill("SIGTERM");
    rmSync(join(dir.path, "data"), { recursive: true });
    // The first refusal must leave nothing that makes the second start look like one with a database.
    for (let n = 1; n <= 2; n++) {
      const { code, stderr } = await runCommand(["serve", ...argsFor(setup)]);
      expect(code).toBe(1);
      expect(stderr).toContain(
        `batchd.sqlite is missing, but there are files in s3://tests/${prefix}`,
      );
    }
    expect(stored(prefix)).toEqual([`files/${id}`]);
  });

  test("are not taken for lost by a server that looks in another place", async () => {
    using dir = temporaryFolder("batchd-s3-");
    const setup = { folder: dir.path, upstreamUrl: "http://127.0.0.1:9/v1" };
    const prefix = newPrefix();
    const running = await start({ ...setup, storage: server.storage({ prefix }) });
    await running.batchd.kill("SIGTERM");
    for (const storage of [server.storage({ prefix: newPrefix() }), { type: "folder" }]) {
      const { code, stderr } = await runCommand(["serve", ...argsFor({ ...setup, storage })]);
      expect(code).toBe(1);
      expect(stderr).toContain(`the files of this database are in s3://tests/${prefix}`);
    }
  });

  test("are not taken for lost by a server that looks at another address, where a bucket has the same name", async () => {
    using dir = temporaryFolder("batchd-s3-");
    await using other = await startS3Server();
    const prefix = newPrefix();
    const setup = { folder: dir.path, upstreamUrl: "http://127.0.0.1:9/v1" };
    const storage = server.storage({ prefix });
    const running = await start({ ...setup, storage });
    const id = await uploadOne(running);
    await running.batchd.kill("SIGTERM");
    const elsewhere = argsFor({ ...setup, storage: other.storage({ prefix }) });
    const { code, stderr } = await runCommand(elsewhere);
    expect([code, stderr]).toEqual([
      1,
      expect.stringContaining("is empty: correct storage.endpoint or restore the files"),
    ]);
    const again = await start({ ...setup, storage });
    expect(await (await again.openai.files.content(id)).text()).toContain("line-1");
    await again.batchd.kill("SIGTERM");
  });

  test("are found after a power cut that emptied the file with the name of their place", async () => {
    using dir = temporaryFolder("batchd-s3-");
    const prefix = newPrefix();
    const storage = server.storage({ prefix });
    const setup = { folder: dir.path, upstreamUrl: "http://127.0.0.1:9/v1", storage };
    const running = await start(setup);
    const id = await uploadOne(running);
    await running.batchd.kill();
    const placePath = join(dir.path, "data", "batchd.storage");
    writeFileSync(placePath, "");
    const again = await start(setup);
    expect(await (await again.openai.files.content(id)).text()).toContain("line-1");
    expect(readFileSync(placePath, "utf8")).toBe(`s3://tests/${prefix}`);
    await again.batchd.kill("SIGTERM");
  });

  test("wait for a bucket that is away at the start; one that refuses is said at once", async () => {
    using dir = temporaryFolder("batchd-s3-");
    await using proxy = await startS3Proxy(server.url);
    const prefix = newPrefix();
    const storage = server.storage({ prefix, endpoint: proxy.url });
    const setup = { folder: dir.path, upstreamUrl: "http://127.0.0.1:9/v1", storage };
    const first = await start(setup);
    await first.batchd.kill("SIGTERM");
    proxy.trouble = { kind: "slow_down" };
    const running = await start(setup);
    expect((await fetch(`${running.url}/ready`)).status).toBe(503);
    proxy.trouble = null;
    expect((await fetch(`${running.url}/ready`)).status).toBe(200);
    await running.batchd.kill("SIGTERM");
    const wrong = { ...setup, storage: { ...storage, secret_access_key: "another-secret-key" } };
    const { code, stderr } = await runCommand(argsFor(wrong));
    expect(code).toBe(1);
    expect(stderr).toContain(`cannot use s3://tests/${prefix}: S3: SignatureDoesNotMatch`);
    expect(stderr).not.toContain("another-secret-key");
  });
});
