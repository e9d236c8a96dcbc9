/** Deletes the data of projects that operators deleted, until nothing is left. */
import type { Store } from "../store/store.ts";
import { removeEach, type SweeperDeps, sweep } from "./sweeper.ts";

/** Runs one round for each project. One whose round fails holds up no other. Returns whether it should go on at once. */
export async function purgeProjects(
  projects: readonly string[],
  deps: SweeperDeps,
): Promise<boolean> {
  await removeEach(projects, deps.log, async (name) => void (await purgeOnce(name, deps)));
  return false;
}

/** Runs a round for one project, and resolves to the number of things that are left. */
export async function purgeOnce(
  name: string,
  deps: SweeperDeps & { readonly store: Pick<Store, "purgeProject" | "closeUnheldChunks"> },
): Promise<number> {
  const before = await deps.store.purgeProject(name);
  if (before === 0) return 0;
  await deps.store.closeUnheldChunks();
  while (await sweep(deps));
  return deps.store.purgeProject(name);
}
