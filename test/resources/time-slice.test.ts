/** Long work takes turns: the server's own and what clients ask for, and so do the projects among the clients. */
import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { ownWork, workFor } from "../../src/resources/client-work.ts";
import { timeForMore } from "../../src/resources/time-slice.ts";

/** Takes more time than a slice has. */
function workOn(): void {
  const endsAtMs = performance.now() + 12;
  while (performance.now() < endsAtMs);
}

/** Takes the time that is left, so that all who ask now wait. */
async function useUpTime(): Promise<void> {
  await timeForMore();
  while (timeForMore() === null);
  await timeForMore();
  workOn();
}

test("work of a project, and of the server, waits behind one piece of another project and not behind a hundred", async () => {
  await useUpTime();
  const order: string[] = [];
  const wait = async (name: string) => {
    await timeForMore();
    order.push(name);
    workOn();
  };
  const work = Array.from({ length: 30 }, () => workFor("a", () => wait("a")));
  work.push(workFor("b", () => wait("b")));
  work.push(ownWork(() => wait("own")));
  await Promise.all(work);
  expect(order.slice(0, 4).toSorted()).toEqual(["a", "a", "b", "own"]);
});

test("work that needs little time does not wait for a turn of the event loop for each piece", async () => {
  await useUpTime();
  let turnCount = 0;
  let isOver = false;
  const count = async () => {
    for (; !isOver; turnCount++) await nextTurn();
  };
  const counted = count();
  await Promise.all(Array.from({ length: 1_000 }, () => timeForMore()));
  isOver = true;
  await counted;
  expect(turnCount).toBeLessThan(200);
});
