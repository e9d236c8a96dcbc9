/** Lines with equal bodies are sent once and answered all. */
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { submitLines } from "../../support/batches.ts";
import { derive, look } from "../../support/derived.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { chatLine, startTestService, type TestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

async function submit(service: TestService, lines: readonly string[], extension: object = {}) {
  const x_batchd = { dedupe: true, ...extension };
  return (await submitLines(service.openai, lines, { x_batchd })).id;
}

/** A line whose body depends on the question alone. */
const line = (id: string, question: string) => chatLine(id, question, { user: question });
const LINES = 900;
const QUESTIONS = 130;
const numbers = Array.from({ length: LINES }, (_, i) => i);
const isBad = (question: number) => question % 10 === 3;
const questionOf = (n: number) => (n * 7) % QUESTIONS;
const textOf = (question: number) =>
  isBad(question) ? `[[status 400 x1]] ${question}` : `Say ${question}`;
const inputLines = numbers.map((n) => line(`line-${n}`, textOf(questionOf(n))));
const idsOf = (isWanted: (question: number) => boolean) =>
  numbers.filter((n) => isWanted(questionOf(n))).map((n) => `line-${n}`);

test("equal bodies are sent once, every line has its own row in its place, and usage counts once", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const blank = [...inputLines.slice(0, 200), "", ...inputLines.slice(200)];
  const id = await submit(service, blank);
  await service.ended(id);
  const batch = await look(service, id);
  expect(upstream.total).toBe(QUESTIONS);
  expect(batch.x_batchd.deduplicated).toBe(LINES - QUESTIONS);
  const failed = idsOf(isBad);
  expect(batch.request_counts).toEqual({
    total: LINES,
    completed: LINES - failed.length,
    failed: failed.length,
  });
  const groups = (batch.x_batchd as unknown as { failures: object[] }).failures;
  expect(groups).toMatchObject([{ status_code: 400, lines: failed.length }]);
  const output = await service.rows(batch.output_file_id);
  expect(output.map((row) => row.custom_id)).toEqual(idsOf((question) => !isBad(question)));
  for (const { custom_id, response } of output) {
    const n = Number(custom_id.slice("line-".length));
    const { choices } = (response?.body ?? {}) as { choices: { message: { content: string } }[] };
    expect(choices[0]?.message.content).toBe(`echo: ${textOf(questionOf(n))}`);
  }
  expect(new Set(output.map((row) => row.id)).size).toBe(output.length);
  const errors = await service.rows(batch.error_file_id);
  expect(errors.map((row) => row.custom_id)).toEqual(failed);

  const once = await service.run(
    Array.from({ length: QUESTIONS }, (_, question) => line(`q-${question}`, textOf(question))),
  );
  const usageOf = (of: object) => (of as { usage: object }).usage;
  // The bad lines have been answered by now, so only the others are compared.
  expect(once.request_counts?.failed).toBe(0);
  expect(usageOf(batch)).not.toEqual(usageOf(once));
  const good = Array.from({ length: QUESTIONS }, (_, question) => question)
    .filter((question) => !isBad(question))
    .map((question) => line(`q-${question}`, textOf(question)));
  expect(usageOf(await service.run(good))).toEqual(usageOf(batch));

  // The failed lines are retried together, and merged in their places.
  const sent = upstream.total;
  const retry = await derive(service, { batch: id, lines: "failed", merge: true });
  const merged = await service.ended(retry.batch.id);
  expect((await look(service, merged.id)).x_batchd.deduplicated).toBe(failed.length - 13);
  expect(upstream.total - sent).toBe(13);
  expect(merged.error_file_id ?? null).toBeNull();
  const rows = await service.rows(merged.output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(numbers.map((n) => `line-${n}`));
});

