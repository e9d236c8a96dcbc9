/** Other upstreams under a server that runs, in a process of its own. */
import { mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { afterEach, beforeEach, expect, test } from "vitest";
import { stringify } from "yaml";
import { BatchdProcess } from "./support/process.ts";
import { chatLines } from "./support/service.ts";
import { startUpstream, type TestUpstream } from "./support/upstream.ts";

const LINE_COUNT = 60;

let dir: string;
let path: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "batchd-reload-"));
  path = join(dir, "batchd.yaml");
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** As deployments do it: another file is renamed into its place. */
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

const start = () =>
  new BatchdProcess(["serve", "--port", "0", "--config", path, "--data-dir", join(dir, "data")]);

async function clientOf(server: BatchdProcess): Promise<OpenAI> {
  return new OpenAI({ baseURL: `${await server.listening()}/v1`, apiKey: "none", maxRetries: 0 });
}

async function submit(openai: OpenAI, count: number): Promise<string> {
  const file = new File([chatLines(count).join("\n")], "input.jsonl");
  const { id: input_file_id } = await openai.files.create({ file, purpose: "batch" });
  const batch = await openai.batches.create({
    input_file_id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  return batch.id;
}

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

test("a file that is bad is refused, and the server goes on as it was", async () => {
  await using a = await startUpstream();
  await serving([entry("a", a, 4)]);
  await using server = start();
  const openai = await clientOf(server);

  await configure("upstreams: [{ name: b, base_url: nowhere }]\nprot: 1\n");
  await server.loggedLike(
    /"problems":\[.*upstreams\[0\]\.base_url: .*prot: unknown key.*"config.refused"/,
  );

  expect(await outputIds(server, openai, await submit(openai, 5))).toEqual(idsOf(5));
  expect(a.total).toBe(5);
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
