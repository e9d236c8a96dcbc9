import { expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const DAY_MS = 24 * 60 * 60 * 1000;
/** Lines that were answered before the batch was stopped; the others hang. */
const hangsAfter = (answered: number) => (n: number) => (n <= answered ? "fine" : "[[hang]]");
const noGrace = { engine: { stop_grace_seconds: 0 } };

test("requests in flight may end within the grace period after a cancel", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  upstream.hold();
  const { id } = await service.submit(chatLines(3));
  await upstream.reached(3);

  await service.openai.batches.cancel(id);
  upstream.release();

  const batch = await service.ended(id);
  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
  expect(batch).toMatchObject({ status: "cancelled", error_file_id: null });
});

test("nothing is sent after a cancel", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      ...noGrace,
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 2 }],
    },
  });
  upstream.hold();
  const { id } = await service.submit(chatLines(600));
  await upstream.reached(2);

  await service.openai.batches.cancel(id);
  const batch = await service.ended(id);

  expect(upstream.total).toBe(2);
  expect(batch).toMatchObject({ status: "cancelled", output_file_id: null });
  expect(batch.request_counts).toEqual({ total: 600, completed: 0, failed: 0 });
  expect(await service.rows(batch.error_file_id)).toHaveLength(600);
});

/** No request in flight times out meanwhile. */
function endWindow(clock: FakeClock): void {
  clock.setBy(DAY_MS);
  clock.advance(1_000);
}

test("when the window ends, answers are delivered and the other lines say that it ended", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    clock,
    config: noGrace,
  });
  const { id } = await service.submit(chatLines(8, hangsAfter(3)));
  await upstream.reached(8);
  await service.events.reached("line.recorded", { batch: id, count: 3 });
  clock.advance(500);
  await service.events.reached("journal.flushed", { batch: id });

  endWindow(clock);

  const batch = await service.ended(id);
  expect(batch).toMatchObject({ status: "expired", finalizing_at: null });
  expect(batch.request_counts).toEqual({ total: 8, completed: 3, failed: 0 });
  expect(batch.expired_at).toBeGreaterThanOrEqual(batch.expires_at!);
  expect(await service.rows(batch.output_file_id)).toHaveLength(3);
  const error = await service.rows(batch.error_file_id);
  expect(error.map((row) => row.error?.code)).toEqual(Array(5).fill("batch_expired"));
});

test("a line that waits out an overload when the window ends is expired, not failed", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url, clock });
  const { id } = await service.submit(chatLines(1, () => "[[status 429]]"));
  await upstream.reached(1);

  endWindow(clock);

  const batch = await service.ended(id);
  expect(batch.request_counts).toEqual({ total: 1, completed: 0, failed: 0 });
  expect((await service.rows(batch.error_file_id))[0]?.error?.code).toBe("batch_expired");
});

test("a window that ends while lines wait for another attempt delivers what was answered", async () => {
  const clock = new FakeClock();
  const windowEndMs = clock.nowMs() + DAY_MS;
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url, clock });
  const refused = "[[status 429]] [[retry-after 999999]]";
  const { id } = await service.submit(chatLines(3, (n) => (n === 1 ? "fine" : refused)));
  await service.events.reached("line.recorded", { batch: id });
  await clock.asleep(2, windowEndMs);

  // Expiry looks once a second: here just before the end, so the lines wake first.
  clock.advance(DAY_MS - 500);
  await clock.asleep(5, windowEndMs + 500);
  clock.advance(500);
  await service.events.reached("chunk.ended", { batch: id });
  clock.advance(1_000);

  const batch = await service.ended(id);
  expect(batch).toMatchObject({
    status: "expired",
    request_counts: { total: 3, completed: 1, failed: 0 },
  });
  expect(await service.rows(batch.output_file_id)).toHaveLength(1);
  const error = await service.rows(batch.error_file_id);
  expect(error.map((row) => row.error?.code)).toEqual(["batch_expired", "batch_expired"]);
});
