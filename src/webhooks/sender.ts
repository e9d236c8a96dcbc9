/**
 * Makes one attempt at a delivery: a signed POST on a connection of its own.
 *
 * Only timestamp and signature differ between the attempts of a delivery, because receivers refuse a timestamp that is
 * older than five minutes. A redirect counts as a failure and must never be followed, because it could lead to an
 * address that the URL may not have.
 */
import { Webhook } from "standardwebhooks";
import { Agent, buildConnector } from "undici";
import { type Clock, timeLimit } from "../clock.ts";
import type { BatchEvent } from "../contract/event.ts";
import { type AddressGuard, AddressRefused } from "../resources/address-guard.ts";
import { readingAnswers } from "../resources/reading-time.ts";
import { version } from "../version.ts";

/** The time for a whole attempt, from the lookup of the name to the end of the answer. */
const ATTEMPT_TIMEOUT_MS = 10_000;
/** The part of the answer to read. It is not used, but an ordinary receiver should not see a broken connection. */
const MAX_ANSWER_BYTES = 64 * 1024;

export interface Message {
  readonly url: string;
  readonly secret: string;
  /** The id of the delivery. It stays the same for each attempt, so that receivers can recognise repetitions. */
  readonly webhookId: string;
  readonly event: BatchEvent;
}

/** The result of an attempt. */
export type Sending =
  | { readonly kind: "delivered" }
  | { readonly kind: "failed"; readonly reason: string }
  | { readonly kind: "interrupted" };

export class Sender {
  readonly #clock: Clock;
  readonly #agent: Agent;

  constructor({ guard, clock }: { guard: AddressGuard; clock: Clock }) {
    this.#clock = clock;
    const connect = readingAnswers(
      buildConnector({ lookup: guard.lookup, allowH2: false, timeout: ATTEMPT_TIMEOUT_MS }),
    );
    this.#agent = new Agent({
      // An IP address in a URL needs no lookup, so it must be checked here.
      connect: (options, callback) => {
        const refusal = guard.refusalOf(options.hostname);
        if (refusal === null) connect(options, callback);
        else queueMicrotask(() => callback(refusal, null));
      },
      // No connection is kept. Each delivery must be checked, and the next one may be hours away.
      pipelining: 0,
      // The attempt has a timer of its own.
      headersTimeout: 0,
      bodyTimeout: 0,
    });
  }

  /** Sends a message. Resolves to `interrupted` when `interrupt` aborts. Never rejects. */
  async send(message: Message, interrupt: AbortSignal): Promise<Sending> {
    using timeout = timeLimit(this.#clock, ATTEMPT_TIMEOUT_MS);
    try {
      const status = await this.#post(message, AbortSignal.any([interrupt, timeout.signal]));
      if (status >= 200 && status < 300) return { kind: "delivered" };
      return { kind: "failed", reason: `answered ${status}` };
    } catch (error) {
      if (interrupt.aborted) return { kind: "interrupted" };
      const reason = timeout.signal.aborted
        ? `no answer within ${ATTEMPT_TIMEOUT_MS / 1000} seconds`
        : reasonOf(error as Error);
      return { kind: "failed", reason };
    }
  }

  async close(): Promise<void> {
    await this.#agent.destroy();
  }

  async #post(message: Message, signal: AbortSignal): Promise<number> {
    const url = new URL(message.url);
    const body = JSON.stringify(message.event);
    const nowMs = this.#clock.nowMs();
    const answer = await this.#agent.request({
      origin: url.origin,
      path: `${url.pathname}${url.search}`,
      method: "POST",
      headers: {
        "content-type": "application/json",
        "user-agent": `batchd/${version}`,
        ...signedHeaders({ ...message, body, nowMs }),
      },
      body,
      signal,
    });
    // The status decides, even if the rest of the answer never comes.
    await answer.body.dump({ limit: MAX_ANSWER_BYTES, signal }).catch(() => {});
    return answer.statusCode;
  }
}

export interface Signable {
  readonly secret: string;
  readonly webhookId: string;
  readonly body: string;
  readonly nowMs: number;
}

/** Signs a message as Standard Webhooks prescribes and the OpenAI clients verify. */
export const signedHeaders = ({ secret, webhookId, body, nowMs }: Signable) => ({
  "webhook-id": webhookId,
  "webhook-timestamp": String(Math.floor(nowMs / 1000)),
  "webhook-signature": signerFor(secret).sign(webhookId, new Date(nowMs), body),
});

/** A secret without its prefix is the key itself. The package would decode it as base64. */
const signerFor = (secret: string): Webhook =>
  secret.startsWith("whsec_")
    ? new Webhook(secret)
    : new Webhook(Buffer.from(secret), { format: "raw" });

function reasonOf(error: Error): string {
  if (error instanceof AddressRefused) return error.message;
  const { code } = error as NodeJS.ErrnoException;
  if (code === undefined || error.message.includes(code)) return error.message || error.name;
  return error.message === "" ? code : `${error.message} (${code})`;
}
