import { expect, test } from "vitest";
import { FIRST_LINES } from "../../src/batch/failures.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { chatLines, startTestService } from "../support/service.ts";
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
