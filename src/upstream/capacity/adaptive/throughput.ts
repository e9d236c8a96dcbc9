/**
 * Whether more requests in flight finish more work, told from levels that were measured.
 *
 * What a unit of work takes at a lower limit is what it takes with nobody waiting. On a server that batches
 * continuously it rises in a straight line with what is in flight; two lower levels give that line. What is above
 * the line is waiting, which gains nothing. A line that is too steep gains too little.
 */
import type { Level } from "./round.ts";

/** How many standard errors count as chance. */
export const DOUBT = 0.5;
/** Of the delay of the event loop, on very fast targets. */
const SLACK_MS = 10;
/** `g` times as many requests are worth it if they finish at least `g` to the power of this as much work. */
const MIN_ELASTICITY = 1 / 4;
/** So far above the line may be on it. */
const TOLERANCE = 1.05;
/** So many times as long is no drift. */
const ALARM = 1.3;
/** However much work it finishes: no answer shall take so many times as long as the fastest. */
const MAX_SLOWDOWN = 2.25;

/** What is above what a unit may take by more than chance and the delay of the event loop. */
const isAbove = (level: Level, mostMs: number, errorMs = 0) =>
  level.unitMs >
  mostMs + SLACK_MS * level.answersPerWork + DOUBT * Math.hypot(level.errorMs, errorMs);

export const isTooSlow = (level: Level, fastestMs: number) =>
  isAbove(level, MAX_SLOWDOWN * fastestMs);

/** The fastest that would make this level just fast enough, with a tenth to spare. */
export const fastestFor = ({ unitMs }: Level) => (1.1 * unitMs) / MAX_SLOWDOWN;

/** Whether it takes far longer than it just did, beyond doubt. */
export const isSurprise = (level: Level, before: Level) =>
  level.unitMs - 2 * level.errorMs > ALARM * before.unitMs + SLACK_MS * level.answersPerWork;

/** What a unit takes with `n` in flight: `fixedMs + n × perRequestMs`. */
function lineThrough(lower: Level, upper: Level): { fixedMs: number; perRequestMs: number } {
  const riseMs = upper.unitMs - lower.unitMs;
  const isFlat =
    upper.limit === lower.limit || riseMs < DOUBT * Math.hypot(lower.errorMs, upper.errorMs);
  if (isFlat) return { fixedMs: upper.unitMs, perRequestMs: 0 };
  const slopeMs = riseMs / (upper.limit - lower.limit);
  const perRequestMs = Math.min(Math.max(0, slopeMs), upper.unitMs / upper.limit);
  return { fixedMs: upper.unitMs - perRequestMs * upper.limit, perRequestMs };
}

/** Whether requests wait at this level, or slow each other down so much that it gains too little. */
export function gainsTooLittle(level: Level, below: readonly Level[]): boolean {
  const [lower, upper = lower] = below;
  if (lower === undefined || upper === undefined) return false;
  const worthMs = below.map(
    ({ limit, unitMs }) => unitMs * (level.limit / limit) ** (1 - MIN_ELASTICITY),
  );
  if (isAbove(level, Math.min(...worthMs), upper.errorMs)) return true;
  if (below.length < 2) return false;
  const { fixedMs, perRequestMs } = lineThrough(lower, upper);
  return isAbove(level, TOLERANCE * (fixedMs + perRequestMs * level.limit), upper.errorMs);
}

/** How many requests are enough for the throughput of this level: throughput × what a unit takes when none waits. */
export function enoughFor(level: Level, below: readonly Level[]): number {
  const [lower, upper = lower] = below;
  if (lower === undefined || upper === undefined) return level.limit;
  const { fixedMs, perRequestMs } = lineThrough(lower, upper);
  const workPerMs = level.limit / level.unitMs;
  const slackMs = SLACK_MS * level.answersPerWork;
  const share = 1 - workPerMs * perRequestMs;
  const enough = share > 0 ? (workPerMs * (fixedMs + slackMs)) / share : level.limit;
  const most = perRequestMs > 0 ? ((1 / MIN_ELASTICITY - 1) * fixedMs) / perRequestMs : enough;
  return Math.min(level.limit, Math.max(lower.limit, Math.min(enough, most)));
}
