/** A server that runs takes other upstreams, in a process of its own. */
import { execFileSync } from "node:child_process";
import { mkdtemp, rename, rm, symlink, watch, writeFile } from "node:fs/promises";
import { devNull, tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { afterEach, beforeEach, expect, test } from "vitest";
import { stringify } from "yaml";
import { submitLines } from "./support/batches.ts";
import { BatchdProcess } from "./support/process.ts";
import { startReceiver } from "./support/receiver.ts";
import { chatLines } from "./support/service.ts";
import { SlowUpload } from "./support/slow-upload.ts";
import { startUpstream, type TestUpstream } from "./support/upstream.ts";

const LINE_COUNT = 60;

let dir: string;
let path: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "batchd-reload-"));
  path = join(dir, "batchd.yaml");
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** It is done as deployments do it: another file is renamed into its place. */
async function configure(text: string): Promise<void> {
  await writeFile(`${path}.tmp`, text);
  await rename(`${path}.tmp`, path);
}

const serving = (upstreams: readonly object[]) => configure(stringify({ upstreams }));

/** An upstream with exactly so many slots for the lines of batches. */
const entry = (name: string, { url }: TestUpstream, slots: number) => ({
  name,
  base_url: url,
  models: ["test-model"],
  min_concurrency: slots,
  max_concurrency: slots,
  interactive_reserve: 0,
});

const start = (config = path) =>
  new BatchdProcess(["serve", "--port", "0", "--config", config, "--data-dir", join(dir, "data")]);

async function clientOf(server: BatchdProcess): Promise<OpenAI> {
  return new OpenAI({ baseURL: `${await server.listening()}/v1`, apiKey: "none", maxRetries: 0 });
}

const submit = async (openai: OpenAI, count: number): Promise<string> =>
  (await submitLines(openai, chatLines(count))).id;

/** The ids of the lines in the output file of a batch, once it is completed. */
async function outputIds(server: BatchdProcess, openai: OpenAI, id: string): Promise<string[]> {
  await server.batchEnded(id);
  const batch = await openai.batches.retrieve(id);
  expect(batch).toMatchObject({ status: "completed", request_counts: { failed: 0 } });
  const text = await (await openai.files.content(batch.output_file_id ?? "")).text();
  return text
    .trimEnd()
    .split("\n")
    .map((line) => (JSON.parse(line) as { custom_id: string }).custom_id);
}

const idsOf = (count: number) => Array.from({ length: count }, (_, i) => `line-${i + 1}`);

/** Answers what is held, and holds what comes next. */
function answerHeld(upstream: TestUpstream): void {
  upstream.release();
  upstream.hold();
}

test("upstreams come, change their limit and go while a batch runs, and each line is answered once", async () => {
  await using a = await startUpstream();
  await using b = await startUpstream();
  for (const upstream of [a, b]) upstream.hold();
  await serving([entry("a", a, 4)]);
  await using server = start();
  const openai = await clientOf(server);
  const id = await submit(openai, LINE_COUNT);
  await a.reached(4);

  await serving([entry("a", a, 4), entry("b", b, 4)]);
  await server.loggedLike(/"added":\["b"\].*"config.reloaded"/);
  expect([a.inFlight, b.total]).toEqual([4, 0]);
  answerHeld(a);
  await Promise.all([a.reached(8), b.reached(4)]);

  await serving([entry("a", a, 4), entry("b", b, 8)]);
  await server.loggedLike(/"changed":\["b"\].*"config.reloaded"/);
  await b.reached(8);

  await serving([entry("b", b, 8)]);
  await server.loggedLike(/"removed":\["a"\].*"config.reloaded"/);
  expect([a.inFlight, b.inFlight]).toEqual([4, 8]);
  for (const upstream of [a, b]) upstream.release();

  expect(await outputIds(server, openai, id)).toEqual(idsOf(LINE_COUNT));
  expect([a.total, b.total]).toEqual([8, LINE_COUNT - 8]);
  for (const line of idsOf(LINE_COUNT)) {
    expect((a.received.get(line) ?? 0) + (b.received.get(line) ?? 0), line).toBe(1);
  }
});

