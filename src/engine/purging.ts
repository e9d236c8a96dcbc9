/** Deletes the data of projects that operators deleted, until nothing is left. */
import { removeEach, type SweepCursors, type SweeperDeps, sweep } from "./sweeper.ts";

/**
 * Runs one round for each project. One whose round fails holds up no other. Returns whether it should go on at once: not where
 * what is left waits for requests under way.
 */
export async function purgeProjects(
  projects: readonly string[],
  deps: SweeperDeps,
  cursors: SweepCursors,
): Promise<boolean> {
  let hasMore = false;
  await removeEach(projects, deps, async (name) => {
    const { before, left } = await purgeRound(name, deps, cursors);
    if (left > 0 && left < before) hasMore = true;
  });
  return hasMore;
}

/** Runs a round for one project, and resolves to the number of things that are left. */
export const purgeOnce = async (name: string, deps: SweeperDeps): Promise<number> =>
  (await purgeRound(name, deps, {})).left;

async function purgeRound(name: string, deps: SweeperDeps, cursors: SweepCursors) {
  const before = await deps.store.purgeProject(name);
  if (before === 0) return { before, left: 0 };
  await deps.store.closeUnheldChunks();
  while ((await sweep(deps, cursors)) && !deps.isDraining());
  // To count what is left takes a while where there is much.
  if (deps.isDraining()) return { before, left: before };
  return { before, left: await deps.store.purgeProject(name) };
}
