import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const MEBIBYTE = 1024 * 1024;

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

test("a batch whose lines go to many models takes little memory while they wait for their slots", async () => {
  await using upstream = await startUpstream();
  using folder = temporaryFolder("batchd-mixed-");
  const models = Array.from({ length: 100 }, (_, i) => `m${i}`);
  const upstreams = models.map((name) => ({
    name,
    base_url: upstream.url,
    models: [name],
    max_concurrency: 1,
  }));
  const limits = { memory_bytes: 64 * MEBIBYTE, allow_mixed_models: true };
  const dataDir = join(folder.path, "data");
  const config = `${dataDir}.json`;
  await writeFile(config, JSON.stringify({ limits, upstreams }));
  const given = ["--config", config, "--data-dir", dataDir];
  await using server = new BatchdProcess(["serve", "--port", "0", ...given]);
  const client = new OpenAI({ baseURL: `${await server.listening()}/v1`, apiKey: "unused" });
  // The lines of a model lie near to each other, in all of 5 MB.
  const lines = Array.from({ length: 10_000 }, (_, i) =>
    chatLine(`line-${i}`, i < 2 * models.length ? "[[delay 2000]]" : "[[status 400]]", {
      model: models[i % models.length],
      user: "x".repeat(300),
    }),
  );
  const peakBytes = await server.peakMemoryBytes(async () => {
    const { id } = await submitLines(client, lines);
    const failed = async () => (await client.batches.retrieve(id)).request_counts?.failed;
    await expect.poll(failed).toBeGreaterThan(models.length);
    await client.batches.cancel(id);
    await server.batchEnded(id);
  });
  // A hundred targets take their part. The 4 MB that each chunk is read from would be as much again.
  expect(peakBytes).toBeLessThan(500 * MEBIBYTE);
});
