import { availableParallelism } from "node:os";
import { configDefaults, defineConfig, type TestProjectConfiguration } from "vitest/config";
import { FailedTests } from "./test/support/failed-tests.ts";
import { LongestFirst } from "./test/support/order.ts";

/**
 * Each runs in a process of its own, as it looks at what a whole process has or does: its memory, what it reads, its channels
 * of diagnostics, its uncaught errors. A process costs two seconds of processor time until its code is loaded and compiled.
 */
const OWN = [
  "test/batch/content.test.ts",
  "test/http/long-readers.test.ts",
  "test/http/uploads.test.ts",
  "test/upstream/exchange/garbage.test.ts",
];

/** Left out by `npm run test:fast`: they start processes, crash them, or go through much data or many cases. */
const SLOW = [
  "test/batch/fair-queue.test.ts",
  "test/bucket/**/*.test.ts",
  "test/chaos/**/*.test.ts",
  "test/cli/**/*.test.ts",
  "test/contract/openapi.test.ts",
  "test/crash/**/*.test.ts",
  "test/data-page.test.ts",
  "test/deliveries/cancelling.test.ts",
  "test/deliveries/client-buckets.test.ts",
  "test/deliveries/command.test.ts",
  "test/deliveries/credentials.test.ts",
  "test/deliveries/deliveries.test.ts",
  "test/deliveries/full-disk.test.ts",
  "test/deliveries/git-remotes.test.ts",
  "test/dispatch/**/*.test.ts",
  "test/engine/fleet/capacity-sharing.test.ts",
  "test/engine/chunks/chunk-runner.test.ts",
  "test/engine/chunks/chunk-start.test.ts",
  "test/engine/damage.test.ts",
  "test/engine/deleting-under-way.test.ts",
  "test/engine/deriving/deriving.test.ts",
  "test/engine/fleet/disagreement.test.ts",
  "test/engine/intake/doubted-verdicts.test.ts",
  "test/engine/dispatch/fairness.test.ts",
  "test/engine/dispatch/waiting.test.ts",
  "test/engine/results/duplicate-rows.test.ts",
  "test/engine/housekeeping/expiry.test.ts",
  "test/engine/results/finalizer.test.ts",
  "test/engine/results/finished-lines.test.ts",
  "test/engine/fleet-fairness.test.ts",
  "test/engine/fleet-view.test.ts",
  "test/engine/fleet/fleet.test.ts",
  "test/engine/housekeeping/housekeeping.test.ts",
  "test/engine/isolation.test.ts",
  "test/engine/journal/journal-health.test.ts",
  "test/engine/journal/journal.test.ts",
  "test/engine/steps/lease.test.ts",
  "test/engine/results/line-page.test.ts",
  "test/engine/results/merge.test.ts",
  "test/engine/results/merged-lines.test.ts",
  "test/engine/mixed-models.test.ts",
  "test/engine/pausing.test.ts",
  "test/engine/refusals.test.ts",
  "test/engine/fleet/replica-report.test.ts",
  "test/engine/reroute.test.ts",
  "test/engine/retries-of-retries.test.ts",
  "test/engine/sampling.test.ts",
  "test/engine/intake/served-models.test.ts",
  "test/engine/housekeeping/sweeper.test.ts",
  "test/engine/validation-extremes.test.ts",
  "test/engine/validation-memory.test.ts",
  "test/event-loop-floods.test.ts",
  "test/event-loop-lists.test.ts",
  "test/event-loop-rows.test.ts",
  "test/event-loop.test.ts",
  "test/formats/conversion.test.ts",
  "test/guides.test.ts",
  "test/http/bounds.test.ts",
  "test/http/budgets.test.ts",
  "test/http/control-fleet.test.ts",
  "test/http/costs.test.ts",
  "test/http/interactive-share.test.ts",
  "test/http/keys-fleet.test.ts",
  "test/http/keys.test.ts",
  "test/http/left-requests.test.ts",
  "test/http/list-memory.test.ts",
  "test/http/progress.test.ts",
  "test/http/project-deletion.test.ts",
  "test/http/quota-pauses.test.ts",
  "test/http/quotas-under-way.test.ts",
  "test/http/quotas.test.ts",
  "test/http/results-events.test.ts",
  "test/leftovers.test.ts",
  "test/locations/**/*.test.ts",
  "test/memory.test.ts",
  "test/moving/**/*.test.ts",
  "test/operator-guides.test.ts",
  "test/ports/postgres-transactions.test.ts",
  "test/ports/postgres.test.ts",
  "test/ports/s3.test.ts",
  "test/ports/sqlite.test.ts",
  "test/readme.test.ts",
  "test/redactor.test.ts",
  "test/reload-shares.test.ts",
  "test/reload.test.ts",
  "test/resources/descriptors.test.ts",
  "test/storage.test.ts",
  "test/store/nudges.test.ts",
  "test/store/pgbouncer.test.ts",
  "test/store/statements.test.ts",
  "test/store/tls.test.ts",
  "test/telemetry/tracing.test.ts",
  "test/upstream/capacity/**/*.test.ts",
  "test/upstream/exchange/client-timeouts.test.ts",
  "test/upstream/exchange/proxied-answer.test.ts",
  "test/upstream/route-targets.test.ts",
  "test/upstream/route.test.ts",
  "test/upstream/shared-circuits.test.ts",
  "test/upstream/slot-lanes.test.ts",
  "test/upstream/slot-queue-any-order.test.ts",
  "test/upstream/slot-queue.test.ts",
  "test/web/administration.test.ts",
  "test/web/first-batch.test.ts",
  "test/web/fleet.test.ts",
  "test/web/journeys.test.ts",
  "test/web/many-batches.test.ts",
  "test/web/other-sites.test.ts",
  "test/web/sending-files.test.ts",
  "test/webhooks/disagreeing.test.ts",
  "test/webhooks/webhooks.test.ts",
];

