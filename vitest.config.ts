import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    // Real processes: some tests send signals, count sockets or watch memory.
    pool: "forks",
    // The tests start servers and child processes of their own; more at once only makes them wait.
    maxWorkers: 2,
    testTimeout: 20_000,
    hookTimeout: 20_000,
    teardownTimeout: 10_000,
    // An error that nobody caught is a failure even when every assertion held.
    dangerouslyIgnoreUnhandledErrors: false,
    allowOnly: false,
  },
});
