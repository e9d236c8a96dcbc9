import { expect, test } from "vitest";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test("every bad line is reported with its number, and none of the good ones runs", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const good = (id: string) => chatLine(id, "Hello");
  const edited = (id: string, edit: (line: Record<string, unknown>) => void) => {
    const line = JSON.parse(good(id)) as Record<string, unknown>;
    edit(line);
    return JSON.stringify(line);
  };
  const lines = [
    good("a"),
    "{not json",
    good("a"),
    edited("b", (line) => delete line["method"]),
    "",
    edited("c", (line) => {
      line["url"] = "/v1/embeddings";
    }),
    chatLine("d", "Hello", { stream: true }),
    chatLine("e", "Hello", { model: undefined }),
    "[1,2]",
  ];

  const batch = await service.run(lines);

  expect(batch).toMatchObject({
    status: "failed",
    in_progress_at: null,
    output_file_id: null,
    error_file_id: null,
    request_counts: { total: 0, completed: 0, failed: 0 },
  });
  expect(batch.failed_at).toBeGreaterThanOrEqual(batch.created_at);
  expect(batch.errors?.data?.map(({ code, line, param }) => [line, code, param])).toEqual([
    [2, "invalid_json_line", null],
    [3, "duplicate_custom_id", "custom_id"],
    [4, "missing_required_parameter", "method"],
    [6, "invalid_url", "url"],
    [7, "streaming_unsupported", "body.stream"],
    [8, "invalid_request", "body.model"],
    [9, "invalid_json_line", null],
  ]);
  expect(upstream.total).toBe(0);
});

test("at most a hundred bad lines are listed", async () => {
  await using service = await startTestService();

  const batch = await service.run(["{}", ...Array.from({ length: 300 }, () => "nonsense")]);

  expect(batch.errors?.data).toHaveLength(100);
});

test("a model that no upstream serves fails validation, not the lines", async () => {
  await using service = await startTestService();

  const batch = await service.run(chatLines(1));

  expect(batch.errors?.data?.[0]).toMatchObject({ code: "model_not_found", line: 1 });
});

test("all lines must ask for one model", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const batch = await service.run([
    chatLine("a", "Hello"),
    chatLine("b", "Hello", { model: "other" }),
  ]);

  expect(batch.errors?.data?.[0]).toMatchObject({ code: "mismatched_model", line: 2 });
});

test("an unknown input file fails the batch, not the request", async () => {
  await using service = await startTestService();

  const created = await service.openai.batches.create({
    input_file_id: "file-unknown",
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });

  expect(created.status).toBe("validating");
  const batch = await service.ended(created.id);
  expect(batch.errors?.data?.[0]).toMatchObject({
    code: "invalid_request",
    param: "file_id",
    line: null,
  });
});

test("a file of another purpose is refused as input", async () => {
  await using service = await startTestService();
  const file = new File([chatLine("a", "Hello")], "a.jsonl");
  const { id } = await service.openai.files.create({ file, purpose: "user_data" });

  const created = await service.openai.batches.create({
    input_file_id: id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });

  const batch = await service.ended(created.id);
  expect(batch.errors?.data?.[0]).toMatchObject({ code: "invalid_request", param: "file_id" });
});

test("a file with more lines than allowed is refused whole", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { limits: { max_requests_per_batch: 5 } },
  });

  const batch = await service.run(chatLines(6));

  expect(batch.status).toBe("failed");
  expect(batch.errors?.data).toHaveLength(1);
  expect(batch.errors?.data?.[0]?.line).toBeNull();
});
