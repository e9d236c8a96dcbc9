import { mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { LOG_EVENTS } from "../../src/telemetry/log-events.ts";
import { submitLines } from "../support/batches.ts";
import { Events } from "../support/events.ts";
import { BatchdProcess } from "../support/process.ts";
import { Scrape } from "../support/prometheus.ts";
import { serve } from "../support/serve.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { isSource, readSources } from "../support/source-tree.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

test("what the log says of a line names its batch, its chunk, its number and the upstream's request", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run([chatLine("good", "Hello"), chatLine("bad", "[[status 404]]")]);
  const upstream_request_id = expect.stringMatching(/^req-[12]$/);
  const lines = service.events.all.filter(({ event }) => event.startsWith("line."));
  expect(lines.toSorted((a, b) => Number(a["line"]) - Number(b["line"]))).toMatchObject([
    { batch: id, chunk: 0, line: 1, outcome: "answered", upstream_request_id },
    { batch: id, chunk: 0, line: 2, outcome: "answered", upstream_request_id },
  ]);
});

test("the fields of the log have names in snake case", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  await service.run([
    chatLine("good", "Hello"),
    chatLine("overloaded", "[[status 429 retry-after-ms 10 x1]]"),
  ]);
  const names = new Set(service.events.all.flatMap((entry) => Object.keys(entry)));
  expect(names).toContain("upstream_request_id");
  expect([...names].filter((name) => !/^[a-z]+(_[a-z]+)*$/.test(name))).toEqual([]);
});

test("the log shows no key, even where one is passed to it", () => {
  const events = new Events();
  const secret = "sk-of-an-operator";
  events.log.info({ api_key: secret, target: { api_key: secret, apiKey: secret } }, "file.stored");
  expect(events.count("file.stored")).toBe(1);
  expect(JSON.stringify(events.all)).not.toContain(secret);
});

test("what is thrown without being an error is logged as it is", () => {
  const events = new Events();
  for (const err of [null, "a text"]) events.log.warn({ err }, "page.poll_failed");
  expect(events.all.map(({ err }) => err)).toEqual([null, "a text"]);
});

test("a file and a batch can be traced back to the request that made them", async () => {
  await using service = await startTestService();
  const file = new File(chatLines(1), "input.jsonl");
  const uploaded = await service.openai.files.create({ file, purpose: "batch" }).withResponse();
  const created = await service.openai.batches
    .create({
      input_file_id: uploaded.data.id,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
    })
    .withResponse();
  const requestIdOf = (event: string) =>
    service.events.all.find((each) => each.event === event)?.["request_id"];
  expect(requestIdOf("file.stored")).toBe(uploaded.response.headers.get("x-request-id"));
  expect(requestIdOf("batch.created")).toBe(created.response.headers.get("x-request-id"));
});

test("what a client has written breaks no line of the log, and orders nothing of a terminal", async () => {
  const folder = await mkdtemp(join(tmpdir(), "batchd-log-"));
  await using server = new BatchdProcess(["serve", "--port", "0", "--data-dir", folder]);
  const input_file_id = "file-\u2028a\u0085b\u009b2Jc\u202ed";
  const answer = await fetch(`${await server.listening()}/v1/batches`, {
    method: "POST",
    body: JSON.stringify({ input_file_id, endpoint: "/v1/chat/completions" }),
  });
  expect(answer.status).toBe(200);
  await server.logged("batch.created");
  const { stderr } = await server.kill("SIGTERM");
  await rm(folder, { recursive: true });
  const created = stderr.split("\n").find((line) => line.includes('"event":"batch.created"'));
  expect(JSON.parse(created ?? "")).toMatchObject({ input: input_file_id });
  expect(created).toMatch(/^[\x20-\x7e]+$/);
});

test("while the storage is away, one line of the log in ten seconds stands for those like it", async () => {
  using folder = temporaryFolder("batchd-log-");
  await using upstream = await startUpstream();
  upstream.hold();
  const args = ["--port", "0", "--data-dir", folder.path, "--upstream", upstream.url];
  const { server, url, openai } = await serve(args);
  await using _ = server;
  for (let n = 0; n < 10; n++) await submitLines(openai, chatLines(1));
  await upstream.reached(10);
  const blobs = join(folder.path, "blobs");
  await rename(blobs, join(folder.path, "away"));
  await writeFile(blobs, "");
  upstream.release();
  const failures = async () => {
    const page = await (await fetch(`${url}/metrics`)).text();
    return new Scrape(page).value("batchd_journal_write_failures_total");
  };
  await expect.poll(failures).toBeGreaterThanOrEqual(20);
  const { stderr } = await server.kill();
  const lines = stderr.split("\n").filter((line) => line.includes("journal.write_failed"));
  const [first, ...others] = lines.map(
    (line) => JSON.parse(line) as { time: string; count: number },
  );
  expect(first?.count).toBe(1);
  let beforeMs = Date.parse(first!.time);
  for (const { time, count } of others) {
    expect(count).toBeGreaterThan(1);
    expect(Date.parse(time) - beforeMs).toBeGreaterThan(9_000);
    beforeMs = Date.parse(time);
  }
});

test("every event that is documented is one that the server logs, at each of its levels", () => {
  const source = readSources("src")
    .filter((file) => isSource(file) && file.path !== "src/telemetry/log-events.ts")
    .map(({ text }) => text)
    .join("\n");
  const documented = Object.entries(LOG_EVENTS).flatMap(([level, events]) =>
    Object.keys(events).map((event) => ({ level, event })),
  );
  // The compiler sees to the level of an event that has only one.
  const isAt = (level: string, event: string) =>
    documented.filter((each) => each.event === event).length === 1 ||
    new RegExp(`\\.${level}\\([^;]*"${event}"`).test(source);
  const unused = documented.filter(
    ({ level, event }) => !source.includes(`"${event}"`) || !isAt(level, event),
  );
  expect(unused).toEqual([]);
});
