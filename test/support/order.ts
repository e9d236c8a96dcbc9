/**
 * The order of the test files. The longest ones come first, as the whole run would wait for one that begins last. A
 * fresh checkout knows no durations, and vitest would go by the size of the files.
 */
import { relative } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * The files that take longest, the longest one first. One that starts a thousand programs comes before them, because a start costs
 * more as the memory of its process grows.
 */
const LONGEST: readonly string[] = [
  "test/locations/git.test.ts",
  "test/memory.test.ts",
  "test/chaos/chaos.test.ts",
  "test/crash/network.test.ts",
  "test/crash/control.test.ts",
  "test/engine/fleet/capacity-sharing.test.ts",
  "test/crash/postgres.test.ts",
  "test/event-loop-rows.test.ts",
  "test/crash/s3.test.ts",
  "test/http/budgets.test.ts",
  "test/crash/fleet.test.ts",
  "test/http/project-deletion.test.ts",
  "test/cli/run.test.ts",
  "test/http/control-fleet.test.ts",
  "test/crash/standby.test.ts",
  "test/event-loop.test.ts",
  "test/web/open-pages.test.ts",
  "test/crash/kill.test.ts",
  "test/cli/streams.test.ts",
  "test/engine/dispatch/waiting.test.ts",
  "test/ports/postgres.test.ts",
  "test/web/journeys.test.ts",
  "test/engine/fleet-view.test.ts",
  "test/engine/steps/doubted-blobs.test.ts",
  "test/http/store-dates.test.ts",
  "test/engine/intake/doubted-verdicts.test.ts",
  "test/http/quotas-under-way.test.ts",
  "test/crash/deliveries.test.ts",
  "test/web/sending-files.test.ts",
  "test/engine/results/line-page.test.ts",
  "test/moving/migrate-to.test.ts",
  "test/crash/any-order.test.ts",
  "test/bucket/batches.test.ts",
  "test/http/progress.test.ts",
  "test/event-loop-floods.test.ts",
  "test/event-loop-lists.test.ts",
  "test/cli/client.test.ts",
  "test/http/costs.test.ts",
  "test/storage.test.ts",
  "test/engine/fleet/disagreement.test.ts",
  "test/crash/quotas-apart.test.ts",
  "test/bucket/transfers.test.ts",
  "test/crash/delivery-steps.test.ts",
  "test/engine/housekeeping/housekeeping.test.ts",
  "test/web/administration.test.ts",
  "test/engine/restarting-replica.test.ts",
  "test/cli/package.test.ts",
  "test/engine/refusals.test.ts",
  "test/ports/s3.test.ts",
  "test/store/pgbouncer.test.ts",
  "test/webhooks/disagreeing.test.ts",
  "test/reload.test.ts",
  "test/web/new-batch.test.ts",
  "test/crash/damage.test.ts",
  "test/engine/refusals-in-other-words.test.ts",
  "test/web/fleet.test.ts",
  "test/engine/fleet-fairness.test.ts",
  "test/store/tls.test.ts",
  "test/cli/projects.test.ts",
  "test/resources/descriptors.test.ts",
  "test/deliveries/damaged-results.test.ts",
  "test/cli/client-elsewhere.test.ts",
  "test/web/inputs.test.ts",
  "test/upstream/shared-circuits.test.ts",
  "test/deliveries/cancelling.test.ts",
  "test/store/damaged-database.test.ts",
  "test/cli/command-page.test.ts",
  "test/moving/refusals.test.ts",
  "test/web/keyboard.test.ts",
  "test/cli/pipeline.test.ts",
  "test/http/tables.test.ts",
  "test/ports/sqlite.test.ts",
  "test/locations/s3.test.ts",
  "test/crash/pipelines.test.ts",
  "test/dispatch/concurrency.test.ts",
  "test/locations/s3-parts.test.ts",
  "test/engine/validation-memory.test.ts",
];

export class LongestFirst extends BaseSequencer {
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
  const rank = LONGEST.indexOf(relative(config.root, moduleId));
  return rank === -1 ? LONGEST.length : rank;
}
