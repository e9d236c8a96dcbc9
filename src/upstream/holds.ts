/**
 * Keeps the circuit breakers of a target for the kinds of requests in which it refuses the operator's own key, account
 * or address (`exchange/refusal.ts`). A *kind* is one project, endpoint and model. Its requests are *held* while its
 * circuit is not closed. Another configuration closes it, and so does an answer that is neither a refusal nor an
 * overload nor a 5xx.
 *
 * The circuit of the whole target must never open for refusals: one tenant whose requests make a server answer 401 or
 * 404 in odd words could then stop the target for all others.
 *
 * The answers to other requests are the evidence that tells a refused line from a target that refuses everyone. A
 * success of a request that started later than the hold ends the hold. A refused line is charged when the target has
 * served a request that started later than the line's own first refusal (`retry.ts`). The start counts and not the
 * end: an answer may take minutes, and proves only that the key was good when it began. Only requests of the same
 * kind are evidence about credit. A small or free request may be served when a larger one is not paid for.
 *
 * All instants here are of elapsed time.
 */
import type { Outcome, Refused } from "../batch/outcome.ts";
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import { CircuitBreaker, type Ended } from "./capacity/breaker.ts";
import { KindMap } from "./kind-map.ts";
import type { RequestKind } from "./request.ts";

/** The number of kinds that a report lists. */
const MAX_LISTED = 50;
const NEVER = Number.NEGATIVE_INFINITY;

/** The circuit breaker of a kind. */
class KindBreaker extends CircuitBreaker<Refused> {
  readonly kind: RequestKind;

  constructor({ project, endpoint, model }: RequestKind) {
    super();
    this.kind = { project, endpoint, model };
  }
}

export class Holds {
  readonly #breakers = new KindMap<KindBreaker>();
  /** The latest start of a request that was served. */
  #servedAtMs = NEVER;
  /** The latest start of a served request for each kind that was refused before. */
  readonly #servedByKind = new KindMap<number>();
  readonly #listeners = new Set<() => void>();

  /** Adds a listener for the moments at which held requests may go again, or a probe has ended. */
  onChange(listener: () => void): void {
    this.#listeners.add(listener);
  }

  offChange(listener: () => void): void {
    this.#listeners.delete(listener);
  }

  /** Returns the answer for which nothing of this kind goes out; null when requests go out. */
  heldFor(kind: RequestKind): Refused | null {
    const breaker = this.#breakers.get(kind);
    return breaker === null || breaker.circuit === "closed" ? null : breaker.lastFailure;
  }

  /** Returns such an answer for any endpoint. */
  heldAnywhere({ project, model }: Pick<RequestKind, "project" | "model">): Refused | null {
    for (const endpoint of BATCH_ENDPOINTS) {
      const refused = this.heldFor({ project, endpoint, model });
      if (refused !== null) return refused;
    }
    return null;
  }

  /** Finds or makes the circuit breaker of a kind. */
  breakerOf(kind: RequestKind): CircuitBreaker<Refused> {
    const breaker = this.#breakers.get(kind) ?? new KindBreaker(kind);
    this.#breakers.set(kind, breaker);
    return breaker;
  }

  /** Lists the circuit breakers, the latest ones of each project if there are many. */
  get breakers(): readonly KindBreaker[] {
    return this.#breakers.latest(MAX_LISTED).map(([, breaker]) => breaker);
  }