export default defineConfig(({ mode }) => {
  const isFast = mode === "fast";
  const prepared = [
    "test/support/data-root.ts",
    "test/support/bundle.ts",
    "test/support/prepared-postgres.ts",
  ];
  const shared: TestProjectConfiguration = {
    extends: true,
    test: {
      name: "shared",
      include: ["test/**/*.test.ts"],
      exclude: [...configDefaults.exclude, ...OWN, ...(isFast ? SLOW : [])],
      // A process that runs one file after the other loads the sources once. Each file ends what it starts.
      isolate: false,
      globalSetup: isFast ? prepared.slice(0, 1) : prepared,
    },
  };
  const own: TestProjectConfiguration = {
    extends: true,
    test: { name: "own", include: OWN, isolate: true, globalSetup: prepared },
  };
  return {
    test: {
      projects: isFast ? [shared] : [own, shared],
      setupFiles: ["test/support/watchdog.ts"],
      // The longest turns are simulations of some seconds, and coverage makes them several times longer.
      provide: { maxTurnMs: process.argv.includes("--coverage") ? 60_000 : 10_000 },
      // Real processes: some tests send signals, count sockets or watch memory.
      pool: "forks",
      // Many tests wait for servers and leases most of the time, so there are more of them than processors.
      maxWorkers: Math.max(6, availableParallelism()),
      sequence: { sequencer: LongestFirst },
      retry: process.env["CI"] ? 1 : 0,
      reporters: ["default", new FailedTests()],
      // No test waits for time to pass: these only end what hangs, also where other work takes nearly all of the processors.
      // So no test has a limit of its own.
      testTimeout: 600_000,
      hookTimeout: 600_000,
      teardownTimeout: 30_000,
      // It is shorter than the test, so that the failure says what did not come. The defaults are a second, and a look each 50 ms,
      // which at a server is work.
      expect: { poll: { timeout: 120_000, interval: 150 } },
      // An error that was not caught is a failure even when every assertion held.
      dangerouslyIgnoreUnhandledErrors: false,
      allowOnly: false,
      coverage: {
        provider: "v8",
        // Where a mistake costs answers. Processes that tests start and kill are not counted.
        include: ["src/engine/**", "src/store/**", "src/upstream/**"],
        reporter: ["text", "html"],
      },
    },
  };
});
