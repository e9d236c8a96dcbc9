/**
 * Chooses a target of a route. The first priority that has a target with room is used. Within it the less loaded of two
 * targets is taken, which are drawn at random with a chance in proportion to their weights.
 *
 * Two draws are enough to keep the load even. A choice of the one best target would send all callers there at the same
 * moment: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (IEEE TPDS 12/10, 2001).
 */
import type { Limiter } from "./capacity/limiter.ts";

export interface Eligible {
  readonly limiter: Limiter;
  /** The lowest number goes first. */
  readonly priority: number;
  readonly weight: number;
}

/** Returns null when no target has room. */
export function chooseTarget<Target extends Eligible>(
  withRoom: readonly Target[],
  random: () => number,
): Target | null {
  if (withRoom.length <= 1) return withRoom[0] ?? null;
  const priority = Math.min(...withRoom.map((target) => target.priority));
  const candidates = withRoom.filter((target) => target.priority === priority);
  const first = draw(candidates, random);
  const second = draw(
    candidates.filter((target) => target !== first),
    random,
  );
  if (first === null || second === null) return first;
  return loadOf(second) < loadOf(first) ? second : first;
}

const loadOf = ({ limiter, weight }: Eligible) => limiter.totalInFlight / weight;

function draw<Target extends Eligible>(
  candidates: readonly Target[],
  random: () => number,
): Target | null {
  const total = candidates.reduce((sum, { weight }) => sum + weight, 0);
  let left = random() * total;
  for (const candidate of candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate;
  }
  return candidates.at(-1) ?? null;
}
