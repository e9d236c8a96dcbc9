import { configDefaults, defineConfig } from "vitest/config";

/** Left out by `npm run test:fast`: they start processes, crash them, or go through much data or many cases. */
const SLOW = [
  "test/bucket/**",
  "test/chaos/**",
  "test/cli/**",
  "test/crash/**",
  "test/dispatch/**",
  "test/ports/postgres.test.ts",
  "test/ports/s3.test.ts",
  "test/ports/sqlite.test.ts",
  "test/batch/content.test.ts",
  "test/batch/fair-queue.test.ts",
  "test/engine/capacity-sharing.test.ts",
  "test/engine/check-models.test.ts",
  "test/engine/damage.test.ts",
  "test/engine/dispatch/fairness.test.ts",
  "test/engine/file-expiry.test.ts",
  "test/engine/finalizer.test.ts",
  "test/engine/journal.test.ts",
  "test/engine/lease.test.ts",
  "test/engine/merge.test.ts",
  "test/engine/mixed-models.test.ts",
  "test/engine/refusals.test.ts",
  "test/engine/reroute.test.ts",
  "test/engine/restart.test.ts",
  "test/engine/sweeper.test.ts",
  "test/engine/isolation.test.ts",
  "test/engine/validation-extremes.test.ts",
  "test/engine/validation-memory.test.ts",
  "test/engine/dispatch/waiting.test.ts",
  "test/event-loop.test.ts",
  "test/http/bounds.test.ts",
  "test/http/interactive-share.test.ts",
  "test/http/uploads.test.ts",
  "test/leftovers.test.ts",
  "test/memory.test.ts",
  "test/readme.test.ts",
  "test/reload.test.ts",
  "test/resources/descriptors.test.ts",
  "test/storage.test.ts",
  "test/store/pgbouncer.test.ts",
  "test/store/tls.test.ts",
  "test/telemetry/tracing.test.ts",
  "test/upstream/capacity/**",
  "test/upstream/exchange/client-timeouts.test.ts",
  "test/upstream/exchange/garbage.test.ts",
  "test/upstream/route.test.ts",
  "test/webhooks/webhooks.test.ts",
];

export default defineConfig(({ mode }) => ({
  test: {
    include: ["test/**/*.test.ts"],
    setupFiles: ["test/support/watchdog.ts"],
    // The longest turns are simulations of some seconds, and coverage makes them several times longer.
    provide: { maxTurnMs: process.argv.includes("--coverage") ? 60_000 : 10_000 },
    exclude: [...configDefaults.exclude, ...(mode === "fast" ? SLOW : [])],
    // Real processes: some tests send signals, count sockets or watch memory.
    pool: "forks",
    // The tests start servers and child processes of their own; more at once only makes them wait.
    maxWorkers: 2,
    // No test waits for time to pass: these end what hangs, also where other work takes most of the processors.
    testTimeout: 60_000,
    hookTimeout: 60_000,
    teardownTimeout: 30_000,
    // An error that nobody caught is a failure even when every assertion held.
    dangerouslyIgnoreUnhandledErrors: false,
    allowOnly: false,
    coverage: {
      provider: "v8",
      // Where a mistake costs answers. Processes that tests start and kill are not counted.
      include: ["src/engine/**", "src/store/**", "src/upstream/**"],
      reporter: ["text", "html"],
    },
  },
}));
