/**
 * The order of the test files. The heaviest ones come first, as the whole run would wait for one that begins last. A
 * fresh checkout knows no durations, and vitest would go by the size of the files.
 */
import { relative } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** The files that take longest, the longest one first. */
const HEAVIEST: readonly string[] = [
  "test/event-loop.test.ts",
  "test/crash/network.test.ts",
  "test/chaos/chaos.test.ts",
  "test/crash/fleet.test.ts",
  "test/crash/kill.test.ts",
  "test/moving/refusals.test.ts",
  "test/upstream/shared-circuits.test.ts",
  "test/engine/replica-report.test.ts",
  "test/memory.test.ts",
  "test/cli/package.test.ts",
  "test/crash/s3.test.ts",
  "test/dispatch/concurrency.test.ts",
  "test/moving/migrate-to.test.ts",
  "test/engine/fleet-fairness.test.ts",
  "test/crash/control.test.ts",
  "test/crash/postgres.test.ts",
  "test/engine/finished-lines.test.ts",
  "test/engine/validation-memory.test.ts",
  "test/engine/disagreement.test.ts",
  "test/engine/capacity-sharing.test.ts",
  "test/storage.test.ts",
  "test/bucket/batches.test.ts",
  "test/web/journeys.test.ts",
  "test/upstream/capacity/adaptive/concurrency.test.ts",
  "test/ports/postgres.test.ts",
  "test/cli/startup.test.ts",
  "test/crash/damage.test.ts",
  "test/http/quotas.test.ts",
];

export class HeaviestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    return sorted.toSorted((a, b) => rankOf(a) - rankOf(b));
  }
}

function rankOf({ moduleId, project }: TestSpecification): number {
  const rank = HEAVIEST.indexOf(relative(project.config.root, moduleId));
  return rank === -1 ? HEAVIEST.length : rank;
}