test("bodies are equal when their bytes are, and a batch that does not ask for it sends every line", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      limits: { allow_mixed_models: true },
    },
  });
  const body = { model: "m", messages: [{ role: "user", content: "Hi" }] };
  const spelled = JSON.stringify(body).replace(":", ": ");
  const lineWith = (id: string, text: string) =>
    `{"custom_id":"${id}","method":"POST","url":"/v1/chat/completions","body":${text}}`;
  const lines = [
    lineWith("a", JSON.stringify(body)),
    lineWith("b", spelled),
    `{ "body" : ${JSON.stringify(body)} , "custom_id":"c\\u0041","url":"/v1/chat/completions","method":"POST"}`,
    lineWith("d", JSON.stringify({ ...body, model: "n" })),
  ];
  const { id } = await service.ended(await submit(service, lines));
  expect([upstream.total, (await look(service, id)).x_batchd.deduplicated]).toEqual([3, 1]);
  const rows = await service.rows((await look(service, id)).output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(["a", "b", "cA", "d"]);
  const all = await service.run(lines);
  expect([upstream.total, (await look(service, all.id)).x_batchd.deduplicated]).toEqual([7, null]);
});

test("a cancelled batch answers all lines whose question was answered, and a reader in order misses none", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 1 }],
      engine: { stop_grace_seconds: 0 },
    },
  });
  const lines = ["a", "b", "a", "c", "[[hang]]", "d", "a", "d", "[[hang]]"].map((question, i) =>
    line(`${i}`, question),
  );
  const id = await submit(service, lines);
  const follow = async () => {
    const headers = { accept: "text/event-stream" };
    const text = await (await fetch(`${service.url}/v1/batches/${id}/output`, { headers })).text();
    return [...text.matchAll(/"custom_id":"(\d+)"/g)].map(([, number]) => number);
  };
  const followed = follow();
  await upstream.reached(4);
  await service.openai.batches.cancel(id);
  const batch = await service.ended(id);
  const done = (await service.rows(batch.output_file_id)).map((row) => row.custom_id);
  expect(done).toEqual(["0", "1", "2", "3", "6"]);
  const left = await service.rows(batch.error_file_id);
  expect(left.map((row) => [row.custom_id, row.error?.code])).toEqual(
    ["4", "5", "7", "8"].map((each) => [each, "batch_cancelled"]),
  );
  expect(batch.request_counts).toEqual({ total: 9, completed: 5, failed: 0 });
  expect(await followed).toEqual(done);
});

test("a sample sends as many questions as were asked for, spread over those of the file", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const id = await submit(service, inputLines, { sample: 26 });
  await expect.poll(async () => (await look(service, id)).x_batchd.paused).not.toBeNull();
  expect(upstream.total).toBe(26);
  const output = await (await fetch(`${service.url}/v1/batches/${id}/output`)).text();
  const errors = await (await fetch(`${service.url}/v1/batches/${id}/errors`)).text();
  const sent = `${output}${errors}`
    .match(/(?<="custom_id":"line-)\d+/g)
    ?.map(Number)
    .sort((a, b) => a - b);
  expect(sent).toEqual(numbers.slice(0, QUESTIONS).filter((n) => n % 5 === 0));
  await service.openai.post(`/batches/${id}/resume`);
  const batch = await service.ended(id);
  expect(upstream.total).toBe(QUESTIONS);
  expect(await service.rows(batch.output_file_id)).toHaveLength(
    idsOf((question) => !isBad(question)).length,
  );
});

test("the expected end counts each question once", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 2 }],
    },
  });
  // 20 questions of 100 ms, two at a time, take a second; 20,000 would take a thousand.
  const linesOf = (count: number) =>
    Array.from({ length: count }, (_, n) => line(`${n}`, `[[delay 100]] ${n % 20}`));
  await service.ended(await submit(service, linesOf(20)));
  upstream.hold();
  const id = await submit(service, linesOf(20_000));
  await upstream.reached(20 + 2);
  const expectedEnd = async () =>
    ((await look(service, id)).x_batchd as unknown as { eta: number | null }).eta;
  await expect.poll(expectedEnd).not.toBeNull();
  const { in_progress_at: startedAt } = await look(service, id);
  expect((await expectedEnd())! - startedAt!).toBeLessThan(100);
  upstream.release();
  expect((await service.ended(id)).status).toBe("completed");
});

