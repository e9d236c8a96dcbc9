/**
 * Groups the failed lines of a batch by status and code. The groups are counted with each commit of the journal, so
 * they are as exact as the counts. An upstream may answer with any code, so the number of groups is bounded: lines
 * beyond the largest groups are counted in one group without a status and a code.
 */

/** The status of an answer and the code of its error. The status is null for a line without an answer. */
export interface LineFailure {
  readonly status: number | null;
  readonly code: string | null;
}

export interface FailureGroup extends LineFailure {
  readonly count: number;
}

export const MAX_FAILURE_GROUPS = 20;

/** When so many lines at the start of a batch fail alike, its file is most likely wrong. */
export const FIRST_LINES = 50;

const keyOf = ({ status, code }: LineFailure) => `${status} ${code}`;
export const isSameFailure = (one: LineFailure, other: LineFailure): boolean =>
  keyOf(one) === keyOf(other);
export const OTHER: LineFailure = { status: null, code: null };

/** Adds the counts of `more` to those of `groups`. The largest group comes first, and the one of all others last. */
export function addFailures(
  groups: readonly FailureGroup[],
  more: readonly FailureGroup[],
): readonly FailureGroup[] {
  if (more.length === 0) return groups;
  const counts = new Map(groups.map((group) => [keyOf(group), group]));
  for (const group of more) {
    const before = counts.get(keyOf(group))?.count ?? 0;
    counts.set(keyOf(group), { ...group, count: before + group.count });
  }
  return bounded([...counts.values()]);
}

/**
 * Takes the counts of `less` out of `groups`. Lines whose group is no longer listed are taken out of the group of all
 * others.
 */
export function removeFailures(
  groups: readonly FailureGroup[],
  less: readonly FailureGroup[],
): readonly FailureGroup[] {
  const counts = new Map(groups.map((group) => [keyOf(group), group.count]));
  const other = keyOf(OTHER);
  for (const group of less) {
    const before = counts.get(keyOf(group)) ?? 0;
    const taken = Math.min(before, group.count);
    counts.set(keyOf(group), before - taken);
    if (taken < group.count) counts.set(other, (counts.get(other) ?? 0) - (group.count - taken));
  }
  const left = groups.flatMap((group) => {
    const count = counts.get(keyOf(group)) ?? 0;
    return count > 0 ? [{ ...group, count }] : [];
  });
  return bounded(left);
}

/** Failures that are in no group, such as those that an older version has counted, make one of their own. */
export function shownFailures({
  failures,
  counts,
}: {
  readonly failures: readonly FailureGroup[];
  readonly counts: { readonly failed: number };
}): readonly FailureGroup[] {
  const grouped = sumOf(failures);
  const more = [{ ...OTHER, count: counts.failed - grouped }];
  return grouped < counts.failed ? addFailures(failures, more) : failures;
}

/**
 * Returns the failure that all lines so far have in common; null when there are others, or too few to tell. A line without
 * an answer tells nothing of the file.
 */
export function onlyFailure(
  batch: Parameters<typeof shownFailures>[0] & { readonly counts: { readonly completed: number } },
): LineFailure | null {
  const [only, ...others] = shownFailures(batch);
  if (only === undefined || others.length > 0 || batch.counts.completed > 0) return null;
  return only.status !== null && only.count >= FIRST_LINES ? only : null;
}

function bounded(groups: readonly FailureGroup[]): readonly FailureGroup[] {
  const isOther = (group: FailureGroup) => keyOf(group) === keyOf(OTHER);
  const named = groups.filter((group) => !isOther(group)).toSorted((a, b) => b.count - a.count);
  const needsOther = named.length > MAX_FAILURE_GROUPS || groups.some(isOther);
  const kept = named.slice(0, needsOther ? MAX_FAILURE_GROUPS - 1 : MAX_FAILURE_GROUPS);
  const count = sumOf(groups) - sumOf(kept);
  return needsOther ? [...kept, { ...OTHER, count }] : kept;
}

const sumOf = (groups: readonly FailureGroup[]): number =>
  groups.reduce((sum, { count }) => sum + count, 0);
