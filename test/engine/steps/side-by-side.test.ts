import { expect, test } from "vitest";
import { SideBySide, type Work } from "../../../src/engine/steps/side-by-side.ts";
import { Nudge } from "../../../src/loop.ts";
import { claimInTurn, type ProjectTurn } from "../../../src/store/project-turns.ts";

/** Work that ends when the test says so. */
function held(project = "search") {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  return { work: { project, run: () => promise }, end: resolve, fail: reject };
}

function startOf(works: Work[], failures: unknown[] = []) {
  const nudge = new Nudge();
  const turns: ProjectTurn[] = [];
  const claim = async (turn: ProjectTurn) => {
    turns.push(turn);
    const at = works.findIndex(({ project }) => !turn.except.includes(project));
    return works.splice(at, at < 0 ? 0 : 1)[0] ?? null;
  };
  const onFailed = (err: unknown) => failures.push(err);
  const options = { ofAnyProject: 2, most: 3, claim, nudge, onFailed };
  return { works: new SideBySide(options), nudge, turns };
}

test("no more is worked on than may be at once, and the end of one asks for the next", async () => {
  const [one, two, three] = [held(), held(), held()];
  const { works, nudge } = startOf([one.work, two.work, three.work]);
  expect(await works.startNext()).toBe(true);
  expect(await works.startNext()).toBe(true);
  expect(await works.startNext()).toBe(false);
  const nudgesBefore = nudge.count;
  one.end();
  await expect.poll(() => nudge.count).toBe(nudgesBefore + 1);
  expect(await works.startNext()).toBe(true);
});

test("a project that has taken all places leaves one for each other project, up to a limit", async () => {
  const busy = [held("busy"), held("busy"), held("busy")];
  const [other, further] = [held("other"), held("further")];
  const waiting = [...busy, other, further].map(({ work }) => work);
  const { works, nudge, turns } = startOf(waiting);
  for (let n = 0; n < 3; n++) expect(await works.startNext()).toBe(true);
  expect(turns.at(-1)).toEqual({ former: "busy", except: ["busy"] });
  expect(waiting.map(({ project }) => project)).toEqual(["busy", "further"]);
  // All places are taken, so nothing is claimed.
  expect(await works.startNext()).toBe(false);
  expect(turns).toHaveLength(3);
  const nudgesBefore = nudge.count;
  busy[0]?.end();
  await expect.poll(() => nudge.count).toBe(nudgesBefore + 1);
  expect(await works.startNext()).toBe(true);
  expect(turns.at(-1)).toEqual({ former: "other", except: ["busy", "other"] });
  expect(waiting.map(({ project }) => project)).toEqual(["busy"]);
});

test("projects that all have more to do than there are places get equally much of them", async () => {
  const order: string[] = [];
  const running: (() => void)[] = [];
  const claimOf = ({ project }: { readonly project: string }): Work => {
    const { work, end } = held(project);
    order.push(project);
    running.push(end);
    return work;
  };
  const next = (former: string) =>
    ["a", "b"].map((project) => ({ project })).find(({ project }) => project > former) ?? null;
  const nudge = new Nudge();
  const claim = (turn: ProjectTurn) => claimInTurn(turn, { find: next, claim: claimOf });
  const options = { ofAnyProject: 2, most: 3, claim, nudge, onFailed: () => {} };
  const works = new SideBySide(options);
  for (let round = 0; round < 20; round++) {
    while (await works.startNext());
    const ended = nudge.count;
    // Those that take turns at ending leave different projects behind.
    running.splice(round % 2, 1)[0]?.();
    await expect.poll(() => nudge.count).toBe(ended + 1);
  }
  const ofA = order.filter((project) => project === "a").length;
  expect(Math.abs(2 * ofA - order.length)).toBeLessThanOrEqual(2);
});

test("a claim that found nothing lets the next one begin with any project", async () => {
  const one = held("other");
  const { works, turns } = startOf([one.work]);
  expect(await works.startNext()).toBe(true);
  expect(await works.startNext()).toBe(false);
  expect(await works.startNext()).toBe(false);
  expect(turns.map(({ former }) => former)).toEqual(["", "other", ""]);
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
