import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";
import { FIRST_LINES } from "../../src/batch/failures.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { listening } from "../support/listening.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const MINUTES_MS = 5 * 60_000;

const postgres = forAllTests(await sharePostgres("reported failures"));

test.skipIf(postgres === null)(
  "the failure that the lines of a batch had in common is gone some minutes after the batch was deleted",
  async () => {
    const database_url = await postgres!.createDatabase();
    const reports = () => query(database_url, "select report from replicas");
    await using upstream = await startUpstream();
    const clock = new FakeClock();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      clock,
      config: { database_url },
    });
    const { openai } = service;
    const { id } = await service.run(chatLines(FIRST_LINES, () => "[[status 400]]"));
    const failure = { common_failure: { lines: FIRST_LINES } };
    expect(await openai.batches.retrieve(id)).toMatchObject({ x_batchd: failure });
    clock.advance(10_000);
    await expect.poll(reports).toMatchObject([{ report: expect.stringContaining(id) }]);
    await openai.delete(`/batches/${id}`, { body: undefined });
    clock.advance(MINUTES_MS);
    await expect.poll(reports).toMatchObject([{ report: expect.not.stringContaining(id) }]);
  },
);

/** A server that quotes in its error what it was sent, as vLLM does. */
const quoting = createServer((request, response) => {
  void json(request).then((body) => {
    const { messages } = body as { messages: readonly { content: string }[] };
    response.writeHead(400, { "content-type": "application/json" });
    response.end(JSON.stringify({ error: { message: messages[0]?.content, code: "too_long" } }));
  });
});

test("batches that failed keep no long message of a model server in memory", async () => {
  const BATCHES = 40;
  /** V8 takes two bytes for each character where one needs them. */
  const prompt = `…${"x".repeat(60_000)}`;
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  const heapBytes = () => {
    collectGarbage();
    return process.memoryUsage().heapUsed;
  };
  const upstreamUrl = `http://127.0.0.1:${await listening(quoting)}/v1`;
  await using service = await startTestService({ upstreamUrl });
  const runSome = async (count: number) => {
    for (let i = 0; i < count; i++) {
      const { request_counts } = await service.run([chatLine("long", prompt)]);
      expect(request_counts?.failed).toBe(1);
    }
  };
  await runSome(10);
  const before = heapBytes();
  await runSome(BATCHES);
  expect((heapBytes() - before) / BATCHES).toBeLessThan(prompt.length);
});