  /** The latest start of a served request that proves the target good for this kind. */
  servedAtMs(kind: RequestKind, isAboutCredit: boolean): number {
    return isAboutCredit ? (this.#servedByKind.get(kind) ?? NEVER) : this.#servedAtMs;
  }

  /** The latest start of a request that was served. */
  get latestServedAtMs(): number {
    return this.#servedAtMs;
  }

  /** The latest starts of served requests of kinds that were refused before. */
  get servedKinds(): [string, number][] {
    return this.#servedByKind.latest(MAX_LISTED);
  }

  get isAnyOpen(): boolean {
    return this.#breakers.values().some(({ circuit }) => circuit !== "closed");
  }

  /** Lists the kinds that are held, the latest ones of each project if there are many. */
  list(): { readonly kind: RequestKind; readonly refused: Refused }[] {
    return this.breakers.flatMap(({ kind, circuit, lastFailure }) =>
      circuit === "closed" || lastFailure === null ? [] : [{ kind, refused: lastFailure }],
    );
  }

  /** Returns when a request of this kind may start. Infinity means that a probe is under way. */
  readyAtMs(kind: RequestKind): number {
    return this.#breakers.get(kind)?.readyAtMs() ?? NEVER;
  }

  /** Returns the time until which requests of this kind that have a choice go elsewhere. */
  backoffUntilMs(kind: RequestKind): number {
    return this.#breakers.get(kind)?.backoffUntilMs ?? NEVER;
  }

  /** Lets an attempt start, if it may. */
  pass(kind: RequestKind, nowMs: number): boolean {
    if (this.readyAtMs(kind) > nowMs) return false;
    this.#breakers.get(kind)?.pass(nowMs);
    return true;
  }

  /** Whether the target has served a request that started later, so that this refusal is the request's own fault. */
  hasServedSince(startedAtMs: number, { kind, outcome }: { kind: RequestKind; outcome: Outcome }) {
    const isAboutCredit = outcome.kind === "refused" && outcome.reason === "quota";
    return this.servedAtMs(kind, isAboutCredit) > startedAtMs;
  }

  /** Learns from an attempt; returns true when requests of its kind are held because of it. */
  note(kind: RequestKind, outcome: Outcome, ended: Ended): boolean {
    if (outcome.kind === "refused") return this.#noteRefused(kind, outcome, ended);
    const isServed = outcome.kind === "answered" && outcome.status < 300;
    if (isServed && ended.startedAtMs > this.#servedAtMs) this.#servedAtMs = ended.startedAtMs;
    if (this.#breakers.size === 0) return false;
    const isAnswered = outcome.kind === "answered" && outcome.status < 500;
    this.#noteOther(kind, isAnswered ? "good" : "nothing", ended);
    if (isServed) this.#endContradicted(ended.startedAtMs);
    return false;
  }

  #noteRefused(kind: RequestKind, refused: Refused, ended: Ended): boolean {
    const breaker = this.breakerOf(kind);
    // A refusal while other requests are served says something about this request only.
    const evidence = this.#servedAtMs > ended.startedAtMs ? "nothing" : "refused";
    const hasChanged = breaker.note(evidence, ended, refused);
    if (hasChanged) this.notify();
    return hasChanged && breaker.circuit === "open";
  }

  #noteOther(kind: RequestKind, evidence: "good" | "nothing", ended: Ended): void {
    const breaker = this.#breakers.get(kind);
    if (breaker === null) return;
    breaker.note(evidence, ended, null);
    if (evidence === "good") {
      this.#breakers.delete(kind);
      this.#servedByKind.set(kind, ended.startedAtMs);
    }
    this.notify();
  }

  /** Ends the holds that a served request contradicts, because it started after they began. */
  #endContradicted(startedAtMs: number): void {
    let hasEnded = false;
    for (const { kind, openedAtMs, lastFailure } of this.#breakers.values()) {
      if (lastFailure?.reason === "quota" || openedAtMs >= startedAtMs) continue;
      this.#breakers.delete(kind);
      hasEnded = true;
    }
    if (hasEnded) this.notify();
  }

  /** Ends all holds: the operator may have corrected the cause. */
  release(): void {
    this.#breakers.clear();
    this.notify();
  }

  /** Forgets the requests of projects that are deleted: none of them would ever end a hold. */
  forget(projects: readonly string[]): void {
    this.#servedByKind.deleteProjects(projects);
    if (this.#breakers.deleteProjects(projects)) this.notify();
  }

  /** Wakes those that wait. */
  notify(): void {
    for (const listener of [...this.#listeners]) listener();
  }
}
