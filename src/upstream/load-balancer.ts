/**
 * Which target of a route: the first priority that has one with room; among those, the less loaded of two that are
 * drawn at random, each with a chance in proportion to its weight. Two draws are enough to keep the load even, and
 * spare the herd that runs to the one best target whenever there are several callers: M. Mitzenmacher, "The Power of Two Choices in
 * Randomized Load Balancing" (IEEE TPDS 12/10, 2001).
 */
import { type Limited, Slot } from "./limiter.ts";
import { type SlotWish, waitForSlot } from "./slot-wait.ts";

export interface Choosable extends Limited {
  /** Lower goes first. */
  readonly priority: number;
  readonly weight: number;
}

export interface Wish extends SlotWish {
  /** From 0 up to 1. */
  readonly random: () => number;
}

/**
 * A slot of the best target that has one free, at once and without a promise; otherwise the first that any of
 * them gives. Null once the signal has aborted, or when all of them have turned it away.
 */
export function acquireSlot<Target extends Choosable>(
  targets: readonly Target[],
  wish: Wish,
): Slot<Target> | null | Promise<Slot<Target> | null> {
  const { need, random } = wish;
  if (wish.signal.aborted) return null;
  const hasRoom = ({ limiter }: Target) => limiter.canTake(need);
  const target = chooseTarget(targets.every(hasRoom) ? targets : targets.filter(hasRoom), random);
  if (target === null) return waitForSlot(targets, wish);
  target.limiter.take(need);
  return new Slot(target, need);
}

function chooseTarget<Target extends Choosable>(
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

const loadOf = ({ limiter, weight }: Choosable) => limiter.totalInFlight / weight;

function draw<Target extends Choosable>(
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
