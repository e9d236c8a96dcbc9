/** A sample: some lines, spread over the file, run first, and the others once the batch is resumed. */
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { look } from "../support/derived.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const submit = async (service: TestService, lines: readonly string[], sample: number) =>
  (await submitLines(service.openai, lines, { x_batchd: { sample } })).id;

const afterSample = (service: TestService, id: string) =>
  expect
    .poll(async () => (await look(service, id)).x_batchd.paused)
    .toEqual({ since: expect.any(Number), reason: "sample" });

const resume = (service: TestService, id: string) =>
  fetch(`${service.url}/v1/batches/${id}/resume`, { method: "POST" });

test("a sample runs lines spread over all models of a file, and resuming runs each other line once, in order", async () => {
  await using upstream = await startUpstream();
  const models = ["a", "b"].map((name) => ({ name, upstream_model: name }));
  const upstreams = models.map((model) => ({
    name: `for-${model.name}`,
    base_url: upstream.url,
    models: [model],
  }));
  await using service = await startTestService({
    config: { upstreams, limits: { allow_mixed_models: true } },
  });
  const ids = Array.from({ length: 1_200 }, (_, i) => `line-${i + 1}`);
  const lines = ids.map((id, i) => chatLine(id, `Say ${i}`, { model: i % 3 === 0 ? "a" : "b" }));
  const id = await submit(service, lines, 20);
  await afterSample(service, id);
  expect(upstream.total).toBe(20);
  const shown = await look(service, id);
  expect([shown.status, shown.x_batchd.sample]).toEqual(["in_progress", 20]);
  const { request_counts } = await service.openai.batches.retrieve(id);
  expect(request_counts).toEqual({ total: 1_200, completed: 20, failed: 0 });
  const output = await (await fetch(`${service.url}/v1/batches/${id}/output`)).text();
  const numbers = output
    .split("\n")
    .slice(0, -1)
    .map((row) => (JSON.parse(row) as { x_batchd: { line: number } }).x_batchd.line);
  expect(numbers).toEqual(Array.from({ length: 20 }, (_, i) => i * 60 + 1));
  const second = `${service.url}/v1/batches/${id}/output?after_line=61&limit=1`;
  expect(await (await fetch(second)).text()).toContain('"x_batchd":{"line":121}');

  expect((await resume(service, id)).status).toBe(200);
  const batch = await service.ended(id);
  expect(batch.status).toBe("completed");
  expect(upstream.total).toBe(1_200);
  const rows = await service.rows(batch.output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(ids);
});

test("a file with no more lines than its sample runs to its end", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const batch = await service.ended(await submit(service, chatLines(3), 3));
  expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 3 } });
});
