/** A chunk with lines for several models, at a replica that serves only some of them. */
import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("replicas with some of the models"));
const LINES = Array.from({ length: 1_200 }, (_, i) =>
  chatLine(`line-${i + 1}`, "Hello", { model: i % 2 === 0 ? "large" : "small" }),
);

test.skipIf(postgres === null)(
  "lines that a replica has no model server for go on at one that has, and do not wait for a lease",
  async () => {
    using folder = temporaryFolder("batchd-partial-");
    await using all = await startUpstream();
    await using some = await startUpstream();
    const database_url = await postgres!.createDatabase();
    const start = (base_url: string, models: readonly string[]) =>
      startTestService({
        dataDir: folder.path,
        config: {
          database_url,
          limits: { allow_mixed_models: true },
          // No lease ends while the test runs.
          engine: { lease_seconds: 600, stop_grace_seconds: 0, drain_grace_seconds: 0 },
          upstreams: [{ name: models.join("-"), base_url, models, max_concurrency: 4 }],
        },
      });
    await using first = await start(all.url, ["large", "small"]);
    all.hold();
    const { id } = await first.submit(LINES);
    await all.reachedLines(1);
    await using joined = await start(some.url, ["large"]);
    await some.reachedLines(100);
    all.release();

    const batch = async () => first.openai.batches.retrieve(id);
    await expect.poll(async () => (await batch()).status).toBe("completed");
    const { output_file_id } = await batch();
    expect((await joined.rows(output_file_id)).map((row) => row.custom_id)).toEqual(
      LINES.map((_, i) => `line-${i + 1}`),
    );
    const sent = [...all.received, ...some.received].map(([, count]) => count);
    expect(sent).toEqual(LINES.map(() => 1));
  },
);
