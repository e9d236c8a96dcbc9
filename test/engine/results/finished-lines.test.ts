import { describe, expect, test } from "vitest";
import { blobsAround } from "../../support/gated-blobs.ts";
import { HeldRead } from "../../support/held-read.ts";
import { startReplicas } from "../../support/replicas.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../../support/service.ts";
import { startUpstream, type TestUpstream } from "../../support/upstream.ts";

type Row = {
  readonly custom_id: string;
  readonly x_batchd: { readonly line: number };
  readonly error: { readonly code: string } | null;
};

async function read({ url }: TestService, id: string, path: string, init: RequestInit = {}) {
  const response = await fetch(`${url}/v1/batches/${id}/${path}`, init);
  const text = await response.text();
  const lines = text.split("\n").slice(0, -1);
  const rows = response.ok ? lines.map((line) => JSON.parse(line) as Row) : [];
  return { status: response.status, headers: response.headers, text, rows };
}

const WAIT_SECONDS = 60;

/** Resolves once as many readers wait as there may be. */
async function waitInAllPlaces(service: TestService, id: string, init: RequestInit = {}) {
  const path = `output?wait=${WAIT_SECONDS}`;
  const readers = Array.from({ length: 8 }, () => read(service, id, path, init).catch(() => null));
  await expect.poll(async () => (await read(service, id, "errors")).status).toBe(429);
  return { over: Promise.all(readers) };
}

const numbersOf = (rows: readonly Row[]) => rows.map(({ x_batchd }) => x_batchd.line);
/** What the result file has of the rows. */
const asInFile = (rows: readonly Row[]) =>
  rows.map(({ x_batchd: _, ...row }) => `${JSON.stringify(row)}\n`).join("");

const limitedTo = (upstream: TestUpstream, max_concurrency: number) => ({
  upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency }],
});

/** Every third line fails, and the last ones hang. */
const mixed = (count: number, answered: number) =>
  chatLines(count, (n) => (n > answered ? "[[hang]]" : n % 3 === 0 ? "[[status 400]]" : "fine"));

test("the finished lines of a running batch are read in the order of the input, each with its number", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: { ...limitedTo(upstream, 64), engine: { stop_grace_seconds: 0 } },
  });
  const { id } = await service.submit(mixed(40, 30));
  await service.events.reached("line.recorded", { batch: id, count: 30 });
  await expect.poll(async () => (await read(service, id, "output")).rows.length).toBe(20);
  const output = await read(service, id, "output");
  expect(output.headers.get("x-batch-status")).toBe("in_progress");
  expect(output.headers.get("content-type")).toBe("application/jsonl");
  const wanted = Array.from({ length: 30 }, (_, i) => i + 1);
  expect(numbersOf(output.rows)).toEqual(wanted.filter((n) => n % 3 !== 0));
  expect(output.rows.map((row) => row.custom_id)).toEqual(
    numbersOf(output.rows).map((n) => `line-${n}`),
  );
  const errors = await read(service, id, "errors?after_line=10&limit=3");
  expect(numbersOf(errors.rows)).toEqual([12, 15, 18]);

  await service.openai.batches.cancel(id);
  const batch = await service.ended(id);
  const all = await read(service, id, "output");
  expect(all.headers.get("x-batch-status")).toBe("cancelled");
  expect(asInFile(all.rows)).toBe(await service.text(batch.output_file_id));
  expect(all.text.slice(0, output.text.length)).toBe(output.text);
  const failed = await read(service, id, "errors?after_line=29");
  expect(numbersOf(failed.rows)).toEqual([30, ...Array.from({ length: 10 }, (_, i) => i + 31)]);
  expect(failed.rows.at(-1)?.error?.code).toBe("batch_cancelled");
  expect((await read(service, id, "output?after_line=29")).text).toBe("");
});

test("lines of several models are in the order of the input, also behind a line within", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: {
      limits: { allow_mixed_models: true },
      engine: { drain_grace_seconds: 0 },
      upstreams: ["a", "b"].map((name) => ({ name, base_url: upstream.url, models: [name] })),
    },
  });
  const count = 1_300;
  const lines = Array.from({ length: count }, (_, i) =>
    chatLine(`line-${i + 1}`, i === count - 1 ? "[[hang]]" : "fine", { model: i % 2 ? "a" : "b" }),
  );
  const { id } = await service.submit(lines);
  const completed = async () =>
    (await service.openai.batches.retrieve(id)).request_counts?.completed;
  await expect.poll(completed).toBe(count - 1);
  for (const after of [0, 1, 511, 512, 700, 1_298, 1_299]) {
    const { rows } = await read(service, id, `output?after_line=${after}`);
    expect(numbersOf(rows)).toEqual(
      Array.from({ length: count - 1 - after }, (_, i) => after + i + 1),
    );
  }
});

