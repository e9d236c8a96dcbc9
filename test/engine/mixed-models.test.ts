import { expect, test } from "vitest";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

/** Two upstreams: one with three names of its model, one with a model of its own. */
async function startMixed(one: TestUpstream, two: TestUpstream): Promise<TestService> {
  return startTestService({
    config: {
      limits: { allow_mixed_models: true },
      upstreams: [
        {
          name: "one",
          base_url: one.url,
          models: ["small", "small-too", { name: "alias", upstream_model: "small" }],
        },
        { name: "two", base_url: two.url, models: ["large"] },
      ],
    },
  });
}

const NAMES = ["small", "large", "alias", "large", "small-too"];
const modelOfLine = (n: number) => NAMES[n % NAMES.length]!;

/** `count` lines with the ids `line-1`, `line-2`, … that ask for the models in turn. */
const mixedLines = (count: number, content: (n: number) => string = (n) => `Hello ${n}`) =>
  Array.from({ length: count }, (_, i) =>
    chatLine(`line-${i + 1}`, content(i + 1), { model: modelOfLine(i + 1) }),
  );

const numbersUpTo = (count: number) => Array.from({ length: count }, (_, i) => i + 1);
const idsOf = (numbers: readonly number[]) => numbers.map((n) => `line-${n}`);

/** Which model each line was sent for. */
const sentTo = ({ seen }: TestUpstream) =>
  new Map(
    seen.map(({ body }) => {
      const { user, model } = JSON.parse(body) as { user: string; model: string };
      return [user, model];
    }),
  );

test("each line goes to the upstream of its model, and both files are in the order of the input", async () => {
  await using one = await startUpstream();
  await using two = await startUpstream();
  await using service = await startMixed(one, two);
  const isRefused = (n: number) => n % 7 === 0;

  const batch = await service.run(
    mixedLines(1_500, (n) => (isRefused(n) ? "[[status 400]]" : `Hello ${n}`)),
  );

  const all = numbersUpTo(1_500);
  expect(batch).toMatchObject({
    status: "completed",
    model: modelOfLine(1),
    request_counts: { total: 1_500, completed: 1_286, failed: 214 },
  });
  const output = await service.rows(batch.output_file_id);
  expect(output.map((row) => row.custom_id)).toEqual(idsOf(all.filter((n) => !isRefused(n))));
  const errors = await service.rows(batch.error_file_id);
  expect(errors.map((row) => row.custom_id)).toEqual(idsOf(all.filter(isRefused)));
  const upstreamName = (n: number) => modelOfLine(n).replace("alias", "small");
  expect(new Map([...sentTo(one), ...sentTo(two)])).toEqual(
    new Map(all.map((n) => [`line-${n}`, upstreamName(n)])),
  );
  expect(new Set(sentTo(two).values())).toEqual(new Set(["large"]));
  expect([one.total, two.total]).toEqual([900, 600]);
});

test("an upstream that does not answer holds up its own lines and no others", async () => {
  await using one = await startUpstream();
  await using two = await startUpstream();
  await using service = await startMixed(one, two);
  one.hold();

  const { id } = await service.submit(mixedLines(50));
  await service.events.reached("line.recorded", { batch: id, count: 20 });

  expect([two.received.size, two.inFlight]).toEqual([20, 0]);
  expect(service.events.count("line.recorded", { batch: id })).toBe(20);
  one.release();
  const batch = await service.ended(id);
  expect(batch.request_counts).toEqual({ total: 50, completed: 50, failed: 0 });
  const rows = await service.rows(batch.output_file_id);
  expect(rows.map((row) => row.custom_id)).toEqual(idsOf(numbersUpTo(50)));
});

test("a batch cancelled while one upstream is silent has the answers of the other, and a row for every line", async () => {
  await using one = await startUpstream();
  await using two = await startUpstream();
  await using service = await startMixed(one, two);
  one.hold();
  const { id } = await service.submit(mixedLines(50));
  await service.events.reached("line.recorded", { batch: id, count: 20 });
  await one.reached(1);

  await service.openai.batches.cancel(id);
  one.release();
  const batch = await service.ended(id);

  const rows = [
    ...(await service.rows(batch.output_file_id)),
    ...(await service.rows(batch.error_file_id)),
  ].map((row) => row.custom_id);
  expect(rows).toHaveLength(50);
  expect(new Set(rows)).toEqual(new Set(idsOf(numbersUpTo(50))));
  expect(batch.request_counts?.completed).toBeGreaterThanOrEqual(20);
});
