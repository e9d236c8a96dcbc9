/**
 * The places of one route, handed to lines in fair order.
 *
 * Several chunks hand out lines at once, each of another batch. While there is room and nobody waits, a line is
 * taken on without further ado, and a flow that has the route for itself waits at the route. As soon as there are two, flows
 * wait here, and a single wait stands at the route on behalf of all: which flow gets the place is decided when the
 * place is there, not when it was asked for. Between two places the flow that was served has time to ask for its
 * next line; so places that become free together are shared as fairly as those that come one by one.
 */
import type { Route } from "../../upstream/upstream.ts";
import type { FairQueue, Flow } from "./fair-queue.ts";

/** Given as a reason, because without one each abort would make an error with a stack. */
const NOBODY_WAITS = "nobody waits";

interface Waiting {
  /** Of the chunk that waits: another one of the flow may still be waiting for its answers. */
  readonly stop: AbortSignal;
  readonly tell: (isAdmitted: boolean) => void;
}

export class Turns {
  readonly #route: Route;
  readonly #share: FairQueue;
  /** Flows with a line to send. */
  readonly #waiting = new Map<Flow, Waiting>();
  #isHandingOn = false;
  /** Waits, or has just waited, at the route itself: as long as no other flow does, there is nothing to decide. */
  #alone: Flow | null = null;
  /** Ends the wait at the route. */
  #nobodyWaits = new AbortController();
  #hadToWait = false;

  constructor(route: Route, share: FairQueue) {
    this.#route = route;
    this.#share = share;
  }

  /** How the flow asks for its lines, one after the other: as {@link Route.admit}. */
  admissionsOf(flow: Flow, stop: AbortSignal): () => boolean | Promise<boolean> {
    stop.addEventListener("abort", () => this.#withdraw(flow, stop), { once: true });
    return () => !stop.aborted && this.#admit(flow, stop);
  }

  /** Whether a line had to wait since this was asked last: the route was as busy as it can be. */
  takeHadToWait(): boolean {
    const hadToWait = this.#hadToWait || this.#isHandingOn;
    this.#hadToWait = this.#alone !== null;
    return hadToWait;
  }

  #admit(flow: Flow, stop: AbortSignal): boolean | Promise<boolean> {
    if (this.#isHandingOn) return this.#wait(flow, stop);
    const isAlone = this.#alone === null || this.#alone === flow;
    const admitted = this.#route.admit(isAlone ? stop : this.#nobodyWaits.signal);
    if (isAlone) this.#alone = typeof admitted === "boolean" ? null : flow;
    if (isAlone || admitted === true) this.#share.charge(flow);
    if (isAlone || typeof admitted === "boolean") return admitted;
    const waited = this.#wait(flow, stop);
    void this.#handOn(admitted);
    return waited;
  }

  #wait(flow: Flow, stop: AbortSignal): Promise<boolean> {
    const { promise, resolve: tell } = Promise.withResolvers<boolean>();
    this.#waiting.set(flow, { stop, tell });
    this.#hadToWait = true;
    return promise;
  }

  /** Until nobody waits. */
  async #handOn(firstPlace: Promise<boolean>): Promise<void> {
    this.#isHandingOn = true;
    let place: boolean | Promise<boolean> = firstPlace;
    do {
      const isFree = place === true || (await place);
      if (isFree) await this.#giveAway();
      if (this.#waiting.size > 0) place = this.#route.admit(this.#nobodyWaits.signal);
    } while (this.#waiting.size > 0);
    this.#isHandingOn = false;
    this.#alone = null;
  }

  async #giveAway(): Promise<void> {
    const flow = this.#share.takeLine([...this.#waiting.keys()]);
    if (flow === null) {
      this.#route.dismiss();
      return;
    }
    const waiting = this.#waiting.get(flow);
    this.#waiting.delete(flow);
    waiting?.tell(true);
    // Its runner goes on first, and asks again.
    await null;
  }

  /** Its chunk has handed out all its lines. */
  leave(flow: Flow): void {
    if (this.#alone === flow) this.#alone = null;
  }

  #withdraw(flow: Flow, stop: AbortSignal): void {
    this.leave(flow);
    const waiting = this.#waiting.get(flow);
    if (waiting?.stop !== stop) return;
    this.#waiting.delete(flow);
    waiting.tell(false);
    if (this.#waiting.size > 0) return;
    this.#nobodyWaits.abort(NOBODY_WAITS);
    this.#nobodyWaits = new AbortController();
  }
}