test("long rows are read as they are in the result file, while the batch runs and after its end", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { engine: { stop_grace_seconds: 0 } },
  });
  const prompts = ["[[big 700000]]", "fine", "[[big 300000]]", "[[big 5000000]]", "fine"];
  const lines = prompts.map((prompt, i) => chatLine(`line-${i + 1}`, prompt));
  const { id } = await service.submit([...lines, chatLine("line-6", "[[hang]]")]);
  const completed = async () =>
    (await service.openai.batches.retrieve(id)).request_counts?.completed;
  await expect.poll(completed).toBe(5);
  const early = await read(service, id, "output");
  expect(numbersOf(early.rows)).toEqual([1, 2, 3, 4, 5]);

  await service.openai.batches.cancel(id);
  const { output_file_id } = await service.ended(id);
  expect(asInFile(early.rows)).toBe(await service.text(output_file_id));
  const late = await read(service, id, "output");
  expect(late.text === early.text).toBe(true);
  expect(numbersOf((await read(service, id, "output?after_line=3")).rows)).toEqual([4, 5]);
  const headers = { accept: "text/event-stream" };
  const events = await (await fetch(`${service.url}/v1/batches/${id}/output`, { headers })).text();
  const data = [...events.matchAll(/^data: (\{"id":"batch_req.*)$/gm)].map(([, row]) => `${row}\n`);
  expect(data.join("") === early.text).toBe(true);
});

test.each([
  ["a long row whole", "read as a stream", ["fine", "[[big 700000]]", "fine"], "hold"],
  [
    "the rows of a large chunk",
    "read one by one",
    Array.from({ length: 24 }, () => "[[big 200000]]"),
    "holdRange",
  ],
] as const)(
  "a reader gets %s, %s, when the journal goes with the end of the batch",
  async (_, __, prompts, hold) => {
    const wrapped = blobsAround(HeldRead);
    await using upstream = await startUpstream();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { engine: { stop_grace_seconds: 0 } },
      openStorage: wrapped.open,
    });
    const lines = [...prompts, "[[hang]]"].map((prompt, i) => chatLine(`line-${i}`, prompt));
    const { id } = await service.submit(lines);
    const completed = async () =>
      (await service.openai.batches.retrieve(id)).request_counts?.completed;
    await expect.poll(completed).toBe(prompts.length);
    const held = wrapped.blobs();
    held[hold]("journal/");
    const reading = read(service, id, "output");
    await held.reached.promise;
    await service.openai.batches.cancel(id);
    const { output_file_id } = await service.ended(id);
    await service.events.reached("journal.removed", { batch: id });
    held.released.resolve();
    const { rows } = await reading;
    expect(numbersOf(rows)).toEqual(prompts.map((__, i) => i + 1));
    expect(asInFile(rows) === (await service.text(output_file_id))).toBe(true);
  },
);

test("another replica reads the lines as soon as they are durable", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const { id } = await a.service.submit(mixed(10, 6));
  await a.service.events.reached("line.recorded", { batch: id, count: 6 });
  a.clock.advance(500);
  await a.service.events.reached("journal.flushed", { batch: id });
  const [first, second] = await Promise.all(
    [a, b].map(({ service }) => read(service, id, "output")),
  );
  expect(first?.rows.length).toBeGreaterThan(0);
  expect(second?.text).toBe(first?.text);
});

describe("a reader that waits", () => {
  test("gets the first line once there is one, and nothing when the batch ends without", async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url });
    upstream.hold();
    const { id } = await service.submit(chatLines(1));
    await upstream.reached(1);
    expect((await read(service, id, "output")).text).toBe("");
    const output = read(service, id, "output?wait=60");
    const errors = read(service, id, "errors?wait=60");
    upstream.release();
    expect(numbersOf((await output).rows)).toEqual([1]);
    expect(await errors).toMatchObject({ status: 200, text: "" });
  });

  test("ends with the server", async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { engine: { drain_grace_seconds: 0 } },
    });
    upstream.hold();
    const { id } = await service.submit(chatLines(1));
    await upstream.reached(1);
    const waiting = await waitInAllPlaces(service, id);
    const startedAtMs = performance.now();
    await service.close();
    await waiting.over;
    expect(performance.now() - startedAtMs).toBeLessThan(WAIT_SECONDS * 500);
  });

  test("has a place of a few, which its client gives back when it leaves", async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url });
    upstream.hold();
    const { id } = await service.submit(chatLines(1));
    await upstream.reached(1);
    const leave = new AbortController();
    const waiting = await waitInAllPlaces(service, id, { signal: leave.signal });
    const refused = await read(service, id, "errors");
    expect(refused.headers.get("retry-after")).toBe("1");
    leave.abort();
    await waiting.over;
    await expect.poll(async () => (await read(service, id, "errors")).status).toBe(200);
    upstream.release();
  });
});

test.each([
  ["limit=0", "integer_below_min_value"],
  ["limit=1000001", "integer_above_max_value"],
  ["after_line=-1", "integer_below_min_value"],
  ["after_line=x", "invalid_type"],
  ["wait=61", "integer_above_max_value"],
  ["after=1", "unknown_parameter"],
])("%s is refused", async (query, code) => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run(chatLines(1));
  const { status, text } = await read(service, id, `output?${query}`);
  expect([status, (JSON.parse(text) as { error: { code: string } }).error.code]).toEqual([
    400,
    code,
  ]);
});
