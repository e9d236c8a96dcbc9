/**
 * Simulates upstreams that enforce rates, and clients that keep to them, in virtual time with seeded dice. It is no
 * server on purpose. A quota is judged over simulated hours with 500 requests in flight, for which HTTP would take
 * minutes. model-server.ts shares the counting of rates.
 */
import type { Quota } from "../../src/upstream/capacity/rate/quota.ts";
import type { RateLimitHints } from "../../src/upstream/exchange/rate-limits.ts";
import { MINUTE_MS, RateLimiter, type RateRule } from "./rate-limits.ts";
import { seededRandom } from "./seeded-random.ts";

export class RateLimitedUpstream {
  readonly #limiter: RateLimiter;

  constructor(rule: RateRule, { rpm, tpm }: { rpm: number; tpm: number }) {
    const limits = { requests: { perMinute: rpm, rule }, tokens: { perMinute: tpm, rule } };
    this.#limiter = new RateLimiter(limits, 0);
  }

  /** Takes or refuses a request that will use `tokens`. Returns the decision and the hints about the limits. */
  accept(tokens: number, nowMs: number): { isTaken: boolean; hints: RateLimitHints } {
    const isTaken = this.#limiter.charge(tokens, nowMs) === 0;
    return { isTaken, hints: this.#limiter.hints(nowMs) };
  }
}

export interface Load {
  readonly seed: number;
  /** The most requests in flight. */
  readonly concurrency: number;
  /** The shortest and the longest answer. */
  readonly latencyMs: readonly [number, number];
  /** The least and the most tokens of a request. */
  readonly tokens: readonly [number, number];
  /** The range of the factor between the tokens and their estimate. */
  readonly misjudged: readonly [number, number];
  /** It is true when the upstream sends hints about its limits. */
  readonly isTold: boolean;
  readonly minutes: number;
}

export interface Tally {
  sent: number;
  refused: number;
  taken: number;
  takenTokens: number;
}

/** A queue of events, earliest first. */
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

/** Draws a number, evenly over the orders of magnitude between the two. */
const between = (random: () => number, [least, most]: readonly [number, number]) =>
  least * (most / least) ** random();

/** The start of the run: in the middle of a minute, long after 1970. */
const START_MS = 29_000_000 * MINUTE_MS + 17_300;

/**
 * Runs clients at one upstream, each with a quota of its own and always with a next request. A client sleeps until the
 * instant of the quota, and checks again after each answer. Returns a tally for each client, without its first minute.
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
  const random = seededRandom(load.seed);
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
    const reservation = quota.take(estimatedTokens, nowMs);
    inFlight++;
    const arrivesAtMs = nowMs + 5 + random() * 45;
    agenda.add(arrivesAtMs, () => {
      const { isTaken, hints } = upstream.accept(tokens, arrivesAtMs);
      if (arrivesAtMs >= START_MS + MINUTE_MS) count(tally, isTaken, tokens);
      const answersAtMs = Math.ceil(arrivesAtMs + (isTaken ? between(random, load.latencyMs) : 20));
      const result = {
        reservation,
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
