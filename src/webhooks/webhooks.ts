/**
 * Notifies the configured endpoints that a batch is final.
 *
 * The commit that makes the batch final also stores the deliveries. So a crash loses no event, and no event may ever
 * report what did not happen. A delivery stays in the store until an endpoint has accepted it, has declined it, or has
 * failed for too long. A delivery that a crash interrupts is sent again under the same id. So a receiver may see an
 * event twice, but never misses one.
 */
import { randomUUID } from "node:crypto";
import { backoffMs } from "../batch/backoff.ts";
import type { Batch } from "../batch/batch.ts";
import { randomHexId } from "../batch/random-id.ts";
import type { Clock } from "../clock.ts";
import type { WebhookConfig, WebhooksConfig } from "../config/schema.ts";
import type { EventType } from "../contract/event.ts";
import { toSeconds } from "../contract/unix-seconds.ts";
import { loop, Nudge } from "../loop.ts";
import { AddressGuard } from "../resources/address-guard.ts";
import type {
  Announcement,
  DueWebhook,
  WebhookDelivery,
  WebhookDeliveryStore,
} from "../store/webhook-deliveries.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Sender } from "./sender.ts";

/** The limit for this process. Endpoints that never answer take a place each, so it must be above their number. */
const MAX_IN_FLIGHT = 128;
/** The limit for an endpoint, from all processes. */
const MAX_IN_FLIGHT_PER_WEBHOOK = 2;
/** An endpoint gets a second event at once only below this. Otherwise a few that never answer would take every place. */
const SECOND_EVENTS_BELOW = 32;
/** The lease of an attempt: three times its timeout, so it outlasts the attempt. */
const LEASE_TTL_MS = 30_000;
/** The time for an answer that is on its way when the server stops. */
const DRAIN_GRACE_MS = 1_000;

const MAX_BACKOFF_MS = 3_600_000;
const RETRY_FOR_MS = 72 * 3_600_000;

const NOT_CONFIGURED = "no webhook of this name is configured for the project";

/** The endpoint of another process, for one project or for all. */
export interface NamedEndpoint {
  readonly name: string;
  readonly project: string | null;
  /** The events that it asks for; null for all. */
  readonly events: readonly string[] | null;
}

export interface WebhooksOptions {
  readonly store: WebhookDeliveryStore;
  readonly config: WebhooksConfig;
  /** Returns the endpoints of the other processes. */
  readonly elsewhere: () => readonly NamedEndpoint[];
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  /** The interval at which due deliveries are looked for without a nudge. */
  readonly checkEveryMs: number;
}

export class Webhooks {
  readonly #options: WebhooksOptions;
  #config: WebhooksConfig;
  readonly #guard: AddressGuard;
  /** The sender; null until the first delivery, because it takes 10 MB of memory. */
  #sender: Sender | null = null;
  readonly #owner = `webhooks/${randomUUID()}`;
  readonly #nudge = new Nudge();
  readonly #drain = new AbortController();
  readonly #interrupt = new AbortController();
  readonly #inFlight = new Set<Promise<void>>();
  /** The project of the last event, by the name of the endpoint. The endpoint that had its turn last is at the end. */
  readonly #lastProjects = new Map<string, string>();
  #loop: Promise<void> | null = null;

