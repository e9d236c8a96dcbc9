/** The limit of things at once, with places beyond it for further projects. */
import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { workFor } from "../../src/resources/client-work.ts";
import { Semaphore } from "../../src/resources/semaphore.ts";
import { seededRandom } from "../support/seeded-random.ts";

/** Begins what lasts until `end`, each of a project. */
function thingsOf(semaphore: Semaphore) {
  const begun = new Map<string, () => void>();
  const ask = (project: string, name: string) =>
    workFor(project, () =>
      semaphore.run(async () => {
        const { promise, resolve } = Promise.withResolvers<void>();
        begun.set(name, resolve);
        await promise;
        begun.delete(name);
      }),
    );
  const end = async (name: string) => {
    begun.get(name)?.();
    await setImmediate();
  };
  return { ask, end, names: () => [...begun.keys()].toSorted() };
}

test("one thing that ends lets all begin that may, also those whose project has none any more", async () => {
  const { ask, end, names } = thingsOf(new Semaphore(2, 4));
  const asked = [ask("a", "a1"), ask("b", "b1"), ask("b", "b2"), ask("a", "a2")];
  expect(names()).toEqual(["a1", "b1"]);
  await end("a1");
  expect(names()).toEqual(["a2", "b1", "b2"]);
  for (const name of ["a2", "b1", "b2"]) await end(name);
  await Promise.all(asked);
});

test("never more happen than may, and none waits while it may begin", async () => {
  const [ofAnyProject, most] = [2, 4];
  const { ask, end, names } = thingsOf(new Semaphore(ofAnyProject, most));
  const random = seededRandom(7);
  const dice = (sides: number) => Math.floor(random() * sides);
  const open = new Set<string>();
  const asked: Promise<void>[] = [];
  const projectOf = (name: string) => name[0] ?? "";
  for (let i = 0; i < 2_000; i++) {
    const under = names();
    if (open.size < 12 && dice(2) === 0) {
      const project = "abcde"[dice(5)] ?? "a";
      open.add(project + i);
      asked.push(ask(project, project + i));
      await setImmediate();
    } else if (under.length > 0) {
      const name = under[dice(under.length)] ?? "";
      open.delete(name);
      await end(name);
    }
    const now = names();
    const projects = new Set(now.map(projectOf));
    const waiting = [...open].filter((name) => !now.includes(name));
    expect(now.length).toBeLessThanOrEqual(most);
    if (now.length < ofAnyProject) expect(waiting).toEqual([]);
    if (now.length < most)
      expect(waiting.filter((name) => !projects.has(projectOf(name)))).toEqual([]);
  }
  while (names().length > 0) for (const name of names()) await end(name);
  await Promise.all(asked);
});
