/** The same through the whole server: batches go in, result files come out. */
import { expect, test } from "vitest";
import { sleep } from "../../src/clock.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { startModelServer } from "../support/model-server.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";
import { VirtualClock } from "../support/virtual-clock.ts";

const HOUR_MS = 3_600_000;
const NEVER = new AbortController().signal;

const customIds = (count: number) => Array.from({ length: count }, (_, i) => `line-${i + 1}`);

/** Starts a service with one upstream, of which `more` says more. */
const serviceAt = (
  url: string,
  clock: FakeClock | VirtualClock,
  more: object,
): Promise<TestService> =>
  startTestService({
    clock,
    config: { upstreams: [{ name: "only", base_url: url, models: ["*"], ...more }] },
  });

test("a batch whose only target is down for ten minutes is answered in full, each line once", async () => {
  const clock = new VirtualClock();
  await using server = await startModelServer({
    clock,
    capacity: 10,
    serviceMs: 2_000,
    jitter: 0.3,
  });
  await using service = await serviceAt(server.url, clock, {});
  const { id } = await service.submit(chatLines(120));

  await clock.runUnseen(
    (async () => {
      await server.whenServed(60);
      await server.goDown("refuse");
      await sleep(clock, 10 * 60_000, NEVER);
      await server.comeUp();
      await service.events.reached("batch.completed", { batch: id });
    })(),
  );

  const batch = await service.openai.batches.retrieve(id);
  expect(batch.request_counts).toEqual({ total: 120, completed: 120, failed: 0 });
  const rows = await service.rows(batch.output_file_id);
  expect(rows.map(({ custom_id }) => custom_id)).toEqual(customIds(120));
  expect(server.stats().fates.served).toBe(120);
});

test("a batch waits for the window of its upstream, and an interactive request does not", async () => {
  const clock = new FakeClock(Date.UTC(2026, 0, 5, 8));
  await using server = await startModelServer({ clock });
  await using service = await serviceAt(server.url, clock, {
    schedule: { windows: [{ from: "22:00", to: "06:00" }] },
  });
  const { id } = await service.submit(chatLines(20));
  await service.events.reached("batch.started", { batch: id });

  const messages = [{ role: "user", content: "Now, please" }] as const;
  await service.openai.chat.completions.create({ model: "test-model", messages: [...messages] });
  clock.advance(14 * HOUR_MS);
  const batch = await service.ended(id);

  expect(batch.request_counts).toEqual({ total: 20, completed: 20, failed: 0 });
  const [first, ...lines] = server.arrivals;
  expect(first!.line).toBe("Now, please");
  expect(lines).toHaveLength(20);
  expect(lines.filter(({ atMs }) => atMs < Date.UTC(2026, 0, 5, 22))).toEqual([]);
});

test("when the window of a batch ends in an outage, everything that was answered is delivered", async () => {
  const clock = new FakeClock();
  await using server = await startModelServer({ clock });
  await using service = await serviceAt(server.url, clock, { max_concurrency: 4 });
  const { id } = await service.submit(chatLines(600));
  await server.whenServed(50);
  await server.goDown(503);
  await service.events.reached("upstream.overloaded");

  // No request in flight times out meanwhile.
  clock.setBy(24 * HOUR_MS);
  clock.advance(1_000);
  const batch = await service.ended(id);

  const answered = server.stats().served;
  expect(answered).toBeLessThan(600);
  expect(batch).toMatchObject({
    status: "expired",
    request_counts: { total: 600, completed: answered, failed: 0 },
  });
  const output = await service.rows(batch.output_file_id);
  const error = await service.rows(batch.error_file_id);
  expect(output).toHaveLength(answered);
  expect(new Set([...output, ...error].map((row) => row.custom_id)).size).toBe(600);
  expect(error.every((row) => row.error?.code === "batch_expired")).toBe(true);
});

test("one process has 5,000 requests in flight, and sends none twice", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  await using service = await startTestService({
    config: {
      upstreams: [
        {
          name: "only",
          base_url: upstream.url,
          models: ["*"],
          min_concurrency: 5_000,
          max_concurrency: 5_000,
          interactive_reserve: 0,
          // On a busy machine the last of them is connected late.
          connect_timeout_seconds: 60,
        },
      ],
    },
  });
  const { id } = await service.submit(chatLines(5_200));

  await upstream.reached(5_000);
  expect(upstream.inFlight).toBe(5_000);
  upstream.release();
  const batch = await service.ended(id);

  expect(batch.request_counts).toEqual({ total: 5_200, completed: 5_200, failed: 0 });
  expect(upstream.total).toBe(5_200);
  expect(upstream.received.size).toBe(5_200);
  expect(upstream.maxInFlight).toBeLessThanOrEqual(5_000);
});
