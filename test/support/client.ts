import type { Outcome } from "../../src/batch/outcome.ts";
import { type Clock, systemClock } from "../../src/clock.ts";
import { UpstreamEntry } from "../../src/config/upstreams.ts";
import type { BatchEndpoint } from "../../src/contract/batch.ts";
import { Client } from "../../src/upstream/exchange/client.ts";
import { Dialect, type Exchange } from "../../src/upstream/exchange/dialect.ts";

export const never = new AbortController().signal;

/** The keys of an upstream as a file has them, and the other settings of a client. */
export interface ClientSettings extends Readonly<Record<string, unknown>> {
  readonly maxAnswerBytes?: number;
  readonly clock?: Clock;
}

const dialects = new WeakMap<Client, Dialect>();

export function clientOf(baseUrl: string, settings: ClientSettings = {}): Client {
  const { maxAnswerBytes = 1_000_000, clock = systemClock, ...keys } = settings;
  const config = UpstreamEntry.parse({
    name: "test",
    base_url: baseUrl,
    models: ["*"],
    max_concurrency: 8,
    // No answer of a test takes as long, also on a busy machine.
    timeout_seconds: 120,
    ...keys,
  });
  const dialect = new Dialect(config);
  const client = new Client({ config, dialect, maxAnswerBytes: () => maxAnswerBytes, clock });
  dialects.set(client, dialect);
  return client;
}

export interface Sent {
  readonly endpoint?: BatchEndpoint;
  readonly body: Buffer;
  readonly abort?: AbortSignal;
}

/** Returns the exchange that the client sends for a line with this body. */
export function exchangeOf(
  client: Client,
  { endpoint = "/v1/chat/completions", body }: Pick<Sent, "endpoint" | "body">,
): Exchange {
  const request = {
    project: "default",
    endpoint,
    model: "m",
    isModelInBody: true,
    body,
    inputTokens: 0,
    answerTokens: 0,
    deadlineAtMs: Number.POSITIVE_INFINITY,
    traceparent: null,
  };
  return dialects.get(client)!.exchangeOf(request, null) as Exchange;
}

export async function send(client: Client, sent: Sent): Promise<Outcome> {
  const { outcome } = await client.send(exchangeOf(client, sent), sent.abort ?? never);
  return outcome;
}
