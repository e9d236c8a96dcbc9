/** Upstreams that enforce rates, and clients that keep to them, in virtual time: nothing waits and dice are seeded. */
import type { Quota } from "../../src/upstream/capacity/rate/quota.ts";
import type { RateLimitHint, RateLimitHints } from "../../src/upstream/exchange/rate-limits.ts";

export const MINUTE_MS = 60_000;

/** How an upstream counts one of its limits. */
interface Meter {
  hint(nowMs: number): RateLimitHint & { remaining: number };
  spend(amount: number, nowMs: number): void;
}

const hintOf = (limit: number, left: number, resetMs: number) => ({
  limit,
  remaining: Math.max(0, Math.floor(left)),
  resetMs,
});

/** A bucket of a minute's worth that fills all the time. */
function bucketMeter(limit: number): Meter {
  let level = limit;
  let sinceMs = 0;
  const fill = (nowMs: number) => {
    level = Math.min(limit, level + ((nowMs - sinceMs) * limit) / MINUTE_MS);
    sinceMs = nowMs;
  };
  return {
    hint(nowMs) {
      fill(nowMs);
      return hintOf(limit, level, ((limit - level) / limit) * MINUTE_MS);
    },
    spend(amount) {
      level -= amount;
    },
  };
}

/** Counts from zero at each full minute. */
function fixedMeter(limit: number): Meter {
  let spent = 0;
  let minute = 0;
  return {
    hint(nowMs) {
      if (Math.floor(nowMs / MINUTE_MS) !== minute) spent = 0;
      minute = Math.floor(nowMs / MINUTE_MS);
      return hintOf(limit, limit - spent, (minute + 1) * MINUTE_MS - nowMs);
    },
    spend(amount) {
      spent += amount;
    },
  };
}

/** The sum of the last sixty seconds, exactly. */
function slidingMeter(limit: number): Meter {
  const spent: { amount: number; atMs: number }[] = [];
  let sum = 0;
  return {
    hint(nowMs) {
      while (spent[0] !== undefined && spent[0].atMs <= nowMs - MINUTE_MS) {
        sum -= spent.shift()!.amount;
      }
      const newest = spent.at(-1)?.atMs ?? nowMs - MINUTE_MS;
      return hintOf(limit, limit - sum, newest + MINUTE_MS - nowMs);
    },
    spend(amount, nowMs) {
      spent.push({ amount, atMs: nowMs });
      sum += amount;
    },
  };
}

const METERS = { bucket: bucketMeter, fixed: fixedMeter, sliding: slidingMeter } as const;
export type MeterKind = keyof typeof METERS;

export class RateLimitedUpstream {
  readonly #requests: Meter;
  readonly #tokens: Meter;

  constructor(kind: MeterKind, { rpm, tpm }: { rpm: number; tpm: number }) {
    this.#requests = METERS[kind](rpm);
    this.#tokens = METERS[kind](tpm);
  }

  /** Whether it takes a request that will use so many tokens, and what it says of its limits. */
  accept(tokens: number, nowMs: number): { isTaken: boolean; hints: RateLimitHints } {
    const isTaken =
      this.#requests.hint(nowMs).remaining >= 1 && this.#tokens.hint(nowMs).remaining >= tokens;
    if (isTaken) {
      this.#requests.spend(1, nowMs);
      this.#tokens.spend(tokens, nowMs);
    }
    return {
      isTaken,
      hints: { requests: this.#requests.hint(nowMs), tokens: this.#tokens.hint(nowMs) },
    };
  }
}

export interface Load {
  readonly seed: number;
  /** Requests in flight at the most. */
  readonly concurrency: number;
  /** Shortest and longest answer. */
  readonly latencyMs: readonly [number, number];
  /** Least and most tokens of a request. */
  readonly tokens: readonly [number, number];
  /** Estimates are the tokens times something between these. */
  readonly misjudged: readonly [number, number];
  /** Whether the upstream says anything about its limits. */
  readonly isTold: boolean;
  readonly minutes: number;
}

export interface Tally {
  sent: number;
  refused: number;
  taken: number;
  takenTokens: number;
}

/** Times after which something happens, earliest first. */
class Agenda {
  readonly #heap: { atMs: number; order: number; run: () => void }[] = [];
  #order = 0;

