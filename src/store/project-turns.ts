/**
 * Lets projects take turns at claims of batches. A project that may have no more is passed over in one look, however many of
 * its batches wait.
 */

/** Tells a claim whose turn it is. */
export interface ProjectTurn {
  /** The project of the former claim. The next one belongs to a project behind it, if one of those has any. */
  readonly former: string;
  /** The projects that may have no more. */
  readonly except: readonly string[];
}

/** The turn of any project. */
export const ANY_TURN: ProjectTurn = { former: "", except: [] };

interface Claiming<Found extends { readonly project: string }, Claimed> {
  /** Finds what comes first behind all of a project. */
  readonly find: (project: string) => Found | null | Promise<Found | null>;
  /** Claims what was found; returns null when another process was faster. */
  readonly claim: (found: Found) => Claimed | null | Promise<Claimed | null>;
}

/** Claims what comes first behind the former project, or else from the first project on. */
export async function claimInTurn<Found extends { readonly project: string }, Claimed>(
  { former, except }: ProjectTurn,
  { find, claim }: Claiming<Found, Claimed>,
): Promise<Claimed | null> {
  const asked = new Set<string>();
  for (const start of former === "" ? [""] : [former, ""]) {
    for (let found = await find(start); found !== null; found = await find(found.project)) {
      // The round is over. The database alone knows the order of the names.
      if (asked.has(found.project)) return null;
      asked.add(found.project);
      const claimed = except.includes(found.project) ? null : await claim(found);
      if (claimed !== null) return claimed;
    }
  }
  return null;
}
