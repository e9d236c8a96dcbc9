/** The only replica that serves a model restarts, and clients go on to use the others. */
import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("replicas that restart"));
const LINE_COUNT = 5;

const linesFor = (model: string) =>
  Array.from({ length: LINE_COUNT }, (_, i) => chatLine(`line-${i + 1}`, "Hello", { model }));

const models = async ({ openai }: TestService) =>
  (await openai.models.list()).data.map(({ id }) => id).toSorted();

test.skipIf(postgres === null)(
  "a batch for a model whose only server restarts waits for it, for five minutes",
  async () => {
    using folder = temporaryFolder("batchd-restarting-");
    await using upstream = await startUpstream();
    const database_url = await postgres!.createDatabase();
    const serving = (model: string) => ({
      database_url,
      engine: { stop_grace_seconds: 0, drain_grace_seconds: 0, lease_seconds: 3 },
      upstreams: [{ name: `of-${model}`, base_url: upstream.url, models: [model] }],
    });
    const start = (model: string) =>
      startTestService({ dataDir: folder.path, config: serving(model) });
    await using staying = await start("staying");
    const before = await start("restarting");
    await expect.poll(() => models(staying)).toEqual(["restarting", "staying"]);
    await before.close();
    await expect.poll(() => models(staying), { timeout: 10_000 }).toEqual(["staying"]);
    const waiting = async () => {
      const { id } = await staying.submit(linesFor("restarting"));
      await staying.events.reached("batch.waits_for_server", { batch: id });
      return id;
    };

    const id = await waiting();
    expect((await staying.openai.batches.retrieve(id)).status).toBe("validating");
    expect((await staying.run(linesFor("unknown"))).errors?.data?.[0]?.code).toBe(
      "model_not_found",
    );
    {
      await using after = await start("restarting");
      // Either of them may write the results.
      const ended = Promise.race([staying, after].map((service) => service.ended(id)));
      const { status, output_file_id } = await ended;
      expect([status, (await after.rows(output_file_id)).length]).toEqual([
        "completed",
        LINE_COUNT,
      ]);
    }

    await expect.poll(() => models(staying), { timeout: 10_000 }).toEqual(["staying"]);
    const late = await waiting();
    await query(database_url, "update replicas set expires_at_ms = expires_at_ms - 300000");
    const refused = await staying.ended(late);
    expect(refused.errors?.data).toHaveLength(LINE_COUNT);
    expect(refused.errors?.data?.[0]?.code).toBe("model_not_found");
  },
);
