/** Lines of an ended batch run again as a batch of their own, whose results may be merged with those of the first. */
import { expect, test } from "vitest";
import { type DerivedBatch, derive, look } from "../../support/derived.ts";
import { blobsAround, GatedBlobs } from "../../support/gated-blobs.ts";
import { HeldRead } from "../../support/held-read.ts";
import { chatLine, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

/** Every third line fails when it is sent first; each seventh always. */
const isBad = (n: number) => n % 7 === 0;
const failsFirst = (n: number) => n % 3 === 0 || isBad(n);
const contentOf = (n: number) => {
  if (isBad(n)) return "[[status 400]]";
  return failsFirst(n) ? `[[status 400 x1]] Say ${n}` : `Say ${n}`;
};
const LINES = 700;
const numbers = Array.from({ length: LINES }, (_, i) => i + 1);
const inputLines = numbers.map((n) => chatLine(`line-${n}`, contentOf(n)));
const idsOf = (wanted: readonly number[]) => wanted.map((n) => `line-${n}`);

test("the failed lines run again, and a merged retry has the rows of all lines, in order, also while it runs and when it is retried itself", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const first = await service.run([...inputLines.slice(0, 350), "", ...inputLines.slice(350)]);
  const failed = numbers.filter(failsFirst);
  expect(first.request_counts).toMatchObject({ total: LINES, failed: failed.length });

  upstream.hold();
  const made = await derive(service, { batch: first.id, lines: "failed", merge: true });
  expect([made.status, made.batch.x_batchd.from]).toEqual([
    200,
    { batch: first.id, lines: "failed", merge: true, template: null },
  ]);
  expect((await look(service, first.id)).x_batchd.retried_by).toEqual([made.batch.id]);
  // What is kept of the first batch is there before the lines that run again.
  await upstream.reached(upstream.total + 1);
  const input = await service.text(made.batch.input_file_id);
  expect(input).toBe(failed.map((n) => `${inputLines[n - 1]}\n`).join(""));
  const early = await (await fetch(`${service.url}/v1/batches/${made.batch.id}/output`)).text();
  expect(early.split("\n").length - 1).toBe(LINES - failed.length);
  // The results of the first batch may be deleted once the retry has begun.
  for (const id of [first.output_file_id, first.error_file_id, first.input_file_id]) {
    if (id != null && id !== first.input_file_id) await service.openai.files.delete(id);
  }
  upstream.release();
  const second = await service.ended(made.batch.id);
  const bad = numbers.filter(isBad);
  expect(second.request_counts).toEqual({
    total: failed.length,
    completed: failed.length - bad.length,
    failed: bad.length,
  });
  const output = await service.rows(second.output_file_id);
  expect(output.map((row) => row.custom_id)).toEqual(idsOf(numbers.filter((n) => !isBad(n))));
  const errors = await service.rows(second.error_file_id);
  expect(errors.map((row) => row.custom_id)).toEqual(idsOf(bad));
  // The rows have the numbers of the first input, where line 351 is blank.
  const tail = await fetch(`${service.url}/v1/batches/${second.id}/errors?after_line=700`);
  expect(await tail.text()).toContain('"x_batchd":{"line":701}');

  const third = await derive(service, { batch: second.id, lines: "failed", merge: true });
  const ended = await service.ended(third.batch.id);
  expect(await service.text(third.batch.input_file_id)).toBe(
    bad.map((n) => `${inputLines[n - 1]}\n`).join(""),
  );
  const last = await service.rows(ended.error_file_id);
  expect(last.map((row) => row.custom_id)).toEqual(idsOf(bad));
  expect(await service.rows(ended.output_file_id)).toHaveLength(LINES - bad.length);
});

