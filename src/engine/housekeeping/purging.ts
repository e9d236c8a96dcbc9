/** Deletes the data of projects that operators deleted, until nothing is left. */
import { removeEach, type SweepCursors, type SweeperDeps, sweep } from "./sweeper.ts";

/** The idle projects that one pass looks at again. A look takes some 20 statements, and twice as many where something is left. */
const IDLE_PAGE = 10;

/** What a pass leaves for the next one. */
export interface PurgeState {
  readonly cursors: SweepCursors;
  /**
   * Deleted projects whose last round removed nothing. They are looked at in turn: to one without data, requests that were under
   * way may add some for an hour, and what cannot be removed may be removed later.
   */
  readonly idle: Set<string>;
}

/**
 * Runs one round for each project. One whose round fails holds up no other. Returns whether it should go on at once: not where
 * what is left waits for requests under way.
 */
export async function purgeProjects(
  projects: readonly string[],
  deps: SweeperDeps,
  { cursors, idle }: PurgeState,
): Promise<boolean> {
  const present = new Set(projects);
  let turns = IDLE_PAGE;
  for (const name of idle) {
    if (!present.has(name) || turns-- > 0) idle.delete(name);
  }
  const due = projects.filter((name) => !idle.has(name));
  let hasMore = false;
  await removeEach(due, deps, async (name) => {
    const { before, left } = await purgeRound(name, deps, cursors);
    if (left > 0 && left < before) hasMore = true;
    else idle.add(name);
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
