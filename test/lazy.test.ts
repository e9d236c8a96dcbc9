import { expect, test } from "vitest";
import { lazy } from "../src/lazy.ts";

test("makes a thing once, also for callers that come meanwhile", async () => {
  let madeCount = 0;
  const thing = lazy(async () => ({ number: ++madeCount }));
  const [first, second] = await Promise.all([thing(), thing()]);
  expect(second).toBe(first);
  expect(await thing()).toBe(first);
  expect(madeCount).toBe(1);
});

test("makes a thing again that could not be made", async () => {
  const failures = [new Error("no descriptors")];
  const thing = lazy(async () => {
    const failure = failures.pop();
    if (failure !== undefined) throw failure;
    return "made";
  });
  await expect(Promise.all([thing(), thing()])).rejects.toThrow("no descriptors");
  expect(await thing()).toBe("made");
});
