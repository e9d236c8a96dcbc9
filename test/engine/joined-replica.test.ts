/** What a replica knows of the others when it needs it, although no time passes between their reports. */
import { expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("replicas that begin to serve a model"));

test.skipIf(postgres === null)(
  "a model that another replica has begun to serve a moment ago is not refused",
  async () => {
    using folder = temporaryFolder("batchd-joined-");
    await using upstream = await startUpstream();
    const database_url = await postgres!.createDatabase();
    const serving = (...models: string[]) => ({
      database_url,
      database: { listen: false },
      engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 },
      upstreams: [{ name: "only", base_url: upstream.url, models }],
    });
    const start = () =>
      startTestService({ clock: new FakeClock(), dataDir: folder.path, config: serving("old") });
    await using validating = await start();
    await using other = await start();
    const batchOf = async (model: string) => {
      const lines = [chatLine("line-1", "Hello", { model })];
      const { id } = await validating.submit(lines);
      const started = validating.events.reached("batch.started", { batch: id });
      await Promise.race([started, validating.ended(id)]);
      return (await validating.openai.batches.retrieve(id)).errors?.data ?? [];
    };
    expect(await batchOf("new")).toMatchObject([{ code: "model_not_found" }]);
    other.reconfigure(serving("old", "new"));
    const reports = () => query(database_url, "select from replicas where report like '%\"new\"%'");
    await expect.poll(reports).toHaveLength(1);
    expect(await batchOf("new")).toEqual([]);
    expect(await batchOf("other")).toMatchObject([{ code: "model_not_found" }]);
  },
);
