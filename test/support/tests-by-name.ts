/** The rule that each file of the engine has a test of its name, so that a newcomer finds it. */
import type { SourceFile } from "./source-tree.ts";

/** The files whose guarantees need others around them, with the tests that hold them. */
const HELD_BY: Readonly<Record<string, string>> = {
  // The tests cover a chunk that is closed, released or lost, after a drain, a cancellation and a crash.
  "chunk-runner.ts": "test/engine/restart.test.ts",
  // It has types only.
  "dispatch/running-chunk.ts": "test/engine/dispatch/scheduler.test.ts",
  "expiry.ts": "test/engine/file-expiry.test.ts",
  "sending.ts": "test/engine/pass-through.test.ts",
  "served-models.ts": "test/engine/check-models.test.ts",
};

/** Also reports entries of the table that are not needed any more. */
export function untestedEngineFiles(files: readonly SourceFile[]): string[] {
  const paths = new Set(files.map(({ path }) => path));
  const sources = [...paths].filter((path) => path.startsWith("src/engine/"));
  const ownTestOf = (path: string) => path.replace(/^src\//, "test/").replace(/\.ts$/, ".test.ts");
  const untested = sources
    .filter((path) => !paths.has(HELD_BY[path.slice("src/engine/".length)] ?? ownTestOf(path)))
    .map((path) => `${path} has no test`);
  const stale = Object.keys(HELD_BY)
    .filter((name) => paths.has(ownTestOf(`src/engine/${name}`)))
    .map((name) => `${name} needs no entry`);
  return [...untested, ...stale];
}
