/** The course of a batch, while it runs and afterwards. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { BatchProgress, type BatchProgressObject } from "../../src/contract/progress.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

async function course(service: TestService, id: string): Promise<BatchProgressObject> {
  const response = await fetch(`${service.url}/v1/batches/${id}/progress`);
  expect(response.status).toBe(200);
  return BatchProgress.parse(await response.json());
}

test("a batch has its course so far, which a restart keeps, and ends with its last counts", async () => {
  await using upstream = await startUpstream();
  const dataDir = await mkdtemp(join(tmpdir(), "batchd-progress-"));
  const options = { upstreamUrl: upstream.url, dataDir };
  let service = await startTestService(options);
  try {
    const lines = ["Yes", "No", "[[status 400]]", "Wait [[hang]]"];
    const { id } = await service.submit(lines.map((text, i) => chatLine(`q-${i}`, text)));
    const between = async () => (await course(service, id)).points.slice(1, -1);
    await expect.poll(between).toContainEqual(expect.objectContaining({ completed: 2, failed: 1 }));
    const running = await course(service, id);
    expect(running.points[0]).toMatchObject({ completed: 0, failed: 0, tokens_per_second: 0 });
    expect(running.points.some((point) => point.lines_per_second > 0)).toBe(true);
    expect(running.points.some((point) => point.tokens_per_second > 0)).toBe(true);
    expect(running.latency).toMatchObject({ lines: 3, p50_ms: expect.any(Number) });
    await service.close();
    service = await startTestService(options);
    const [, first] = running.points;
    expect((await course(service, id)).points[1]).toEqual(first);

    await service.openai.batches.cancel(id);
    await service.events.reached("batch.cancelled", { batch: id });
    const ended = await course(service, id);
    expect(ended.points.at(-1)).toMatchObject({ completed: 2, failed: 1 });
    expect(ended.points).toEqual(ended.points.toSorted((a, b) => a.at - b.at));
    expect(ended.latency?.buckets.reduce((sum, bucket) => sum + bucket.lines, 0)).toBe(3);
    expect(await course(service, id)).toEqual(ended);
  } finally {
    await service[Symbol.asyncDispose]();
    await rm(dataDir, { recursive: true, force: true });
  }
});

test("a batch that was over before a sample has its beginning and its end, and one without lines nothing", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const quick = await service.run([chatLine("a", "Yes"), chatLine("b", "No")]);
  const { points, latency } = await course(service, quick.id);
  // A busy machine may take a sample all the same.
  expect(points[0]).toMatchObject({ completed: 0 });
  const output_tokens = quick.usage?.output_tokens;
  expect(points.at(-1)).toMatchObject({ completed: 2, output_tokens });
  expect(latency?.lines).toBe(2);
  const refused = await service.run([chatLine("a", "Yes"), chatLine("a", "The same id again")]);
  expect(await course(service, refused.id)).toMatchObject({ points: [], latency: null });
});

test("the time of a pause does not slow down the lines before it", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const input_file_id = await service.upload(chatLines(4));
  const { id } = await service.openai.post<{ id: string }>("/batches", {
    body: {
      input_file_id,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      x_batchd: { sample: 2 },
    },
  });
  const read = () => service.openai.get<BatchObject>(`/batches/${id}`);
  await expect.poll(async () => (await read()).x_batchd.paused?.reason).toBe("sample");
  const since = (await read()).x_batchd.paused?.since ?? 0;
  // The answers have come before the pause, and none since.
  const points = async () => (await course(service, id)).points;
  await expect.poll(async () => ((await points()).at(-1)?.at ?? 0) - since).toBeGreaterThan(2);
  const [before, last] = (await points()).slice(-2);
  expect(before?.at).toBeLessThan(since + 2);
  expect(before).toMatchObject({ completed: 2 });
  expect(last).toMatchObject({ completed: 2, lines_per_second: 0, tokens_per_second: 0 });
});
