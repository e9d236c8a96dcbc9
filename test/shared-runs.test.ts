import { expect, test } from "vitest";
import { sharedRuns } from "../src/shared-runs.ts";

/** Work whose runs end by hand, in the order in which they began. */
function heldWork() {
  const begun: PromiseWithResolvers<number>[] = [];
  const run = sharedRuns(() => {
    const held = Promise.withResolvers<number>();
    begun.push(held);
    return held.promise;
  });
  return { run, begun };
}

test("all that ask while a run is under way share the next one, which begins when that one has ended", async () => {
  const { run, begun } = heldWork();
  const first = run();
  const [second, third] = [run(), run()];
  expect(begun).toHaveLength(1);
  begun[0]?.resolve(1);
  expect(await first).toBe(1);
  expect(begun).toHaveLength(2);
  begun[1]?.resolve(2);
  expect(await Promise.all([second, third])).toEqual([2, 2]);
});

test("a run that fails fails for those that have asked for it, and the next one begins all the same", async () => {
  const { run, begun } = heldWork();
  const first = run();
  const second = run();
  begun[0]?.reject(new Error("no descriptors"));
  await expect(first).rejects.toThrow("no descriptors");
  begun[1]?.resolve(2);
  expect(await second).toBe(2);
});

test("those that ask in the moment between two runs begin no third beside the second", async () => {
  const { run, begun } = heldWork();
  void run();
  void run();
  begun[0]?.resolve(1);
  for (let tick = 0; tick < 10; tick++) {
    void run();
    await Promise.resolve();
  }
  expect(begun).toHaveLength(2);
});
