/** The date by which all replicas go, whatever date a machine shows: processes on one PostgreSQL. */
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("the clock of a fleet"));

test.skipIf(postgres === null)(
  "a machine whose date jumps beyond the window goes on sending: the window ends by the clock of the store",
  async () => {
    await using upstream = await startUpstream();
    let aheadMs = 0;
    const clock = { ...systemClock, nowMs: () => systemClock.nowMs() + aheadMs };
    await using service = await startTestService({
      clock,
      config: {
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 4 }],
        database_url: await postgres!.createDatabase(),
      },
    });
    upstream.hold();
    const { id } = await service.submit(chatLines(50));
    await upstream.reached(4);
    aheadMs = 2 * 24 * 60 * 60 * 1000;
    upstream.release();
    expect(await service.ended(id)).toMatchObject({
      status: "completed",
      request_counts: { total: 50, completed: 50 },
    });
  },
);
