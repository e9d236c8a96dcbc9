/**
 * The order of the test files. The heaviest ones come first, as the whole run would wait for one that begins last. A
 * fresh checkout knows no durations, and vitest would go by the size of the files.
 */
import { relative } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** The files that take longest, the longest one first. */
const HEAVIEST: readonly string[] = [
  "test/event-loop.test.ts",
  "test/crash/fleet.test.ts",
  "test/crash/control.test.ts",
  "test/crash/s3.test.ts",
  "test/crash/network.test.ts",
  "test/crash/kill.test.ts",
  "test/moving/refusals.test.ts",
  "test/ports/postgres.test.ts",
  "test/moving/migrate-to.test.ts",
  "test/cli/client.test.ts",
  "test/web/journeys.test.ts",
  "test/dispatch/concurrency.test.ts",
  "test/crash/postgres.test.ts",
  "test/http/budgets.test.ts",
  "test/upstream/capacity/adaptive/concurrency.test.ts",
  "test/memory.test.ts",
  "test/cli/package.test.ts",
  "test/engine/finished-lines.test.ts",
  "test/engine/refusals.test.ts",
  "test/engine/replica-report.test.ts",
  "test/chaos/chaos.test.ts",
  "test/http/quotas-under-way.test.ts",
  "test/http/quotas.test.ts",
  "test/cli/command-page.test.ts",
  "test/cli/startup.test.ts",
  "test/engine/capacity-sharing.test.ts",
  "test/dispatch/rate-limits.test.ts",
  "test/ports/sqlite.test.ts",
  "test/cli/cli.test.ts",
  "test/crash/pipelines.test.ts",
  "test/http/control-fleet.test.ts",
  "test/engine/fleet-fairness.test.ts",
  "test/upstream/shared-circuits.test.ts",
  "test/crash/deliveries.test.ts",
  "test/store/pgbouncer.test.ts",
  "test/storage.test.ts",
  "test/engine/dispatch/waiting.test.ts",
  "test/crash/delivery-steps.test.ts",
  "test/crash/damage.test.ts",
  "test/bucket/batches.test.ts",
  "test/cli/client-elsewhere.test.ts",
  "test/cli/pipeline.test.ts",
  "test/cli/run.test.ts",
  "test/locations/git.test.ts",
  "test/bucket/transfers.test.ts",
  "test/http/project-deletion.test.ts",
  "test/engine/validation-memory.test.ts",
  "test/engine/disagreement.test.ts",
];

export class HeaviestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    return sorted.toSorted((a, b) => rankOf(a) - rankOf(b));
  }
}

/** A process takes the next file of those that share one, so these come one after the other. */
function rankOf({ moduleId, project: { config } }: TestSpecification): number {
  const rank = HEAVIEST.indexOf(relative(config.root, moduleId));
  if (rank !== -1) return rank;
  return HEAVIEST.length + (config.isolate ? 0 : 1);
}
