/**
 * The order of the test files. The heaviest ones come first, as the whole run would wait for one that begins last. A
 * fresh checkout knows no durations, and vitest would go by the size of the files.
 */
import { relative } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** The files that take the most processor time, the heaviest one first. */
const HEAVIEST: readonly string[] = [
  "test/event-loop-rows.test.ts",
  "test/memory.test.ts",
  "test/event-loop.test.ts",
  "test/crash/fleet.test.ts",
  "test/http/budgets.test.ts",
  "test/crash/kill.test.ts",
  "test/crash/control.test.ts",
  "test/crash/postgres.test.ts",
  "test/cli/client.test.ts",
  "test/cli/package.test.ts",
  "test/ports/postgres.test.ts",
  "test/crash/network.test.ts",
  "test/moving/migrate-to.test.ts",
  "test/dispatch/concurrency.test.ts",
  "test/web/journeys.test.ts",
  "test/moving/refusals.test.ts",
  "test/crash/s3.test.ts",
  "test/chaos/chaos.test.ts",
  "test/crash/pipelines.test.ts",
  "test/http/quotas.test.ts",
  "test/cli/streams.test.ts",
  "test/engine/fleet-view.test.ts",
  "test/engine/capacity-sharing.test.ts",
  "test/dispatch/batches.test.ts",
  "test/bucket/transfers.test.ts",
  "test/batch/fair-queue.test.ts",
  "test/locations/kill.test.ts",
  "test/store/pgbouncer.test.ts",
  "test/ports/s3.test.ts",
  "test/operator-guides.test.ts",
  "test/dispatch/outage.test.ts",
  "test/crash/costs.test.ts",
  "test/dispatch/rate-limits.test.ts",
  "test/engine/isolation.test.ts",
  "test/http/control-fleet.test.ts",
  "test/reload.test.ts",
  "test/engine/finished-lines.test.ts",
  "test/cli/client-elsewhere.test.ts",
  "test/engine/dispatch/waiting.test.ts",
  "test/engine/served-models.test.ts",
  "test/engine/fleet-fairness.test.ts",
  "test/deliveries/client-buckets.test.ts",
  "test/engine/refusals.test.ts",
  "test/http/progress.test.ts",
  "test/http/costs.test.ts",
  "test/engine/validation-memory.test.ts",
  "test/cli/keys.test.ts",
  "test/locations/git.test.ts",
];

export class HeaviestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    return sorted.toSorted((a, b) => rankOf(a) - rankOf(b));
  }
}

/**
 * Files with a process of their own come first, because a process that several files share goes on only while the next file
 * shares it too.
 */
function rankOf({ moduleId, project: { config } }: TestSpecification): number {
  if (config.isolate) return -1;
  const rank = HEAVIEST.indexOf(relative(config.root, moduleId));
  return rank === -1 ? HEAVIEST.length : rank;
}
