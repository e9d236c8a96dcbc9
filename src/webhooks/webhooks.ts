/**
 * Tells configured endpoints that a batch is final.
 *
 * What is to be told is written in the commit that makes the batch final, so no crash loses it and nothing is
 * told that did not happen. A delivery stays in the store until an endpoint has taken it, does not want it,
 * or is given up on. What a crash interrupts is sent again, under the same id: a receiver may see an event
 * twice and never misses one.
 */
import { randomUUID } from "node:crypto";
import type { Batch } from "../batch/batch.ts";
import { randomHexId } from "../batch/random-id.ts";
import type { Clock } from "../clock.ts";
import type { WebhookConfig, WebhooksConfig } from "../config/schema.ts";
import type { EventType } from "../contract/event.ts";
import { loop, Nudge } from "../loop.ts";
import type { Announcement, Delivery, DeliveryStore } from "../store/deliveries.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { AddressGuard } from "./address-guard.ts";
import type { Sender } from "./sender.ts";

/** How often to look for deliveries that are due when nobody nudges. */
const LOOK_EVERY_MS = 1_000;
const MAX_IN_FLIGHT = 8;
/** Fewer than all of them: an endpoint that never answers leaves room for the others. */
const MAX_IN_FLIGHT_PER_WEBHOOK = 2;
/** Outlasts any attempt: three times its timeout. */
const LEASE_TTL_MS = 30_000;
/** For an answer that is on its way when the server stops. */
const DRAIN_GRACE_MS = 1_000;

const RETRY_BASE_MS = 5_000;
const RETRY_CAP_MS = 3_600_000;
const RETRY_FOR_MS = 72 * 3_600_000;

export interface WebhooksOptions {
  readonly store: DeliveryStore;
  readonly config: WebhooksConfig;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
}

export class Webhooks {
  readonly #options: WebhooksOptions;
  #config: WebhooksConfig;
  readonly #guard: AddressGuard;
  /** Null until there is something to send: what sends takes 10 MB of memory. */
  #sender: Promise<Sender> | null = null;
  readonly #owner = `webhooks/${randomUUID()}`;
  readonly #nudge = new Nudge();
  readonly #drain = new AbortController();
  readonly #interrupt = new AbortController();
  readonly #inFlight = new Map<Delivery, Promise<void>>();
  #loop: Promise<void> | null = null;

  constructor(options: WebhooksOptions) {
    this.#options = options;
    this.#config = options.config;
    this.#guard = new AddressGuard(options.config.allow_private_hosts);
  }

  /** Other endpoints from now on. An attempt under way ends as it began. */
  reconfigure(config: WebhooksConfig): void {
    this.#config = config;
    this.#guard.allow(config.allow_private_hosts);
  }

  /**
   * For the commit that makes the batch final. How it ends is known only in that commit, so an endpoint that did
   * not ask for this ending is left out later, when the delivery is due.
   */
  announcementsFor(batch: Batch): Announcement[] {
    const eventId = `evt_${randomHexId()}`;
    return this.#config.endpoints
      .filter(({ project }) => project === undefined || project === batch.project)
      .map(({ name }) => ({ webhookId: `wh_${randomHexId()}`, eventId, webhook: name }));
  }

