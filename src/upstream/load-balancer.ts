/**
 * Which target of a route: the first priority that has one with room; among those, the less loaded of two that are
 * drawn at random, each with a chance in proportion to its weight. Two draws are enough to keep the load even, and
 * spare the herd that runs to the one best target whenever there are several callers: M. Mitzenmacher, "The Power of Two Choices in
 * Randomized Load Balancing" (IEEE TPDS 12/10, 2001).
 */
import type { Limiter } from "./capacity/limiter.ts";

export interface Eligible {
  readonly limiter: Limiter;
  /** Lower goes first. */
  readonly priority: number;
  readonly weight: number;
}

/** Null when there is none. */
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
