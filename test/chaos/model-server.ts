/**
 * The model server of a run. It measures the load in the way that is hardest on batchd: a request whose client has
 * been killed stays in flight for as long as its answer would have taken, because a real model may go on with it.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { Given } from "../support/given.ts";
import { type SeenRequest, startUpstream, type TestUpstream } from "../support/upstream.ts";
import { contentFor, isRefused, type Model, usageFor } from "./lines.ts";
import type { Sizes } from "./sizes.ts";

const MINUTE_MS = 60_000;

export class ModelServer implements AsyncDisposable {
  /** The requests of each line. */
  readonly requestCounts = new Map<string, number>();
  maxInFlight = 0;
  readonly #answerMs: number;
  readonly #arrivalsMs: number[] = [];
  #inFlight = 0;
  #upstream: TestUpstream | null = null;

  static async start(sizes: Sizes): Promise<ModelServer> {
    const server = new ModelServer(sizes);
    const answers = (asked: SeenRequest) => server.#answer(asked);
    server.#upstream = await startUpstream({ modelNames: [], answers });
    server.#upstream.forget();
    return server;
  }

  private constructor({ answerMs }: Sizes) {
    this.#answerMs = answerMs;
  }

  get url(): string {
    return this.#upstream?.url ?? "";
  }

  get requestCount(): number {
    return this.requestCounts.values().reduce((sum, count) => sum + count, 0);
  }

  /** The most requests for the model with a rate within any sixty seconds. */
  get maxPerMinute(): number {
    let most = 0;
    let from = 0;
    for (const [i, atMs] of this.#arrivalsMs.entries()) {
      while ((this.#arrivalsMs[from] ?? atMs) <= atMs - MINUTE_MS) from++;
      most = Math.max(most, i + 1 - from);
    }
    return most;
  }

  async #answer({ model, user }: SeenRequest): Promise<Given> {
    this.requestCounts.set(user, (this.requestCounts.get(user) ?? 0) + 1);
    const isCounted = (model as Model) === "in-flight";
    if (isCounted) this.maxInFlight = Math.max(this.maxInFlight, ++this.#inFlight);
    else this.#arrivalsMs.push(performance.now());
    await delay(this.#answerMs);
    if (isCounted) this.#inFlight--;
    if (isRefused(user))
      return { status: 400, body: { error: { message: "refused", code: "no" } } };
    const message = { role: "assistant", content: contentFor(user) };
    const choices = [{ index: 0, message, finish_reason: "stop" }];
    const body = { id: user, object: "chat.completion", model, choices, usage: usageFor(user) };
    return { body };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#upstream?.close();
  }
}