  start(): void {
    const { clock, log } = this.#options;
    this.#loop = loop({
      name: "webhooks",
      everyMs: LOOK_EVERY_MS,
      nudge: this.#nudge,
      drain: this.#drain.signal,
      clock,
      log,
      runOnce: () => this.#startNext(),
    });
  }

  /** A batch became final. */
  nudge(): void {
    this.#nudge.now();
  }

  /** Sends nothing more. What is in flight may end soon, and is otherwise due at the next start. */
  async drain(): Promise<void> {
    this.#drain.abort();
    await this.#loop;
    const settled = new AbortController();
    void this.#options.clock
      .sleep(DRAIN_GRACE_MS, settled.signal)
      .then(() => this.#interrupt.abort());
    await Promise.all(this.#inFlight.values());
    settled.abort();
    await (await this.#sender)?.close();
  }

  /** False when nothing is due or there is no room. */
  async #startNext(): Promise<boolean> {
    if (this.#inFlight.size >= MAX_IN_FLIGHT) return false;
    const { store, clock } = this.#options;
    const [delivery] = await store.claimDeliveries({
      owner: this.#owner,
      nowMs: clock.nowMs(),
      ttlMs: LEASE_TTL_MS,
      limit: 1,
      busyWebhooks: this.#busyWebhooks(),
    });
    if (delivery === undefined) return false;
    this.#inFlight.set(delivery, this.#run(delivery));
    return true;
  }

  #busyWebhooks(): string[] {
    const names = [...this.#inFlight.keys()].map(({ webhook }) => webhook);
    return [...new Set(names)].filter(
      (name) => names.filter((each) => each === name).length >= MAX_IN_FLIGHT_PER_WEBHOOK,
    );
  }

  /** Never rejects: a delivery that the store could not record is due again when its lease ends. */
  async #run(delivery: Delivery): Promise<void> {
    try {
      await this.#deliver(delivery);
    } catch (err) {
      this.#options.log.error({ ...fieldsOf(delivery), err }, "webhook.not_recorded");
    }
    this.#inFlight.delete(delivery);
    this.#nudge.now();
  }

  async #loadSender(): Promise<Sender> {
    const { Sender } = await import("./sender.ts");
    return new Sender({ guard: this.#guard, clock: this.#options.clock });
  }

  async #deliver(delivery: Delivery): Promise<void> {
    const { store, clock, log, metrics } = this.#options;
    const { webhookId } = delivery;
    const endpoint = this.#config.endpoints.find(({ name }) => name === delivery.webhook);
    if (endpoint === undefined) {
      await this.#giveUp(delivery, "no webhook of this name is configured");
      return;
    }
    if (!wants(endpoint, delivery)) {
      await store.forgetDelivery(webhookId);
      return;
    }
    const { url, secret } = endpoint;
    const message = { url, secret, webhookId, event: eventOf(delivery) };
    this.#sender ??= this.#loadSender();
    const sending = await (await this.#sender).send(message, this.#interrupt.signal);
    switch (sending.kind) {
      case "delivered":
        await store.forgetDelivery(webhookId);
        metrics.webhookAttempted(delivery.webhook, "delivered");
        log.info(fieldsOf(delivery), "webhook.delivered");
        return;
      case "interrupted":
        await store.postponeDelivery(webhookId, clock.nowMs());
        return;
      case "failed":
        await this.#retryOrGiveUp(delivery, sending.reason);
    }
  }

  async #retryOrGiveUp(delivery: Delivery, reason: string): Promise<void> {
    const { store, clock, log, metrics } = this.#options;
    const nowMs = clock.nowMs();
    const atMs = retryAtMs(delivery, nowMs, Math.random());
    if (atMs === null) {
      await this.#giveUp(delivery, reason);
      return;
    }
    await store.postponeDelivery(delivery.webhookId, atMs);
    metrics.webhookAttempted(delivery.webhook, "failed");
    const fields = { ...fieldsOf(delivery), reason, retry_in_seconds: (atMs - nowMs) / 1000 };
    // An endpoint that stays down would otherwise warn of each delivery some eighty times.
    if (delivery.attemptCount === 0) log.warn(fields, "webhook.attempt_failed");
    else log.debug(fields, "webhook.attempt_failed");
  }

  async #giveUp(delivery: Delivery, reason: string): Promise<void> {
    await this.#options.store.forgetDelivery(delivery.webhookId);
    this.#options.metrics.webhookAttempted(delivery.webhook, "given_up");
    this.#options.log.error({ ...fieldsOf(delivery), reason }, "webhook.given_up");
  }
}

/** Deliveries exist for final statuses only, and each of them has an event. */
const typeOf = ({ status }: Delivery) => `batch.${status}` as EventType;

const wants = ({ events }: WebhookConfig, delivery: Delivery): boolean =>
  events?.includes(typeOf(delivery)) ?? true;

const eventOf = (delivery: Delivery) =>
  ({
    object: "event",
    id: delivery.eventId,
    type: typeOf(delivery),
    created_at: Math.floor(delivery.createdAtMs / 1000),
    data: { id: delivery.batchId, x_batchd: { request_counts: delivery.counts } },
  }) as const;

const fieldsOf = (delivery: Delivery) => ({
  webhook: delivery.webhook,
  webhook_id: delivery.webhookId,
  batch: delivery.batchId,
  type: typeOf(delivery),
  attempt: delivery.attemptCount + 1,
});

/**
 * When to try again after an attempt that failed; null when that would be too long after the event. The waits
 * double up to a cap, and are shortened by up to a fifth, so that deliveries that failed together part ways.
 * `random` is from 0 up to 1.
 */
export function retryAtMs(
  { attemptCount, createdAtMs }: Pick<Delivery, "attemptCount" | "createdAtMs">,
  nowMs: number,
  random: number,
): number | null {
  const backoffMs = Math.min(RETRY_BASE_MS * 2 ** attemptCount, RETRY_CAP_MS);
  const atMs = nowMs + Math.round(backoffMs * (1 - random / 5));
  return atMs <= createdAtMs + RETRY_FOR_MS ? atMs : null;
}