  constructor(options: WebhooksOptions) {
    this.#options = options;
    this.#config = options.config;
    this.#guard = new AddressGuard(options.config.allow_private_hosts, {
      setting: "webhooks.allow_private_hosts",
    });
  }

  /** Replaces the endpoints. An attempt in progress ends with the old ones. */
  reconfigure(config: WebhooksConfig): void {
    this.#config = config;
    this.#guard.allow(config.allow_private_hosts);
  }

  /**
   * Returns the announcements for the commit that makes the batch final. Only that commit knows the ending. So an
   * endpoint that did not ask for this ending is removed later, when its delivery is due. Endpoints that only other processes
   * have learn of it as well, whichever process ends the batch.
   */
  announcementsFor(batch: Batch): Announcement[] {
    const eventId = `evt_${randomHexId()}`;
    const endpoints = [...this.#config.endpoints, ...this.#options.elsewhere()];
    const names = endpoints.filter((each) => isFor(each, batch)).map(({ name }) => name);
    return [...new Set(names)].map((webhook) => ({
      webhookId: `wh_${randomHexId()}`,
      eventId,
      webhook,
    }));
  }

  start(): void {
    const { clock, log, checkEveryMs } = this.#options;
    this.#loop = loop({
      name: "webhooks",
      everyMs: checkEveryMs,
      nudge: this.#nudge,
      drain: this.#drain.signal,
      clock,
      log,
      runOnce: () => this.#startNext(),
    });
  }

  /** Looks for new deliveries at once, after a batch became final. */
  nudge(): void {
    this.#nudge.now();
  }

  /** Stops sending. A delivery in flight gets a short time to end; otherwise it is due at the next start. */
  async drain(): Promise<void> {
    this.#drain.abort();
    await this.#loop;
    const cancel = this.#options.clock.after(DRAIN_GRACE_MS, () => this.#interrupt.abort());
    await Promise.all(this.#inFlight);
    cancel();
    await this.#sender?.close();
  }

  /** Returns false when no delivery is due, or too many are in flight. */
  async #startNext(): Promise<boolean> {
    const { size } = this.#inFlight;
    if (size >= MAX_IN_FLIGHT) return false;
    const maxLeased = size < SECOND_EVENTS_BELOW ? MAX_IN_FLIGHT_PER_WEBHOOK : 1;
    const due = await this.#options.store.listDueWebhooks();
    for (const { webhook, leasedCount } of this.#inTurn(due)) {
      if (leasedCount >= maxLeased) return false;
      if (this.#isElsewhere(webhook)) continue;
      const delivery = await this.#claim(webhook, maxLeased);
      if (delivery === null) continue;
      const run = this.#run(delivery).then(() => {
        this.#inFlight.delete(run);
        this.#nudge.now();
      });
      this.#inFlight.add(run);
      return true;
    }
    return false;
  }

  /**
   * Webhooks that have none in flight come first. Among them it is by turns: one whose events fail at once has none in flight
   * and the oldest event at every look, and would hold up all others.
   */
  #inTurn(due: readonly DueWebhook[]): DueWebhook[] {
    const turns = new Map([...this.#lastProjects.keys()].map((webhook, turn) => [webhook, turn]));
    const turnOf = ({ webhook }: DueWebhook) => turns.get(webhook) ?? -1;
    return due.toSorted((a, b) => a.leasedCount - b.leasedCount || turnOf(a) - turnOf(b));
  }

  /** Whether only other processes have the endpoint. They are to deliver its events. */
  #isElsewhere(webhook: string): boolean {
    const isNamed = ({ name }: { readonly name: string }) => name === webhook;
    return !this.#config.endpoints.some(isNamed) && this.#options.elsewhere().some(isNamed);
  }

  /** Whether the endpoint asks for the event at another process. That one may have a newer configuration. */
  #isWantedElsewhere(delivery: WebhookDelivery): boolean {
    return this.#options
      .elsewhere()
      .some(
        (each) => each.name === delivery.webhook && isFor(each, delivery) && wants(each, delivery),
      );
  }

  /** Many events of one project must not hold up those of others, so projects take turns. */
  async #claim(webhook: string, maxLeased: number): Promise<WebhookDelivery | null> {
    const delivery = await this.#options.store.claimWebhookDelivery({
      owner: this.#owner,
      ttlMs: LEASE_TTL_MS,
      webhook,
      maxLeased,
      afterProject: this.#lastProjects.get(webhook) ?? "",
    });
    if (delivery !== null) {
      this.#lastProjects.delete(webhook);
      this.#lastProjects.set(webhook, delivery.project);
    }
    return delivery;
  }

  /** It never rejects. If the store cannot record a delivery, the delivery is due again when its lease ends. */
  async #run(delivery: WebhookDelivery): Promise<void> {
    try {
      await this.#deliver(delivery);
    } catch (err) {
      this.#options.log.error({ ...fieldsOf(delivery), err }, "webhook.not_recorded");
    }
  }

  async #loadedSender(): Promise<Sender> {
    const { Sender } = await import("./sender.ts");
    this.#sender ??= new Sender({ guard: this.#guard, clock: this.#options.clock });
    return this.#sender;
  }

  async #deliver(delivery: WebhookDelivery): Promise<void> {
    const { store, log, metrics } = this.#options;
    const { webhookId } = delivery;
    const endpoint = this.#config.endpoints.find(
      (each) => each.name === delivery.webhook && isFor(each, delivery),
    );
    if (endpoint === undefined) {
      // Another replica may have it, or the next configuration of this one.
      await this.#retryOrGiveUp(delivery, NOT_CONFIGURED);
      return;
    }
    if (!wants(endpoint, delivery)) {
      if (this.#isWantedElsewhere(delivery)) await this.#leaveToOthers(delivery);
      else await store.forgetWebhookDelivery(webhookId);
      return;
    }
    const { url, secret } = endpoint;
    const message = { url, secret, webhookId, event: eventOf(delivery) };
    const sender = await this.#loadedSender();
    const sending = await sender.send(message, this.#interrupt.signal);
    switch (sending.kind) {
      case "delivered":
        await store.forgetWebhookDelivery(webhookId);
        metrics.webhookAttempted(delivery.webhook, "delivered");
        log.info(fieldsOf(delivery), "webhook.delivered");
        return;
      case "interrupted":
        await store.postponeWebhookDeliveryIfHeld({ webhookId, owner: this.#owner }, 0);
        return;
      case "failed":
        await this.#retryOrGiveUp(delivery, sending.reason);
    }
  }

  /** Nothing has failed, so the time until another process may take the event does not grow. */
  async #leaveToOthers({ webhookId }: WebhookDelivery): Promise<void> {
    const ms = backoffMs(0, Math.random(), MAX_BACKOFF_MS);
    await this.#options.store.postponeWebhookDeliveryIfHeld({ webhookId, owner: this.#owner }, ms);
  }

  async #retryOrGiveUp(delivery: WebhookDelivery, reason: string): Promise<void> {
    const { store, clock, log, metrics } = this.#options;
    const nowMs = clock.nowMs();
    const atMs = retryAtMs(delivery, nowMs, Math.random());
    if (atMs === null) {
      await this.#giveUp(delivery, reason);
      return;
    }
    const { webhookId } = delivery;
    await store.postponeWebhookDeliveryIfHeld({ webhookId, owner: this.#owner }, atMs - nowMs);
    metrics.webhookAttempted(delivery.webhook, "failed");
    const fields = { ...fieldsOf(delivery), reason, retry_in_seconds: (atMs - nowMs) / 1000 };
    // An endpoint that stays down would otherwise log a warning about each delivery some eighty times.
    if (delivery.attemptCount === 0) log.warn(fields, "webhook.attempt_failed");
    else log.debug(fields, "webhook.attempt_failed");
  }

  async #giveUp(delivery: WebhookDelivery, reason: string): Promise<void> {
    await this.#options.store.forgetWebhookDelivery(delivery.webhookId);
    this.#options.metrics.webhookAttempted(delivery.webhook, "given_up");
    this.#options.log.error({ ...fieldsOf(delivery), reason }, "webhook.given_up");
  }
}

/** Returns the type of the event. Only final statuses have deliveries, and each of them has an event. */
const typeOf = ({ status }: WebhookDelivery) => `batch.${status}` as EventType;

/** An endpoint may have been given to another project since its events were announced. */
const isFor = (
  { project }: Pick<WebhookConfig, "project"> | NamedEndpoint,
  of: { readonly project: string },
): boolean => (project ?? null) === null || project === of.project;

const wants = (
  { events }: Pick<WebhookConfig, "events"> | NamedEndpoint,
  delivery: WebhookDelivery,
): boolean => events?.includes(typeOf(delivery)) ?? true;

const eventOf = (delivery: WebhookDelivery) =>
  ({
    object: "event",
    id: delivery.eventId,
    type: typeOf(delivery),
    created_at: toSeconds(delivery.createdAtMs),
    data: { id: delivery.batchId, x_batchd: { request_counts: delivery.counts } },
  }) as const;

const fieldsOf = (delivery: WebhookDelivery) => ({
  webhook: delivery.webhook,
  webhook_id: delivery.webhookId,
  batch: delivery.batchId,
  type: typeOf(delivery),
  attempt: delivery.attemptCount + 1,
});

/** Returns the time of the next attempt; null when it would be too long after the event. `random` is from 0 up to 1. */
export function retryAtMs(
  { attemptCount, createdAtMs }: Pick<WebhookDelivery, "attemptCount" | "createdAtMs">,
  nowMs: number,
  random: number,
): number | null {
  const atMs = nowMs + backoffMs(attemptCount, random, MAX_BACKOFF_MS);
  return atMs <= createdAtMs + RETRY_FOR_MS ? atMs : null;
}
