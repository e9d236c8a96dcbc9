/** What batches that share an upstream take from each other, counted at the upstream. */
import { expect, test } from "vitest";
import { createBatch, uploadLines } from "../../support/batches.ts";
import { chatLine, startTestService, type TestService } from "../../support/service.ts";
import { startUpstream, type TestUpstream } from "../../support/upstream.ts";

const CONCURRENCY = 4;
const noGrace = { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 } };

const oneUpstream = (upstream: TestUpstream) => ({
  ...noGrace,
  upstreams: [
    {
      name: "one",
      base_url: upstream.url,
      models: ["*"],
      min_concurrency: CONCURRENCY,
      max_concurrency: CONCURRENCY,
    },
  ],
});

const linesOf = (name: string, count: number) =>
  Array.from({ length: count }, (_, i) => chatLine(`${name}-${i}`, "fine"));

/** Answers what is in flight, and waits for as many more; until the batch has ended. */
async function answerUntilEnded(service: TestService, upstream: TestUpstream, id: string) {
  let isOver = false;
  const ended = service.ended(id).then((batch) => {
    isOver = true;
    return batch;
  });
  while (!isOver) {
    const { total } = upstream;
    upstream.release();
    upstream.hold();
    await Promise.race([upstream.reached(total + CONCURRENCY), ended]);
  }
  return ended;
}

/** The names before the number, in the order in which the lines came. */
const orderOf = (upstream: TestUpstream): string[] =>
  upstream.seen.map(({ body }) => (JSON.parse(body).user as string).split("-")[0] as string);

test("a small batch does not wait for the end of a large one, or of its chunk", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: oneUpstream(upstream) });
  upstream.hold();
  await service.submit(linesOf("large", 3_000));
  await upstream.reached(CONCURRENCY);
  const { id } = await service.submit(linesOf("small", 10));
  await service.events.reached("chunk.claimed", { batch: id });

  const batch = await answerUntilEnded(service, upstream, id);

  expect(batch.request_counts).toEqual({ total: 10, completed: 10, failed: 0 });
  const order = orderOf(upstream);
  const before = order.slice(0, order.lastIndexOf("small"));
  // Those in flight before it came, one for each of its own, and what went out while its lines were read.
  expect(before.filter((name) => name === "large").length).toBeLessThan(150);
  upstream.release();
});

test("a small batch does not wait until all batches of another project are validated", async () => {
  await using upstream = await startUpstream();
  const keys = ["many", "other"].map((project) => ({
    name: project,
    key: `key-${project}`,
    project,
  }));
  await using service = await startTestService({
    config: { ...oneUpstream(upstream), auth: { keys } },
  });
  const as = (project: string) => service.openai.withOptions({ apiKey: `key-${project}` });
  upstream.hold();
  const large = await uploadLines(as("many"), linesOf("large", 20_000));
  const small = await uploadLines(as("other"), linesOf("small", 10));
  for (let i = 0; i < 10; i++) await createBatch(as("many"), large);
  const { id } = await createBatch(as("other"), small);

  await service.events.reached("batch.started", { batch: id });

  expect(service.events.count("batch.started", { lines: 20_000 })).toBeLessThan(8);
  upstream.release();
});
