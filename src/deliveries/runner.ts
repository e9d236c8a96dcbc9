/**
 * Delivers results. Any process with the role of a worker claims deliveries that are due, a few at a time, and fewer to one
 * place, so that a slow place holds up no other. A failed attempt is repeated with growing waits for a day.
 *
 * A crash at any moment leaves the delivery with a lease that runs out. The next attempt goes on where this one was, or finds
 * what is there, so nothing is doubled. A delivery never changes its batch.
 */
import { randomUUID } from "node:crypto";
import { backoffMs } from "../batch/backoff.ts";
import { CANCELLED, type DeliveryError, destinationOf } from "../batch/delivery.ts";
import { sleep } from "../clock.ts";
import { loop, Nudge } from "../loop.ts";
import type {
  ClaimedDelivery,
  DeliveryClaim,
  DeliveryEnd,
  DeliveryRenewal,
  DeliveryStore,
} from "../store/deliveries.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { type AttemptDeps, type AttemptEnd, attempt, failed } from "./attempt.ts";
import { type DiscardDeps, discardLeft } from "./discard.ts";
import {
  Cancelled,
  Draining,
  fieldsOf,
  HeldDelivery,
  LeaseLost,
  nameOf,
  placeLabel,
  Stalled,
} from "./held-delivery.ts";

const MAX_IN_FLIGHT = 16;
const MAX_IN_FLIGHT_PER_PLACE = 2;
/** A place has so many with those of projects that have no other under way: the large results of one project may take hours. */
const MAX_IN_FLIGHT_WITH_FURTHER_PROJECTS = 4;
/** A place gets a second delivery only below this. Otherwise a few that never answer would take every one. */
const SECOND_DELIVERIES_BELOW = 8;
/** A client can name any number of buckets that never answer. They must leave room for the locations of the operator. */
const MAX_IN_FLIGHT_TO_CLIENTS = 8;
/** A project can, too. It must leave room for the others: it has one, or up to so many while as many places are free. */
const MAX_IN_FLIGHT_TO_CLIENTS_PER_PROJECT = 4;
/** A place that neither fails nor ends an attempt for so long is down. */
const MAX_ATTEMPT_MS = 6 * 60 * 60 * 1000;
/** The time for an adapter to notice that it shall stop. */
const ABORT_GRACE_MS = 5_000;
const MAX_BACKOFF_MS = 10 * 60 * 1000;
/** A delivery is tried for so long, counted from the time at which it was due. */
const RETRY_WITHIN_MS = 24 * 60 * 60 * 1000;

export interface DeliveryRunnerOptions extends AttemptDeps, DiscardDeps {
  readonly store: DeliveryStore;
  readonly metrics: Metrics;
  readonly leaseTtlMs: number;
  /** Returns the names of locations that this process lacks and another one that runs batches has. */
  readonly locationsElsewhere: () => readonly string[];
  /** Whether this process takes no buckets of clients and another one that runs batches does. */
  readonly areClientBucketsElsewhere: () => boolean;
  /** The interval at which due deliveries are looked for without a nudge. */
  readonly checkEveryMs: number;
}

export class DeliveryRunner {
  readonly #options: DeliveryRunnerOptions;
  readonly #owner = `deliveries/${randomUUID()}`;
  readonly #nudge = new Nudge();
  readonly #drain = new AbortController();
  /** The projects that have had their turn since all had one. */
  readonly #hadTurn = new Set<string>();
  readonly #inFlight = new Map<HeldDelivery, Promise<void>>();
  /** What was left behind, and has not ended yet. It keeps its memory and its connection until then. */
  readonly #leftBehind = new Set<HeldDelivery>();
  #loop: Promise<void> | null = null;
  #drained: Promise<void> | null = null;

  constructor(options: DeliveryRunnerOptions) {
    this.#options = options;
  }

