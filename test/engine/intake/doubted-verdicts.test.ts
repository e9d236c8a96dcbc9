/** Workers on one PostgreSQL whose settings differ, as while a change reaches them one after the other. */
import { expect, test } from "vitest";
import { type DoubtDeps, isDoubted } from "../../../src/engine/intake/doubted-verdicts.ts";
import { refusalFor } from "../../../src/engine/intake/input-reading.ts";
import { createBatch, submitLines } from "../../support/batches.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { sharePostgres } from "../../support/postgres.ts";
import { chatLine, chatLines, startTestService } from "../../support/service.ts";
import { temporaryFolder } from "../../support/store-builders.ts";
import { startUpstream } from "../../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("workers with different settings"));

const mixed = [
  chatLine("line-1", "Hello", { model: undefined }),
  chatLine("line-2", "Hello", { model: "other" }),
];

test.skipIf(postgres === null)(
  "a batch that the settings of one worker refuse is left to those of another",
  async () => {
    using folder = temporaryFolder("batchd-doubted-");
    await using upstream = await startUpstream();
    const common = {
      database_url: await postgres!.createDatabase(),
      engine: { stop_grace_seconds: 0, drain_grace_seconds: 0, lease_seconds: 3 },
    };
    const start = (settings: object) =>
      startTestService({
        upstreamUrl: upstream.url,
        dataDir: folder.path,
        config: { ...common, ...settings },
      });
    const prices = [{ model: "*", per_request: "1", currency: "USD" }];
    const limits = { allow_mixed_models: true };
    await using changed = await start({ default_model: "small", limits, prices });
    const projects = [{ name: "default", quotas: { enqueued_lines: 1 } }];
    await using unchanged = await start({ projects });
    await changed.events.reached("replicas.disagree");

    const input = await changed.upload(mixed);
    const x_batchd = { budget: "10" };
    const large = await changed.upload(chatLines(2));
    const batches = await Promise.all(
      Array.from({ length: 10 }, (_, n) =>
        n % 2 === 0
          ? createBatch(changed.openai, input, { x_batchd })
          : createBatch(changed.openai, large),
      ),
    );
    for (const { id } of batches) {
      const { status, errors } = await Promise.race(
        [changed, unchanged].map((service) => service.ended(id)),
      );
      expect([status, errors?.data]).toEqual(["completed", undefined]);
    }

    // No setting makes it better.
    const { id } = await submitLines(changed.openai, [chatLine("line-1", "Hello"), "{"]);
    const ended = await Promise.race([changed, unchanged].map((service) => service.ended(id)));
    expect(ended.errors?.data?.[0]?.code).toBe("invalid_json_line");
    for (const { events } of [changed, unchanged]) {
      expect(events.count("batch.waits_for_server", { batch: id })).toBe(0);
    }
  },
);

test("a batch waits five minutes for another verdict", () => {
  const verdict = refusalFor("token_limit_exceeded", "The project has too much to do.");
  const workers = [{ common: { hashes: { projects: "theirs" } } }];
  const settings = () => ({ hashes: { projects: "ours" } });
  const deps = { fleet: { nowMs: 300_000, workers }, settings } as unknown as DoubtDeps;
  expect(isDoubted(verdict, { createdAtMs: 0 }, deps)).toBe(true);
  expect(isDoubted(verdict, { createdAtMs: -1 }, deps)).toBe(false);
});
