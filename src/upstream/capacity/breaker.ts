/**
 * The circuit breaker of a target: whether it is worth asking at all.
 *
 * ```
 *            enough trouble in a row                 time is up, one probe goes
 *   closed ──────────────────────────► open ──────────────────────────────────► half open
 *     ▲                                  ▲                                          │
 *     │                                  └── trouble: open again, for twice as long ┤
 *     └────────────────────────── a good answer ───────────────────────────────────┘
 * ```
 *
 * While it is open nothing goes out, so that a target that is down costs no line an attempt and is not hammered
 * when it comes back. Trouble comes in two weights. Without a connection the target is *down*, beyond doubt: a
 * few in a row open the circuit, and as few that are *refused* open a hold (`holds.ts`). Gateway errors and resets are *doubtful*, since a line may bring them on
 * itself: it takes many in a row, more than a small batch of bad lines makes, and any good answer starts the count anew.
 * A target that is *full* refuses many at once while it serves the others, so refusals count as doubtful only when the
 * answers that were under way with the last good one should have come and have not.
 *
 * A pure policy: time and dice are arguments. After M. Nygard, "Release It!" (2007), ch. 5.
 */
export type Circuit = "closed" | "open" | "half_open";

/** What an attempt says about its target; `nothing` for one that we broke off ourselves. */
export type Evidence = "good" | "down" | "refused" | "doubtful" | "full" | "nothing";

const WEIGHTS: Readonly<Record<Evidence, number>> = {
  good: 0,
  down: 10,
  refused: 10,
  doubtful: 1,
  full: 1,
  nothing: 0,
};
const OPENS_AT_WEIGHT = 50;
const FIRST_OPEN_MS = 500;
const MAX_OPEN_MS = 30_000;
/** Several processes that lost the same target must not all probe it in the same moment. */
const JITTER = 0.2;

export class CircuitBreaker {
  #circuit: Circuit = "closed";
  #weight = 0;
  /** Times in a row that it opened, without a good answer between them. */
  #openCount = 0;
  #openedAtMs = Number.NEGATIVE_INFINITY;
  #retryAtMs = 0;
  #probedAtMs = 0;
  /** Until then answers may come that were under way together with the last good one. */
  #goodUntilMs = Number.NEGATIVE_INFINITY;

  get circuit(): Circuit {
    return this.#circuit;
  }

  /** When a probe may go; only of interest while it is open. */
  get retryAtMs(): number {
    return this.#retryAtMs;
  }

  /** When it opened last. */
  get openedAtMs(): number {
    return this.#openedAtMs;
  }

  /** When an attempt may start. Infinity while a probe is under way. */
  readyAtMs(): number {
    if (this.#circuit === "closed") return Number.NEGATIVE_INFINITY;
    return this.#circuit === "open" ? this.#retryAtMs : Number.POSITIVE_INFINITY;
  }

  /** An attempt starts; true when it is the probe. */
  pass(nowMs: number): boolean {
    if (this.#circuit !== "open") return false;
    this.#circuit = "half_open";
    this.#probedAtMs = nowMs;
    return true;
  }

  /** What an attempt found out that started at `startedAtMs`; true when the circuit is another one now. */
  note(
    evidence: Evidence,
    { startedAtMs, nowMs, random }: { startedAtMs: number; nowMs: number; random: number },
  ): boolean {
    const before = this.#circuit;
    const isProbe = before === "half_open" && startedAtMs >= this.#probedAtMs;
    if (evidence === "good") {
      this.#goodUntilMs = nowMs + (nowMs - startedAtMs);
      this.#close();
    } else if (isProbe && evidence === "nothing") this.#reopen(nowMs);
    else if (isProbe) this.#open(nowMs, random);
    else if (before === "closed" && startedAtMs >= this.#openedAtMs) {
      if (evidence === "full" && nowMs <= this.#goodUntilMs) return false;
      this.#weight += WEIGHTS[evidence];
      if (this.#weight >= OPENS_AT_WEIGHT) this.#open(nowMs, random);
    }
    return this.#circuit !== before;
  }

  #close(): void {
    this.#circuit = "closed";
    this.#weight = 0;
    this.#openCount = 0;
  }

  #open(nowMs: number, random: number): void {
    const openMs = Math.min(FIRST_OPEN_MS * 2 ** this.#openCount, MAX_OPEN_MS);
    this.#openCount++;
    this.#circuit = "open";
    this.#openedAtMs = nowMs;
    this.#retryAtMs = nowMs + openMs * (1 + JITTER * random);
  }

  /** The probe told nothing: the next one may go at once. */
  #reopen(nowMs: number): void {
    this.#circuit = "open";
    this.#retryAtMs = nowMs;
  }
}
