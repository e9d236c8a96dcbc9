/**
 * Requests that wait because a target refuses the operator's own key, account or address (`exchange/refusal.ts`).
 *
 * A hold is a circuit breaker of its own for one project, endpoint and model at the target. After a few refusals in a row
 * nothing of that kind goes out but a probe now and then; an answer of any other sort, or another configuration, ends
 * it. It must never be the target's as a whole: then one tenant whose requests make a server answer 401 or 404 in
 * odd words could shut the target for all others.
 *
 * What others are served is the evidence that tells a refused line from a sick target. A success of a request that started
 * later than the hold ends the hold, and a line that is refused although the target has served a request that started
 * later than its own first refusal is charged for it (`retry.ts`). The start counts and not the end: an answer may take minutes, and
 * proves no more than that the key was good when it began. Credit is no such matter, since a small or free request may be
 * served when a larger one is not paid for: there only requests of the same kind are evidence.
 *
 * All instants here are of elapsed time.
 */
import type { Outcome, Refused } from "../batch/outcome.ts";
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import { CircuitBreaker } from "./capacity/breaker.ts";
import type { RequestKind } from "./upstream.ts";

interface Hold {
  readonly breaker: CircuitBreaker;
  refused: Refused;
}

/** Of an attempt that has ended. */
export interface Ended {
  readonly startedAtMs: number;
  readonly nowMs: number;
  /** From 0 up to 1. */
  readonly random: number;
}

/** The oldest go when somebody asks for ever new models. */
const MAX_HOLDS = 1_000;
const NEVER = Number.NEGATIVE_INFINITY;

export class Holds {
  readonly #holds = new Map<string, Hold>();
  /** When the latest request started that was served. */
  #servedAtMs = NEVER;
  /** The same, for the kinds that a hold was about. */
  readonly #servedByKind = new Map<string, number>();
  readonly #listeners = new Set<() => void>();

  /** Called when held requests may go again, or a probe has told something. */
  onChange(listener: () => void): void {
    this.#listeners.add(listener);
  }

  offChange(listener: () => void): void {
    this.#listeners.delete(listener);
  }

  /** The answer for which nothing of this kind goes out; null when it does. */
  heldFor(kind: RequestKind): Refused | null {
    if (this.#holds.size === 0) return null;
    const hold = this.#holds.get(keyOf(kind));
    return hold === undefined || hold.breaker.circuit === "closed" ? null : hold.refused;
  }

  /** The same for whatever endpoint. */
  heldAnywhere({ project, model }: Pick<RequestKind, "project" | "model">): Refused | null {
    if (this.#holds.size === 0) return null;
    for (const endpoint of BATCH_ENDPOINTS) {
      const refused = this.heldFor({ project, endpoint, model });
      if (refused !== null) return refused;
    }
    return null;
  }

  /** Any of them, for who asks how the target is doing. */
  get openOne(): Refused | null {
    for (const { breaker, refused } of this.#holds.values()) {
      if (breaker.circuit !== "closed") return refused;
    }
    return null;
  }

  /** When a request of this kind may start. Infinity while a probe is under way. */
  readyAtMs(kind: RequestKind): number {
    if (this.#holds.size === 0) return NEVER;
    return this.#holds.get(keyOf(kind))?.breaker.readyAtMs() ?? NEVER;
  }

  /** An attempt starts, if it may. */
  pass(kind: RequestKind, nowMs: number): boolean {
    if (this.readyAtMs(kind) > nowMs) return false;
    if (this.#holds.size > 0) this.#holds.get(keyOf(kind))?.breaker.pass(nowMs);
    return true;
  }

  /** Whether the target has served a request that started after that, so that this refusal is the request's own fault. */
  hasServedSince(startedAtMs: number, { kind, outcome }: { kind: RequestKind; outcome: Outcome }) {
    const isAboutCredit = outcome.kind === "refused" && outcome.reason === "quota";
    const servedAtMs = isAboutCredit ? this.#servedByKind.get(keyOf(kind)) : this.#servedAtMs;
    return servedAtMs !== undefined && servedAtMs > startedAtMs;
  }

  /** Learns from an attempt; true when requests of its kind are held because of it. */
  note(kind: RequestKind, outcome: Outcome, ended: Ended): boolean {
    if (outcome.kind === "refused") return this.#noteRefused(kind, outcome, ended);
    const isServed = outcome.kind === "answered" && outcome.status < 300;
    if (isServed && ended.startedAtMs > this.#servedAtMs) this.#servedAtMs = ended.startedAtMs;
    if (this.#holds.size === 0) return false;
    const isAnswered = outcome.kind === "answered" && outcome.status < 500;
    this.#noteOther(keyOf(kind), isAnswered ? "good" : "nothing", ended);
    if (isServed) this.#endContradicted(ended.startedAtMs);
    return false;
  }

  #noteRefused(kind: RequestKind, refused: Refused, ended: Ended): boolean {
    const key = keyOf(kind);
    const hold = this.#holds.get(key) ?? { breaker: new CircuitBreaker(), refused };
    hold.refused = refused;
    this.#holds.set(key, hold);
    const [oldest] = this.#holds.keys();
    if (this.#holds.size > MAX_HOLDS && oldest !== undefined) this.#holds.delete(oldest);
    // Refused while others are served: that says something about the request only.
    const evidence = this.#servedAtMs > ended.startedAtMs ? "nothing" : "refused";
    const hasChanged = hold.breaker.note(evidence, ended);
    if (hasChanged) this.#notify();
    return hasChanged && hold.breaker.circuit === "open";
  }

  #noteOther(key: string, evidence: "good" | "nothing", ended: Ended): void {
    const hold = this.#holds.get(key);
    if (hold === undefined) return;
    hold.breaker.note(evidence, ended);
    if (evidence === "good") {
      this.#holds.delete(key);
      this.#servedByKind.delete(key);
      this.#servedByKind.set(key, ended.startedAtMs);
      const [oldest] = this.#servedByKind.keys();
      if (this.#servedByKind.size > MAX_HOLDS) this.#servedByKind.delete(oldest as string);
    }
    this.#notify();
  }

  /** Of other kinds, that began before a request started that was served. */
  #endContradicted(startedAtMs: number): void {
    let hasEnded = false;
    for (const [key, { breaker, refused }] of this.#holds) {
      if (refused.reason === "quota" || breaker.openedAtMs >= startedAtMs) continue;
      this.#holds.delete(key);
      hasEnded = true;
    }
    if (hasEnded) this.#notify();
  }

  /** Ends them all: the operator may have mended what was wrong. */
  release(): void {
    this.#holds.clear();
    this.#notify();
  }

  #notify(): void {
    for (const listener of [...this.#listeners]) listener();
  }
}

export const keyOf = ({ project, endpoint, model }: RequestKind) =>
  `${project}\n${endpoint}\n${model}`;
