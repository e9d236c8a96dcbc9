import { expect, test } from "vitest";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test("a batch runs from validating to completed, and the SDK reads every answer", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const created = await service.submit(chatLines(30));
  expect(created).toMatchObject({
    status: "validating",
    model: null,
    request_counts: { total: 0, completed: 0, failed: 0 },
    output_file_id: null,
    error_file_id: null,
    in_progress_at: null,
  });
  expect(created.expires_at).toBe(created.created_at + 86_400);

  const batch = await service.ended(created.id);
  expect(batch).toMatchObject({
    status: "completed",
    model: "test-model",
    errors: null,
    request_counts: { total: 30, completed: 30, failed: 0 },
    error_file_id: null,
    failed_at: null,
    cancelled_at: null,
  });
  for (const stamp of [batch.in_progress_at, batch.finalizing_at, batch.completed_at]) {
    expect(stamp).toBeGreaterThanOrEqual(batch.created_at);
  }
  const rows = await service.rows(batch.output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(
    Array.from({ length: 30 }, (_, i) => `line-${i + 1}`),
  );
  for (const row of rows) {
    expect(row).toMatchObject({ response: { status_code: 200 }, error: null });
    expect(row.id).toMatch(/^batch_req_[0-9a-f]{32}$/);
  }
});

test("output and error rows are in input order even when answers come in another", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const content = (n: number) =>
    `[[delay ${(n * 7) % 40}]] ${n % 5 === 0 ? "[[status 400]]" : "fine"}`;

  const batch = await service.run(chatLines(60, content));

  const output = await service.rows(batch.output_file_id);
  const error = await service.rows(batch.error_file_id);
  const numbers = (rows: typeof output) => rows.map((row) => Number(row.custom_id.slice(5)));
  const all = Array.from({ length: 60 }, (_, i) => i + 1);
  expect(numbers(output)).toEqual(all.filter((n) => n % 5 !== 0));
  expect(numbers(error)).toEqual(all.filter((n) => n % 5 === 0));
  expect(batch.request_counts).toEqual({ total: 60, completed: 48, failed: 12 });
});

test("result files are batch_output files named after the batch, gone after thirty days", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const batch = await service.run(chatLines(2, (n) => (n === 2 ? "[[status 422]]" : "fine")));

  const output = await service.openai.files.retrieve(batch.output_file_id!);
  const error = await service.openai.files.retrieve(batch.error_file_id!);
  expect(output).toMatchObject({
    purpose: "batch_output",
    filename: `${batch.id}_output.jsonl`,
    bytes: Buffer.byteLength(await service.text(output.id)),
    expires_at: output.created_at + 2_592_000,
  });
  expect(error).toMatchObject({ purpose: "batch_output", filename: `${batch.id}_error.jsonl` });
});

test("a batch in which every line fails is completed, without an output file", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const batch = await service.run(chatLines(3, () => "[[status 404]]"));

  expect(batch).toMatchObject({
    status: "completed",
    output_file_id: null,
    request_counts: { total: 3, completed: 0, failed: 3 },
  });
  const rows = await service.rows(batch.error_file_id);
  for (const row of rows) {
    expect(row.error).toBeNull();
    expect(row.response).toMatchObject({ status_code: 404, body: { error: {} } });
  }
});

test("a line without an HTTP answer has no response and says why", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [{ name: "slow", base_url: upstream.url, models: ["*"], timeout_seconds: 0.3 }],
    },
  });

  const { id } = await service.submit([chatLine("late", "[[hang]]")]);
  // The server is well: it serves others all the time.
  while (service.events.count("batch.completed", { batch: id }) === 0) {
    await service.openai.chat.completions
      .create({ model: "m", messages: [{ role: "user", content: "Hi" }] })
      .catch(() => {});
  }

  const batch = await service.openai.batches.retrieve(id);
  const [row] = await service.rows(batch.error_file_id);
  expect(row).toMatchObject({ custom_id: "late", response: null });
  expect(row!.error!.code).toBe("request_timeout");
  expect(upstream.received.get("late")).toBeGreaterThanOrEqual(5);
});

test("usage is the sum over the answers", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const batch = await service.run(chatLines(7));

  const rows = await service.rows(batch.output_file_id);
  const sum = (read: (usage: Record<string, never>) => number) =>
    rows.reduce((total, row) => total + read(row.response!.body["usage"] as never), 0);
  expect(batch.usage).toEqual({
    input_tokens: sum((usage) => usage["prompt_tokens"]!),
    input_tokens_details: {
      cached_tokens: sum((usage) => usage["prompt_tokens_details"]!["cached_tokens"]),
    },
    output_tokens: sum((usage) => usage["completion_tokens"]!),
    output_tokens_details: {
      reasoning_tokens: sum((usage) => usage["completion_tokens_details"]!["reasoning_tokens"]),
    },
    total_tokens: sum((usage) => usage["total_tokens"]!),
  });
  expect(batch.usage!.total_tokens).toBeGreaterThan(0);
});

test("counts grow while the batch runs", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { engine: { stop_grace_seconds: 0 } },
  });

  const { id } = await service.submit(chatLines(4, (n) => (n === 4 ? "[[hang]]" : "fine")));
  await service.events.reached("journal.flushed", { batch: id });

  const running = await service.openai.batches.retrieve(id);
  expect(running).toMatchObject({ status: "in_progress", output_file_id: null });
  expect(running.request_counts).toEqual({ total: 4, completed: 3, failed: 0 });
  await service.openai.batches.cancel(id);
});

test("one input file feeds several batches", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const input_file_id = await service.upload(chatLines(3));
  const request = {
    input_file_id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  } as const;

  const batches = [
    await service.openai.batches.create(request),
    await service.openai.batches.create({ ...request, metadata: { run: "2" } }),
  ];

  for (const { id } of batches) {
    expect((await service.ended(id)).request_counts!.completed).toBe(3);
  }
  expect(upstream.received.get("line-1")).toBe(2);
});

test.each([
  ["/v1/completions", { model: "test-model", prompt: "Hello" }],
  ["/v1/embeddings", { model: "test-model", input: ["Hello", "you"] }],
  ["/v1/responses", { model: "test-model", input: "Hello" }],
  ["/v1/moderations", { model: "test-model", input: "Hello" }],
] as const)("%s is forwarded to the same path upstream", async (endpoint, body) => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const line = JSON.stringify({ custom_id: "a", method: "POST", url: endpoint, body });

  const { id } = await service.submit([line], endpoint);
  const batch = await service.ended(id);

  expect(batch.request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
  expect(upstream.seen.map(({ path }) => path)).toEqual([endpoint]);
  expect(upstream.seen[0]!.body).toBe(JSON.stringify(body));
});

test("blank lines are skipped, CRLF and a missing last newline are accepted", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const [first, second] = chatLines(2);
  const file = new File([`${first}\r\n\r\n   \n${second}`], "input.jsonl");
  const { id: input_file_id } = await service.openai.files.create({ file, purpose: "batch" });

  const created = await service.openai.batches.create({
    input_file_id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });

  const batch = await service.ended(created.id);
  expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
});

test("the log tells of each line its batch, its chunk and the upstream's id for it", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const { id } = await service.run(chatLines(1));

  const recorded = service.events.all.filter(({ event }) => event === "line.recorded");
  expect(recorded).toMatchObject([
    { batch: id, chunk: 0, line: 1, outcome: "answered", upstreamRequestId: "req-1" },
  ]);
});
