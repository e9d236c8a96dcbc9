import { expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const DAY_MS = 24 * 60 * 60 * 1000;

type Shown = {
  readonly status: string;
  readonly x_batchd: { readonly paused: { since: number; reason: string } | null };
  readonly error?: { readonly message: string };
};

async function ask({ url }: TestService, id: string, action: "pause" | "resume") {
  const response = await fetch(`${url}/v1/batches/${id}/${action}`, { method: "POST" });
  return { status: response.status, body: (await response.json()) as Shown };
}

const limitedTo = (upstream: TestUpstream, max_concurrency: number) => ({
  upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency }],
});

test("once paused nothing new goes out, what is in flight counts, and resuming sends each other line once", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: limitedTo(upstream, 2) });
  upstream.hold();
  const { id } = await service.submit(chatLines(600));
  await upstream.reached(2);

  const paused = await ask(service, id, "pause");
  expect([paused.status, paused.body.status]).toEqual([200, "in_progress"]);
  expect(paused.body.x_batchd.paused).toEqual({
    since: expect.any(Number),
    reason: "requested",
  });
  upstream.release();
  await service.events.reached("chunk.ended", { batch: id, ended: "pause" });
  // Another batch goes all its way meanwhile, so the scheduler has looked for work since.
  const other = await service.run(chatLines(20, () => "Other"));
  expect(other.status).toBe("completed");
  expect(upstream.total).toBe(2 + 20);
  const { request_counts } = await service.openai.batches.retrieve(id);
  expect(request_counts).toEqual({ total: 600, completed: 2, failed: 0 });

  const resumed = await ask(service, id, "resume");
  expect([resumed.status, resumed.body.x_batchd.paused]).toEqual([200, null]);
  const batch = await service.ended(id);
  expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 600 } });
  expect(upstream.total).toBe(600 + 20);
  const ids = (await service.rows(batch.output_file_id)).map((row) => row.custom_id);
  expect(ids).toEqual(Array.from({ length: 600 }, (_, i) => `line-${i + 1}`));
});

test("a batch that is paused while it is validated sends nothing until it is resumed", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.submit(chatLines(3));
  const { status } = await ask(service, id, "pause");
  const sentBefore = upstream.total;
  expect(status).toBe(200);
  await service.events.reached("batch.started", { batch: id });
  await service.run(chatLines(5, () => "Other"));
  expect(upstream.total).toBe(sentBefore + 5);
  await ask(service, id, "resume");
  expect((await service.ended(id)).request_counts?.completed).toBe(3);
});

test("a paused batch stays paused over a restart", async () => {
  await using upstream = await startUpstream();
  await using first = await startTestService({ config: limitedTo(upstream, 2) });
  upstream.hold();
  const { id } = await first.submit(chatLines(30));
  await upstream.reached(2);
  const { body } = await ask(first, id, "pause");
  upstream.release();
  await first.events.reached("chunk.ended", { batch: id, ended: "pause" });
  await first.close();

  const { dataDir } = first;
  await using second = await startTestService({ config: limitedTo(upstream, 2), dataDir });
  await second.run(chatLines(5, () => "Other"));
  expect(upstream.total).toBe(2 + 5);
  const shown = (await second.openai.batches.retrieve(id)) as unknown as Shown;
  expect(shown.x_batchd.paused).toEqual(body.x_batchd.paused);
  await ask(second, id, "resume");
  expect((await second.ended(id)).request_counts?.completed).toBe(30);
});

test("the window of a paused batch goes on, and its answers are delivered when it ends", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ clock, config: limitedTo(upstream, 2) });
  upstream.hold();
  const { id } = await service.submit(chatLines(30));
  await upstream.reached(2);
  await ask(service, id, "pause");
  upstream.release();
  await service.events.reached("chunk.ended", { batch: id, ended: "pause" });
  clock.advance(DAY_MS);
  const batch = await service.ended(id);
  expect(batch).toMatchObject({ status: "expired", request_counts: { total: 30, completed: 2 } });
  expect((batch as unknown as Shown).x_batchd.paused).toBeNull();
  expect(await service.rows(batch.error_file_id)).toHaveLength(28);
  const late = await ask(service, id, "resume");
  expect([late.status, late.body.error?.message]).toEqual([
    409,
    "Cannot resume a batch with status 'expired'.",
  ]);
});