  add(atMs: number, run: () => void): void {
    const heap = this.#heap;
    const entry = { atMs, order: this.#order++, run };
    let at = heap.length;
    heap.push(entry);
    while (at > 0 && isBefore(entry, heap[(at - 1) >> 1]!)) {
      heap[at] = heap[(at - 1) >> 1]!;
      at = (at - 1) >> 1;
    }
    heap[at] = entry;
  }

  next(): { atMs: number; run: () => void } | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (first === undefined || last === undefined || heap.length === 0) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (child >= heap.length || isBefore(last, heap[child]!)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return first;
  }
}

type Ordered = { readonly atMs: number; readonly order: number };
const isBefore = (a: Ordered, b: Ordered) =>
  a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);

/** Mulberry32. */
function dice(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** Evenly over the orders of magnitude between the two. */
const between = (random: () => number, [least, most]: readonly [number, number]) =>
  least * (most / least) ** random();

/** When the run begins: in the middle of a minute, long after 1970. */
const START_MS = 29_000_000 * MINUTE_MS + 17_300;

/**
 * Clients that always have a next request, each with a quota of its own, at one upstream. They sleep until the
 * quota's instant and look again when an answer comes. A tally for each client, without its first minute.
 */
export function run(upstream: RateLimitedUpstream, quotas: readonly Quota[], load: Load): Tally[] {
  const agenda = new Agenda();
  const endMs = START_MS + load.minutes * MINUTE_MS;
  const tallies = quotas.map((quota, i) =>
    startClient(quota, { ...load, seed: load.seed + i }, { upstream, agenda }),
  );
  for (;;) {
    const next = agenda.next();
    if (next === undefined || next.atMs >= endMs) return tallies;
    next.run();
  }
}

interface World {
  readonly upstream: RateLimitedUpstream;
  readonly agenda: Agenda;
}

function startClient(quota: Quota, load: Load, { upstream, agenda }: World): Tally {
  const random = dice(load.seed);
  const tally: Tally = { sent: 0, refused: 0, taken: 0, takenTokens: 0 };
  const draw = () => {
    const tokens = Math.ceil(between(random, load.tokens));
    return { tokens, estimatedTokens: Math.ceil(tokens * between(random, load.misjudged)) };
  };
  let next = draw();
  let inFlight = 0;
  let wakesAtMs = Number.POSITIVE_INFINITY;
  const proceed = (nowMs: number): void => {
    while (inFlight < load.concurrency) {
      const readyAtMs = quota.readyAtMs(next.estimatedTokens, nowMs);
      if (readyAtMs > nowMs) {
        if (readyAtMs < wakesAtMs || wakesAtMs <= nowMs) {
          wakesAtMs = readyAtMs;
          agenda.add(readyAtMs, () => proceed(readyAtMs));
        }
        return;
      }
      send(next, nowMs);
      next = draw();
    }
  };
  const send = ({ tokens, estimatedTokens }: ReturnType<typeof draw>, nowMs: number): void => {
    quota.take(estimatedTokens, nowMs);
    inFlight++;
    const arrivesAtMs = nowMs + 5 + random() * 45;
    agenda.add(arrivesAtMs, () => {
      const { isTaken, hints } = upstream.accept(tokens, arrivesAtMs);
      if (arrivesAtMs >= START_MS + MINUTE_MS) count(tally, isTaken, tokens);
      const answersAtMs = Math.ceil(arrivesAtMs + (isTaken ? between(random, load.latencyMs) : 20));
      const result = {
        estimatedTokens,
        usedTokens: isTaken ? tokens : null,
        hints: load.isTold ? hints : null,
        isRefused: !isTaken,
      };
      agenda.add(answersAtMs, () => {
        inFlight--;
        quota.settle(result, answersAtMs);
        proceed(answersAtMs);
      });
    });
  };
  agenda.add(START_MS, () => proceed(START_MS));
  return tally;
}

function count(tally: Tally, isTaken: boolean, tokens: number): void {
  tally.sent++;
  if (isTaken) {
    tally.taken++;
    tally.takenTokens += tokens;
  } else tally.refused++;
}