test("a window that ends leaves an answer for each line whose question was answered", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  const config = { engine: { stop_grace_seconds: 0 } };
  await using service = await startTestService({ upstreamUrl: upstream.url, clock, config });
  const questions = ["a", "b", "a", "[[hang]]", "b", "[[hang]]", "c"];
  const id = await submit(
    service,
    questions.map((question, i) => line(`${i}`, question)),
  );
  await upstream.reached(4);
  await service.events.reached("line.recorded", { batch: id, count: 3 });
  clock.advance(500);
  await service.events.reached("journal.flushed", { batch: id });
  clock.setBy(24 * 60 * 60 * 1000);
  clock.advance(1_000);
  const batch = await service.ended(id);
  expect(batch).toMatchObject({ status: "expired", request_counts: { total: 7, completed: 5 } });
  const done = (await service.rows(batch.output_file_id)).map((row) => row.custom_id);
  expect(done).toEqual(["0", "1", "2", "4", "6"]);
  const left = await service.rows(batch.error_file_id);
  expect(left.map((row) => [row.custom_id, row.error?.code])).toEqual(
    ["3", "5"].map((each) => [each, "batch_expired"]),
  );
});

test("a budget pays for each question once", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      prices: [{ model: "*", per_request: "1", currency: "EUR" }],
    },
  });
  const lines = numbers.slice(0, 40).map((n) => line(`${n}`, `Say ${n % 10}`));
  const id = await submit(service, lines, { budget: "10" });
  const batch = await service.ended(id);
  expect(batch).toMatchObject({
    status: "completed",
    request_counts: { completed: 40 },
    x_batchd: { cost: { so_far: "10" }, paused: null },
  });
  expect(upstream.total).toBe(10);
});

test("lines whose answers were lost are sent again together, and after a cancel all of them say so", async () => {
  await using upstream = await startUpstream();
  await using slow = await startUpstream();
  await using service = await startTestService({
    config: {
      limits: { allow_mixed_models: true },
      engine: { stop_grace_seconds: 0 },
      upstreams: [
        { name: "quick", base_url: upstream.url, models: ["quick"] },
        { name: "slow", base_url: slow.url, models: ["slow"] },
      ],
    },
  });
  const quick = ["a", "b", "a", "c", "b", "a"];
  const lines = [
    ...quick.map((question, i) => chatLine(`${i}`, question, { model: "quick", user: "same" })),
    chatLine("slow", "s", { model: "slow" }),
  ];
  /** Runs the batch until its quick lines are in the journal, and removes the journal. */
  const lose = async () => {
    slow.hold();
    const sent = slow.total;
    const id = await submit(service, lines);
    await service.events.reached("chunk.ended", { batch: id });
    await slow.reached(sent + 1);
    const folder = join(service.dataDir, "blobs", "journal", id);
    for (const name of readdirSync(folder)) rmSync(join(folder, name));
    return id;
  };
  const again = await lose();
  slow.release();
  const batch = await service.ended(again);
  expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 7 } });
  expect(upstream.total).toBe(3 + 3);
  const rows = await service.rows(batch.output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(["0", "1", "2", "3", "4", "5", "slow"]);

  const cancelled = await lose();
  await service.openai.batches.cancel(cancelled);
  slow.release();
  const ended = await service.ended(cancelled);
  expect(ended).toMatchObject({ status: "cancelled", request_counts: { failed: 6 } });
  const errors = await service.rows(ended.error_file_id);
  const lost = errors.filter((row) => row.error?.code === "answer_lost");
  expect(lost.map((row) => row.custom_id)).toEqual(["0", "1", "2", "3", "4", "5"]);
});