test("a file that is emptied takes neither the keys nor the upstreams away", async () => {
  await keyed("sk-old");
  await using server = start();
  const url = await server.listening();

  await configure("");
  server.signal("SIGHUP");
  await server.loggedLike(
    /"problems":\["the configuration file has no settings any more.*"config.refused"/,
  );

  expect((await fetch(`${url}/v1/files`)).status).toBe(401);
});

test("a file that becomes a pipe holds up no request, and is not read again", async () => {
  await keyed("sk-old");
  await using server = start();
  const url = await server.listening();

  execFileSync("mkfifo", [`${path}.tmp`]);
  await rename(`${path}.tmp`, path);
  server.signal("SIGHUP");
  await server.loggedLike(/is no file, and is not read again: restart.*"config.refused"/);

  expect((await fetch(`${url}/v1/files`)).status).toBe(401);
});

test("the null device, which says nothing, is loaded again without a complaint", async () => {
  await using server = start(devNull);
  await server.listening();
  server.signal("SIGHUP");
  await server.loggedLike(/"config.reloaded"/);
});

test("a path that leads nowhere any more is refused like a file with a fault", async () => {
  await keyed("sk-old");
  await using server = start();
  const url = await server.listening();

  await symlink(path, `${path}.tmp`);
  await rename(`${path}.tmp`, path);
  await server.loggedLike(/"problems":\["cannot read [^"]*ELOOP.*"config.refused"/);

  expect((await fetch(`${url}/v1/files`)).status).toBe(401);
});

test("SIGHUP loads the file again, and names what needs a restart", async () => {
  await using a = await startUpstream();
  await serving([]);
  await using server = start();
  const openai = await clientOf(server);

  await configure(stringify({ upstreams: [entry("a", a, 4)], server: { host: "127.0.0.2" } }));
  server.signal("SIGHUP");
  await server.loggedLike(/"added":\["a"\].*"config.reloaded"/);
  await server.loggedLike(/"keys":\["server.host"\].*"config.restart_needed"/);
  server.signal("SIGHUP");
  await server.loggedLike(/"added":\[\],"removed":\[\],"changed":\[\].*"config.reloaded"/);

  expect(await outputIds(server, openai, await submit(openai, 5))).toEqual(idsOf(5));
});

const TOO_LARGE = 400;
/** Resolves at the first change in a folder. */
async function someChange(folder: string): Promise<void> {
  for await (const _ of watch(folder)) return;
}

const keyed = (key: string, more: object = {}) =>
  configure(stringify({ auth: { keys: [{ name: "ci", key }] }, ...more }));

/** Limits for files of every purpose. */
const upTo = (bytes: number) => ({ max_file_bytes: bytes, max_upload_bytes: bytes });

test("a key that is taken away stops working at once, and a request that had begun under it ends well", async () => {
  await keyed("sk-old", { limits: upTo(4_000) });
  await using server = start();
  const url = await server.listening();
  const statusWith = async (key: string) => {
    const headers = { authorization: `Bearer ${key}` };
    return (await fetch(`${url}/v1/files`, { headers })).status;
  };
  const stored = someChange(join(dir, "data", "blobs", ".tmp"));
  const uploading = new SlowUpload(url, "sk-old");
  await uploading.send("x".repeat(2_000));
  await stored;
  expect([await statusWith("sk-old"), await statusWith("sk-new")]).toEqual([200, 401]);

  await keyed("sk-new", { limits: upTo(1_000) });
  await server.loggedLike(/"keys":\["limits\..*","auth.keys"\].*"config.reloaded"/);

  expect([await statusWith("sk-old"), await statusWith("sk-new")]).toEqual([401, 200]);
  await uploading.send("y");
  expect(await uploading.end()).toBe(200);
  const late = new SlowUpload(url, "sk-new");
  await late.send("x".repeat(2_000));
  expect(await late.end()).toBe(TOO_LARGE);
});

test("a file without its second half does not take the keys away", async () => {
  await keyed("sk-old", { log_level: "info" });
  await using server = start();
  const url = await server.listening();

  await configure(stringify({ log_level: "info" }));
  await server.loggedLike(/"problems":\["the configuration file has no `auth`.*"config.refused"/);

  expect((await fetch(`${url}/v1/files`)).status).toBe(401);
});

test("a webhook that comes is told, and the log speaks at its new level", async () => {
  await using a = await startUpstream();
  await using receiver = await startReceiver();
  await configure(stringify({ upstreams: [entry("a", a, 4)], log_level: "warn" }));
  await using server = start();
  const openai = await clientOf(server);

  await configure(
    stringify({
      upstreams: [entry("a", a, 4)],
      log_level: "debug",
      webhooks: {
        endpoints: [{ name: "w", url: receiver.url, secret: "s3cret" }],
        allow_private_hosts: ["127.0.0.1"],
      },
    }),
  );
  await server.loggedLike(/"level":"info".*"config.reloaded"/);
  await submit(openai, 1);

  await receiver.reached(1);
  await server.loggedLike(/"level":"debug"/);
});
