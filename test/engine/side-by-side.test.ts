import { expect, test } from "vitest";
import { SideBySide, type Work } from "../../src/engine/side-by-side.ts";
import { Nudge } from "../../src/loop.ts";

/** Work that ends when the test says so. */
function held() {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  return { work: () => promise, end: resolve, fail: reject };
}

function startOf(works: Work[], failures: unknown[] = []) {
  const nudge = new Nudge();
  let claimCount = 0;
  const claim = async () => {
    claimCount++;
    return works.shift() ?? null;
  };
  const options = { limit: 2, claim, nudge, onFailed: (err: unknown) => failures.push(err) };
  return { works: new SideBySide(options), nudge, claimCount: () => claimCount };
}

test("no more is claimed than may run at once, and the end of one asks for the next", async () => {
  const [one, two, three] = [held(), held(), held()];
  const { works, nudge, claimCount } = startOf([one.work, two.work, three.work]);
  expect(await works.startNext()).toBe(true);
  expect(await works.startNext()).toBe(true);
  expect(await works.startNext()).toBe(false);
  expect(claimCount()).toBe(2);
  const nudgesBefore = nudge.count;
  one.end();
  await expect.poll(() => nudge.count).toBe(nudgesBefore + 1);
  expect(await works.startNext()).toBe(true);
  expect(claimCount()).toBe(3);
});

test("work that fails is reported and makes room; the rest is waited for", async () => {
  const [one, two] = [held(), held()];
  const failures: unknown[] = [];
  const { works } = startOf([one.work, two.work], failures);
  await works.startNext();
  await works.startNext();
  let isSettled = false;
  const settled = works.settled().then(() => {
    isSettled = true;
  });
  one.fail(new Error("broken"));
  await expect.poll(() => failures).toEqual([new Error("broken")]);
  expect(isSettled).toBe(false);
  expect(await works.startNext()).toBe(false);
  two.end();
  await settled;
});