test("in a chain of twenty merged retries, each has the row of every line once and in order", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const generations = 20;
  // The line n fails n times, so each retry has one failed line less than the one before.
  const all = Array.from({ length: generations + 5 }, (_, i) => i + 1);
  const failsIn = (n: number, sent: number) => n <= generations && n >= sent;
  const lines = all.map((n) =>
    chatLine(`line-${n}`, n <= generations ? `[[status 400 x${n}]] Say ${n}` : `Say ${n}`),
  );
  let batch = await service.run(lines);
  for (let sent = 1; sent <= generations; sent++) {
    const { batch: body } = await derive(service, {
      batch: batch.id,
      lines: "failed",
      merge: true,
    });
    batch = await service.ended(body.id);
    expect(batch.status).toBe("completed");
    const failed = all.filter((n) => failsIn(n, sent + 1));
    const output = await service.rows(batch.output_file_id);
    expect(output.map((row) => row.custom_id)).toEqual(
      idsOf(all.filter((n) => !failed.includes(n))),
    );
    if (failed.length === 0) continue;
    const errors = await service.rows(batch.error_file_id);
    expect(errors.map((row) => row.custom_id)).toEqual(idsOf(failed));
  }
  expect(batch.error_file_id ?? null).toBeNull();
});

test("a follower of a merged retry misses no line when the retry ends, and its source goes, while it reads", async () => {
  const wrapped = blobsAround(HeldRead);
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    openStorage: wrapped.open,
  });
  const contents = ["Say 1", "Say 2", "[[status 400 x1]] Say 3", "[[status 400 x1]] Say 4"];
  const first = await service.run(contents.map((content, i) => chatLine(`line-${i + 1}`, content)));
  const source = first.output_file_id as string;
  const from = { batch: first.id, lines: "failed", merge: true };
  const { batch } = await derive(service, from, { x_batchd: { from, sample: 1 } });
  const pausedFor = async () => (await look(service, batch.id)).x_batchd.paused?.reason;
  await expect.poll(pausedFor).toBe("sample");
  const held = wrapped.blobs();
  held.hold(`files/${source}`);
  const headers = { accept: "text/event-stream" };
  const following = fetch(`${service.url}/v1/batches/${batch.id}/output`, { headers });
  const events = following.then((response) => response.text());
  await held.reached.promise;
  await service.openai.files.delete(source);
  await service.openai.post(`/batches/${batch.id}/resume`);
  await service.ended(batch.id);
  await service.events.reached("file.removed", { file: source });
  held.released.resolve();
  const seen = [...(await events).matchAll(/^id: (\d+)$/gm)].map(([, line]) => Number(line));
  expect(seen).toEqual([1, 2, 3, 4]);
});

test("the lines of a cancelled batch that did not run count as failed, and the others can run again too", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 2 }],
    },
  });
  upstream.hold();
  const { id } = await service.submit(inputLines.slice(0, 20));
  await upstream.reached(2);
  await service.openai.batches.cancel(id);
  upstream.release();
  const cancelled = await service.ended(id);
  const done = cancelled.request_counts?.completed ?? 0;
  expect(done).toBeGreaterThan(0);
  const textOf = async (lines: string) => {
    const { batch: body } = await derive(service, { batch: id, lines });
    await service.ended(body.id);
    return (await service.text(body.input_file_id)).split("\n").slice(0, -1);
  };
  const succeeded = await textOf("succeeded");
  expect(succeeded).toHaveLength(done);
  const failed = await textOf("failed");
  expect([...succeeded, ...failed].toSorted()).toEqual(inputLines.slice(0, 20).toSorted());
  expect(await textOf("all")).toEqual(inputLines.slice(0, 20));
  const shown = await look(service, id);
  expect(shown.x_batchd.retried_by).toHaveLength(3);
});