  start(): void {
    const { clock, log, checkEveryMs } = this.#options;
    this.#loop = loop({
      name: "deliveries",
      everyMs: checkEveryMs,
      nudge: this.#nudge,
      clock,
      log,
      drain: this.#drain.signal,
      runOnce: () => this.#startNext(),
    });
  }

  /** Looks for due deliveries at once. */
  nudge(): void {
    this.#nudge.now();
  }

  /** Looks at once whether what is under way is to be ended. */
  nudgeHeld(): void {
    for (const held of this.#inFlight.keys()) void held.renew();
  }

  /** Begins nothing more. What is under way may end within `graceMs`; another attempt goes on with the rest. */
  drain(graceMs: number): Promise<void> {
    this.#drained ??= this.#startDrain(graceMs);
    return this.#drained;
  }

  async #startDrain(graceMs: number): Promise<void> {
    this.#drain.abort();
    await this.#loop;
    const cancel = this.#options.clock.after(graceMs, () => {
      for (const held of this.#inFlight.keys()) held.abort(new Draining());
    });
    await Promise.all(this.#inFlight.values());
    cancel();
  }

  /** Returns false when no delivery is due, or too many are in flight. */
  async #startNext(): Promise<boolean> {
    if (this.#inFlight.size >= MAX_IN_FLIGHT) return false;
    const { store, clock, leaseTtlMs: ttlMs } = this.#options;
    const claimed = await this.#claimNext();
    if (claimed === null) return false;
    const held = new HeldDelivery(claimed, { store, clock, ttlMs });
    this.#inFlight.set(held, this.#run(held));
    return true;
  }

  /**
   * Projects that have none under way come first, so that many deliveries of one hold up no other at the same place. Among them it
   * is by turns: one whose deliveries fail at once has none under way at any look.
   */
  async #claimNext(): Promise<ClaimedDelivery | null> {
    const { store, leaseTtlMs: ttlMs } = this.#options;
    const underWay = new Set(this.#claimed().map(({ batch }) => batch.project));
    const claim = { owner: this.#owner, ttlMs, ...this.#clientBuckets() };
    const elsewhere = this.#destinationsElsewhere();
    // Each passes over fewer projects than the one before; the last one, over none.
    const rounds = [new Set([...underWay, ...this.#hadTurn]), underWay, new Set<string>()];
    for (const [i, passedOver] of rounds.entries()) {
      if (passedOver.size === rounds[i + 1]?.size) continue;
      const isLast = i === rounds.length - 1;
      const most = isLast ? MAX_IN_FLIGHT_PER_PLACE : MAX_IN_FLIGHT_WITH_FURTHER_PROJECTS;
      const claimed = await store.claimDelivery({
        ...claim,
        busyDestinations: [...this.#busyDestinations(most), ...elsewhere],
        passedOver: [...passedOver],
      });
      if (claimed !== null) {
        this.#hadTurn.add(claimed.batch.project);
        return claimed;
      }
      this.#hadTurn.clear();
    }
    return null;
  }

  #clientBuckets(): Pick<DeliveryClaim, "toClientBuckets" | "busyProjects"> {
    // A client may cancel any number of deliveries to a bucket that keeps them, so those that were left behind count as well.
    const held = new Set([...this.#inFlight.keys(), ...this.#leftBehind]);
    const toClients = [...held]
      .map(({ claimed }) => claimed)
      .filter(({ delivery }) => delivery.s3 !== null);
    const projects = toClients.map(({ batch }) => batch.project);
    const free = MAX_IN_FLIGHT_TO_CLIENTS - toClients.length;
    const most = Math.min(MAX_IN_FLIGHT_TO_CLIENTS_PER_PROJECT, free);
    return {
      toClientBuckets: free > 0 && !this.#options.areClientBucketsElsewhere(),
      busyProjects: repeated(projects, Math.max(1, most)),
    };
  }

  /** Returns the places that have so many deliveries under way, or one where many are under way in all. */
  #busyDestinations(most: number): string[] {
    const places = this.#claimed().map(({ destination }) => destination);
    return repeated(places, places.length < SECOND_DELIVERIES_BELOW ? most : 1);
  }

  /** They are left to a process that can make them. */
  #destinationsElsewhere(): string[] {
    const names = this.#options.locationsElsewhere();
    return names.map((location) => destinationOf({ location, s3: null }));
  }

  #claimed(): ClaimedDelivery[] {
    return [...this.#inFlight.keys()].map(({ claimed }) => claimed);
  }

  /** It never rejects. If the store cannot record the end of an attempt, another attempt follows when the lease has run out. */
  async #run(held: HeldDelivery): Promise<void> {
    const { log } = this.#options;
    const { claimed } = held;
    log.debug(fieldsOf(claimed), "delivery.started");
    try {
      // A cancelled delivery may come from a process that has died.
      const end = held.signal.aborted ? CANCELLED_END : await this.#attempt(held);
      await this.#record(held, end);
    } catch (err) {
      if (err instanceof LeaseLost) await this.#passOn(held);
      else if (err instanceof Draining) await this.#release(held);
      else log.error({ ...fieldsOf(claimed), err }, "delivery.not_recorded");
    }
    held.close();
    this.#inFlight.delete(held);
    this.#nudge.now();
  }

  /** Makes an attempt, and leaves an adapter behind that does not notice that it shall stop. */
  async #attempt(held: HeldDelivery): Promise<End> {
    const { clock } = this.#options;
    const { signal } = held;
    const cancel = clock.after(MAX_ATTEMPT_MS, () => held.abort(new Stalled()));
    const saveProgress = (text: string) => held.saveProgress(text);
    const ended = new AbortController();
    const discard = () => discardLeft(held, this.#options);
    const call = { signal, saveProgress, discardLeft: discard };
    const trying = attempt(held.claimed, call, this.#options);
    const left = new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => {
        void sleep(clock, ABORT_GRACE_MS, ended.signal).then(() => {
          if (!ended.signal.aborted) void this.#cleanUpAfter(trying, held);
          reject(signal.reason as Error);
        });
      });
    });
    left.catch(() => {});
    try {
      return await Promise.race([trying, left]);
    } catch (error) {
      trying.catch(() => {});
      if (error instanceof Stalled) return STALLED;
      if (error instanceof Cancelled) return CANCELLED_END;
      throw error;
    } finally {
      cancel();
      ended.abort();
    }
  }

  /** Cleans up once more when an adapter that was left behind has ended: it may have written until then. */
  async #cleanUpAfter(trying: Promise<unknown>, held: HeldDelivery): Promise<void> {
    this.#leftBehind.add(held);
    await Promise.allSettled([trying, this.#inFlight.get(held)]);
    await this.#passOn(held);
    this.#leftBehind.delete(held);
    this.#nudge.now();
  }

  async #record(held: HeldDelivery, end: End): Promise<void> {
    const { log, metrics } = this.#options;
    const { claimed } = held;
    if (end.kind === "cancelled") return this.#endCancelled(held);
    if (end.kind === "delivered") {
      const isMine = await this.#end(held, { status: "delivered", address: end.address });
      if (!isMine) return this.#passOn(held);
      metrics.deliveryAttempted(placeLabel(claimed.delivery), "delivered");
      log.info({ ...fieldsOf(claimed), address: end.address }, "delivery.delivered");
      return;
    }
    const { error, isRetryable, cause } = end;
    const fields = { ...fieldsOf(claimed), ...error, ...causeOf(claimed, cause) };
    const waitMs = backoffMs(claimed.delivery.attemptCount - 1, Math.random(), MAX_BACKOFF_MS);
    const postponed = await (isRetryable
      ? this.#postpone(held, waitMs, error)
      : this.#lookBeforeEnd(held));
    switch (postponed) {
      case "lost":
        return this.#passOn(held);
      case "cancelled":
        return this.#endCancelled(held);
      case "postponed":
        metrics.deliveryAttempted(placeLabel(claimed.delivery), "failed");
        // A place that stays down would otherwise log a warning for each of some hundred attempts.
        if (claimed.delivery.attemptCount > 1) log.debug(fields, "delivery.attempt_failed");
        else log.warn({ ...fields, retry_in_seconds: waitMs / 1000 }, "delivery.attempt_failed");
        return;
      case "too_late":
        if (!(await this.#giveUp(held, error))) return;
        metrics.deliveryAttempted(placeLabel(claimed.delivery), "given_up");
        // The operator can do nothing about the bucket of a client.
        if (claimed.delivery.s3 === null) log.error(fields, "delivery.given_up");
        else log.warn(fields, "delivery.given_up");
    }
  }

  async #endCancelled(held: HeldDelivery): Promise<void> {
    if (!(await this.#giveUp(held, CANCELLED))) return;
    this.#options.log.info(fieldsOf(held.claimed), "delivery.cancelled");
  }

  /**
   * Ends a delivery without success. It cleans up first: once the delivery has ended, another one may write to the same place.
   * A renewal comes before that: the next holder of a lost lease counts on the files that it has found at the place.
   * Returns false when the delivery has another holder.
   */
  async #giveUp(held: HeldDelivery, error: DeliveryError): Promise<boolean> {
    if ((await this.#renew(held)) !== "lost") {
      await discardLeft(held, this.#options);
      if (await this.#end(held, { status: "failed", error })) return true;
    }
    await this.#passOn(held);
    return false;
  }

  #renew({ claimed }: HeldDelivery): Promise<DeliveryRenewal> {
    const { store, leaseTtlMs: ttlMs } = this.#options;
    return store.renewDeliveryIfLeased(claimed.lease, ttlMs);
  }

  #postpone(held: HeldDelivery, ms: number, error: DeliveryError) {
    const next = { ms, withinMs: RETRY_WITHIN_MS, error };
    return this.#options.store.postponeDeliveryIfLeased(held.claimed.lease, next);
  }

  /** A batch that was deleted is no fault of its results, and none that an operator should hear of. */
  async #lookBeforeEnd(held: HeldDelivery): Promise<"lost" | "cancelled" | "too_late"> {
    const renewal = await this.#renew(held);
    return renewal === "renewed" ? "too_late" : renewal;
  }

  #end(held: HeldDelivery, end: DeliveryEnd): Promise<boolean> {
    return this.#options.store.endDeliveryIfLeased(held.claimed.lease, end);
  }

  async #release(held: HeldDelivery): Promise<void> {
    const { store, log } = this.#options;
    const { lease } = held.claimed;
    await store.releaseDeliveryIfLeased(lease).catch((err: unknown) => {
      log.error({ ...fieldsOf(held.claimed), err }, "delivery.not_recorded");
    });
  }

  /**
   * Passes a lost delivery on to its next holder. There is none if its batch was deleted, or if the delivery has ended without
   * what this process has sent since. Then this process cleans up.
   */
  async #passOn(held: HeldDelivery): Promise<void> {
    const { store, log } = this.#options;
    const { batch, delivery } = held.claimed;
    log.debug(fieldsOf(held.claimed), "delivery.lost");
    const found = await store
      .findDelivery({ project: batch.project, id: batch.id }, delivery.id)
      .catch(() => delivery);
    if (found === null || found.status === "failed") await discardLeft(held, this.#options);
  }
}

/** Returns the texts that are there so often or more. */
const repeated = (texts: readonly string[], count: number): string[] =>
  [...new Set(texts)].filter((text) => texts.filter((each) => each === text).length >= count);

/** An unexpected error of a bucket of a client may have anything in its text, so its name has to do. */
const causeOf = ({ delivery }: ClaimedDelivery, cause: unknown) => {
  if (cause === null) return {};
  if (delivery.s3 === null) return { err: cause };
  return { reason: nameOf(cause) };
};

const STALLED = failed("unavailable", "The place did not take the results in time.", true);

const CANCELLED_END = { kind: "cancelled" } as const;
type End = AttemptEnd | typeof CANCELLED_END;