test("the rows of duplicates fill no disk: those that fit have the answer, and the others say why not", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { limits: { max_upload_bytes: 5_000_000 } },
  });
  // One answer is read whole at the end, and the other one in part. A question that comes last still finds room.
  const questions = ["[[big 300000]]", "[[big 2000000]]", "[[status 400]] [[big 300000]]"];
  const lines = Array.from({ length: 60 }, (_, n) => line(`${n}`, questions[n % 3] as string));
  const end = [line("first", "short"), line("last", "short")];
  const batch = await service.ended(await submit(service, [...lines, ...end]));
  expect(upstream.total).toBe(questions.length + 1);
  expect(batch.status).toBe("completed");
  const output = await service.rows(batch.output_file_id);
  const errors = await service.rows(batch.error_file_id);
  expect(output.length + errors.length).toBe(lines.length + end.length);
  expect(output.slice(-2).map((row) => row.custom_id)).toEqual(["first", "last"]);
  const copied = [...output, ...errors].filter(({ error }) => error === null);
  const bytes = copied.reduce((sum, row) => sum + JSON.stringify(row).length, 0);
  const sentBytes = 300_000 + 2_000_000 + 300_000;
  expect(bytes).toBeLessThan(5_000_000 + 1.01 * sentBytes);
  expect(bytes).toBeGreaterThan(5_000_000);
  const refused = errors.filter((row) => row.error?.code === "duplicates_too_large");
  expect(refused.length).toBe(lines.length + end.length - copied.length);
  expect(batch.request_counts).toMatchObject({ completed: output.length, failed: errors.length });
  const { failures } = (await look(service, batch.id)).x_batchd as unknown as {
    failures: object[];
  };
  expect(failures).toContainEqual({
    status_code: null,
    code: "duplicates_too_large",
    lines: refused.length,
  });
});

test("a sample that leaves nothing but duplicates runs to its end", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const lines = numbers.slice(0, 10).map((n) => line(`${n}`, "the same"));
  const batch = await service.ended(await submit(service, lines, { sample: 2 }));
  expect(batch).toMatchObject({
    status: "completed",
    request_counts: { total: 10, completed: 10 },
  });
  expect(upstream.total).toBe(1);
  expect(await service.rows(batch.output_file_id)).toHaveLength(10);
});

const DAMAGES: Record<string, (path: string, bytes: Buffer) => void> = {
  "was removed": (path) => rmSync(path),
  "became shorter": (path, bytes) => writeFileSync(path, bytes.subarray(0, bytes.length / 2)),
  "has another question": (path, bytes) => {
    bytes[bytes.indexOf('"content":"a"', bytes.indexOf("id-2")) + 11] = 0x7a;
    writeFileSync(path, bytes);
  },
  "lost a newline": (path, bytes) => {
    bytes[bytes.indexOf("\n")] = 0x20;
    writeFileSync(path, bytes);
  },
};

test.each(Object.entries(DAMAGES))(
  "every line has one row, and no answer is lost, after the input %s",
  async (_name, damage) => {
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url });
    const questions = ["a", "b", "a", "c", "b", "a", "d"];
    const lines = questions.map((question, i) => line(`id-${i}`, question));
    upstream.hold();
    const id = await submit(service, lines);
    await upstream.reached(4);
    const path = join(service.dataDir, "blobs", "files", (await look(service, id)).input_file_id);
    damage(path, readFileSync(path));
    upstream.release();
    const batch = await service.ended(id);
    const output = await service.rows(batch.output_file_id);
    const errors = await service.rows(batch.error_file_id);
    const sent = ["id-0", "id-1", "id-3", "id-6"];
    expect(output.map((row) => row.custom_id)).toEqual(expect.arrayContaining(sent));
    expect(new Set(output.map((row) => row.custom_id)).size).toBe(output.length);
    expect(errors.length).toBeGreaterThan(0);
    expect(new Set(errors.map(({ error }) => error?.code))).toEqual(new Set(["input_unreadable"]));
    expect(batch).toMatchObject({
      status: "completed",
      request_counts: { total: 7, completed: output.length, failed: 7 - output.length },
    });
    expect(errors).toHaveLength(7 - output.length);
  },
);
