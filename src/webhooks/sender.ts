/**
 * One attempt at a delivery: a signed POST on a connection of its own.
 *
 * Attempts of one delivery differ in timestamp and signature only, because receivers refuse a timestamp that
 * is more than five minutes old. A redirect is an answer like any other that is not 2xx: following it could
 * lead where the URL may not.
 */
import { Webhook } from "standardwebhooks";
import { Agent, buildConnector } from "undici";
import type { Clock } from "../clock.ts";
import type { BatchEvent } from "../contract/event.ts";
import { version } from "../version.ts";
import { type AddressGuard, AddressRefused } from "./address-guard.ts";

/** For a whole attempt, from looking up the name to the end of the answer. */
const ATTEMPT_TIMEOUT_MS = 10_000;
/** An answer is not used; so much of it is read that an ordinary receiver does not see a broken connection. */
const MAX_ANSWER_BYTES = 64 * 1024;

export interface Message {
  readonly url: string;
  readonly secret: string;
  /** The same for each attempt: receivers know repetitions by it. */
  readonly webhookId: string;
  readonly event: BatchEvent;
}

/** What became of an attempt. */
export type Sending =
  | { readonly kind: "delivered" }
  | { readonly kind: "failed"; readonly reason: string }
  | { readonly kind: "interrupted" };

export class Sender {
  readonly #clock: Clock;
  readonly #agent: Agent;

  constructor({ guard, clock }: { guard: AddressGuard; clock: Clock }) {
    this.#clock = clock;
    const connect = buildConnector({
      lookup: guard.lookup,
      allowH2: false,
      timeout: ATTEMPT_TIMEOUT_MS,
    });
    this.#agent = new Agent({
      // An address in the URL itself is never looked up.
      connect: (options, callback) => {
        const refusal = guard.refusalOf(options.hostname);
        if (refusal === null) connect(options, callback);
        else queueMicrotask(() => callback(refusal, null));
      },
      // No connection is kept: each delivery is checked, and hours may pass until the next one.
      pipelining: 0,
      // The attempt has a timer of its own.
      headersTimeout: 0,
      bodyTimeout: 0,
    });
  }

  /** Resolves to `interrupted` when `interrupt` aborts. Never rejects. */
  async send(message: Message, interrupt: AbortSignal): Promise<Sending> {
    const over = new AbortController();
    const timeout = new AbortController();
    void this.#clock.sleep(ATTEMPT_TIMEOUT_MS, over.signal).then(() => timeout.abort());
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
    } finally {
      over.abort();
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
    // The status says it all, even if the rest never comes.
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

/** As Standard Webhooks prescribes and the OpenAI clients verify. */
export const signedHeaders = ({ secret, webhookId, body, nowMs }: Signable) => ({
  "webhook-id": webhookId,
  "webhook-timestamp": String(Math.floor(nowMs / 1000)),
  "webhook-signature": signerFor(secret).sign(webhookId, new Date(nowMs), body),
});

/** Without its prefix a secret is the key as it stands; the package would take it for base64. */
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