test("a retry is refused, and nothing is stored, where it cannot be", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const good = await service.run([chatLine("a", "Hello")]);
  const filesBefore = (await service.openai.files.list()).data.length;
  const refusals: [object, object, number, string | null][] = [
    [{ batch: good.id }, {}, 409, "x_batchd.from"],
    [{ batch: "batch_unknown" }, {}, 404, "x_batchd.from.batch"],
    [{ batch: "file-unknown" }, {}, 400, "x_batchd.from.batch"],
    [{ batch: good.id, lines: "some" }, {}, 400, "x_batchd.from.lines"],
    [{ batch: good.id, more: 1 }, {}, 400, "x_batchd.from.more"],
    [{ lines: "all" }, {}, 400, "x_batchd.from.batch"],
    [{ batch: good.id, lines: "all" }, { endpoint: "/v1/embeddings" }, 400, "endpoint"],
    [{ batch: good.id, lines: "all" }, { completion_window: "7h" }, 400, "completion_window"],
    [{ batch: good.id, lines: "all" }, { input_file_id: "file-a" }, 400, "input_file_id"],
  ];
  for (const [from, more, status, param] of refusals) {
    const refused = await derive(service, from, more);
    expect([refused.status, refused.batch.error?.param]).toEqual([status, param]);
  }
  await service.openai.files.delete(good.input_file_id);
  const gone = await derive(service, { batch: good.id, lines: "all" });
  expect([gone.status, gone.batch.error?.message]).toEqual([
    409,
    `The input file of the batch '${good.id}' was deleted. Upload its lines again.`,
  ]);
  expect((await service.openai.files.list()).data).toHaveLength(filesBefore - 1);
});

test("an Idempotency-Key makes one retry, and the quotas of the project hold", async () => {
  await using upstream = await startUpstream();
  const projects = [{ name: "default", quotas: { files: 4 } }];
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      projects,
    },
  });
  const { id } = await service.run([chatLine("a", "Hello")]);
  const body = JSON.stringify({
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    x_batchd: { from: { batch: id, lines: "all" } },
  });
  const ask = async () => {
    const headers = { "idempotency-key": "again" };
    const response = await fetch(`${service.url}/v1/batches`, { method: "POST", headers, body });
    return (await response.json()) as DerivedBatch;
  };
  const made = await ask();
  expect(await ask()).toEqual(made);
  await service.ended(made.id);
  expect((await look(service, id)).x_batchd.retried_by).toEqual([made.id]);
  const over = await derive(service, { batch: id, lines: "all" });
  const refused = await service.ended(over.batch.id);
  expect(refused.errors?.data).toMatchObject([
    { code: "storage_limit_exceeded", message: expect.stringContaining("files is 4") },
  ]);
});

test("a merged retry that is cancelled before it starts has no results, and its retry has all lines", async () => {
  await using upstream = await startUpstream();
  const wrapped = blobsAround(GatedBlobs);
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    openStorage: wrapped.open,
  });
  const blobs = wrapped.blobs();
  const first = await service.run(inputLines.slice(0, 6));
  blobs.puts.close("files/");
  const from = { batch: first.id, lines: "failed", merge: true };
  const { id, input_file_id } = (await derive(service, from)).batch;
  await blobs.puts.reached();
  blobs.reads.close(`files/${input_file_id}`);
  blobs.puts.open();
  await blobs.reads.reached();
  await service.openai.batches.cancel(id);
  blobs.reads.open();
  const cancelled = await service.ended(id);
  expect(cancelled.status).toBe("cancelled");
  // Rows of the first batch alone would look like the rows of all lines.
  expect([cancelled.output_file_id ?? null, cancelled.error_file_id ?? null]).toEqual([null, null]);
  // Rows of the lines that were to run again would look like the rows of all lines, too.
  const all = await derive(service, { ...from, batch: id, lines: "all" });
  expect([all.status, all.batch.error?.message]).toEqual([
    409,
    expect.stringContaining(`Name '${first.id}', which it was made of, in its place.`),
  ]);
  const again = await derive(service, { ...from, batch: id });
  const batch = await service.ended(again.batch.id);
  const rows = await service.rows(batch.output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(idsOf([1, 2, 3, 4, 5, 6]));
  expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
});
