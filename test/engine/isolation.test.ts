/** What goes wrong for some lines must not hold up the others. */
import { expect, test } from "vitest";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const noGrace = { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 } };

test("lines that are always refused do not keep the other lines of their batch from their turn", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      ...noGrace,
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 4 }],
    },
  });
  const isRefused = (n: number) => n % 20 === 0;

  const { id } = await service.submit(
    chatLines(600, (n) => (isRefused(n) ? "[[status 429]]" : "fine")),
  );
  await service.events.reached("line.recorded", { batch: id, count: 570 });

  const { request_counts: counts } = await service.openai.batches.cancel(id);
  expect(counts?.failed).toBe(0);
});

test("a route that does not answer does not take the memory of the others", async () => {
  await using upstream = await startUpstream();
  await using slow = await startUpstream();
  slow.hold();
  await using service = await startTestService({
    config: {
      ...noGrace,
      upstreams: [
        { name: "slow", base_url: slow.url, models: ["slow"], min_concurrency: 64 },
        { name: "quick", base_url: upstream.url, models: ["quick"] },
      ],
    },
  });
  // As many lines again as the route has slots are at hand: more than the memory for all chunks.
  const filling = "x".repeat(1_100_000);
  await service.submit(
    Array.from({ length: 150 }, (_, i) => chatLine(`slow-${i}`, filling, { model: "slow" })),
  );
  await service.events.reached("chunk.claimed", { count: 30 });

  const batch = await service.run([chatLine("quick", "fine", { model: "quick" })]);

  expect(batch.request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
});

test("the models of an upstream can be listed while all its slots are taken", async () => {
  await using upstream = await startUpstream({ modelNames: ["test-model"] });
  await using service = await startTestService({
    config: {
      ...noGrace,
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 2 }],
    },
  });
  upstream.hold();
  await service.submit(chatLines(10));
  await upstream.reached(2);

  const models = await service.openai.models.list();

  expect(models.data.map(({ id }) => id)).toEqual(["test-model"]);
});
