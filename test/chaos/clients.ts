/**
 * The clients of a run. They do what the official SDK does with failures: they repeat a request after a broken
 * connection and after an answer that asks for it, at any API server that is there. Every other answer is a fault.
 */
import { setTimeout as delay } from "node:timers/promises";
import OpenAI from "openai";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { extensionOf, inputOf, isKnownToAll, sourceOf } from "./lines.ts";
import type { Sizes } from "./sizes.ts";

const PAUSE_MS = 250;
const POLL_EVERY_MS = 1_000;
/** No answer may take longer, whatever is away behind the server. */
const ANSWER_WITHIN_MS = 60_000;

interface Server {
  readonly url: string | null;
  readonly isCurrent: boolean;
}

export interface ClientsOptions {
  readonly sizes: Sizes;
  readonly servers: readonly Server[];
  readonly keyOf: (project: number) => string;
}

export class Clients {
  /** The answers that no client should see. */
  readonly faults: string[] = [];
  /** The number of requests that were repeated. */
  repeatCount = 0;
  readonly #options: ClientsOptions;
  readonly #ids = new Map<number, Promise<string>>();
  #next = 0;

  constructor(options: ClientsOptions) {
    this.#options = options;
  }

  /** Creates the batch once its source is there. Nothing is made twice, thanks to the key. */
  submit(batch: number): Promise<string> {
    const id = this.#create(batch);
    this.#ids.set(batch, id);
    return id;
  }

  async #create(batch: number): Promise<string> {
    const { sizes } = this.#options;
    const once = (step: string) => ({ headers: { "idempotency-key": `batch-${batch}-${step}` } });
    const source = sourceOf(batch, sizes);
    const sourceId = source === null ? null : ((await this.#ids.get(source)) ?? null);
    const input =
      source !== null
        ? {}
        : await this.#insist(batch, async (openai) => {
            const file = new File([inputOf(batch, sizes)], `batch-${batch}.jsonl`);
            const { id } = await openai.files.create({ file, purpose: "batch" }, once("file"));
            return { input_file_id: id };
          });
    const body = {
      ...input,
      completion_window: "24h",
      endpoint: "/v1/chat/completions",
      x_batchd: extensionOf(batch, sourceId, sizes),
    };
    const created = await this.#insist(
      batch,
      (openai) => openai.post("/batches", { body, ...once("batch") }) as Promise<OpenAI.Batch>,
    );
    return created.id;
  }

  /** Resolves to the batch once it is final. */
  async ended(batch: number, id: string): Promise<OpenAI.Batch> {
    for (;;) {
      const found = await this.#insist(batch, (openai) => openai.batches.retrieve(id));
      if (["completed", "failed", "expired", "cancelled"].includes(found.status)) return found;
      await delay(POLL_EVERY_MS);
    }
  }

  /** Resolves to the deliveries of the batch once all of them have ended. */
  async deliveries(batch: number, id: string): Promise<readonly DeliveryObject[]> {
    for (;;) {
      const { data } = await this.#insist(
        batch,
        (openai) =>
          openai.get(`/batches/${id}/deliveries`) as Promise<{ data: readonly DeliveryObject[] }>,
      );
      const hasEnded = data.every(({ status }) => status === "delivered" || status === "failed");
      if (hasEnded) return data;
      await delay(POLL_EVERY_MS);
    }
  }

  async text(batch: number, fileId: string | null | undefined): Promise<string> {
    if (fileId === null || fileId === undefined) return "";
    return this.#insist(batch, async (openai) => (await openai.files.content(fileId)).text());
  }

  /** Returns the ids of all batches of the project, in no particular order. */
  list(project: number): Promise<string[]> {
    return this.#insist(project, async (openai) => {
      const ids: string[] = [];
      for await (const { id } of openai.batches.list({ limit: 3 })) ids.push(id);
      return ids;
    });
  }

  async #insist<T>(batch: number, ask: (openai: OpenAI) => Promise<T>): Promise<T> {
    const { sizes, servers, keyOf } = this.#options;
    const apiKey = keyOf(batch % sizes.projectCount);
    for (;;) {
      const server = servers[this.#next++ % servers.length];
      const mayAsk = server?.isCurrent === true || isKnownToAll(batch, sizes);
      const url = mayAsk ? (server?.url ?? null) : null;
      if (url !== null) {
        const options = { maxRetries: 0, timeout: ANSWER_WITHIN_MS };
        const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, ...options });
        try {
          return await ask(openai);
        } catch (cause) {
          if (!this.#mayRepeat(cause)) throw cause;
          this.repeatCount++;
        }
      }
      await delay(PAUSE_MS);
    }
  }

  /** A server says when to repeat. A connection that breaks was one to a server that was killed. */
  #mayRepeat(cause: unknown): boolean {
    if (cause instanceof OpenAI.APIConnectionTimeoutError) {
      this.faults.push(`no answer within ${ANSWER_WITHIN_MS / 1000} s`);
      return true;
    }
    if (!(cause instanceof OpenAI.APIError) || cause.status === undefined) return isBroken(cause);
    const { status, headers, type, code } = cause;
    const hasPause = Number(headers.get("retry-after")) > 0;
    if (status === 503 && hasPause && type === "server_error") return true;
    if (status === 409 && hasPause && code === "idempotency_key_in_use") return true;
    this.faults.push(`${status} ${cause.message} (retry-after: ${headers.get("retry-after")})`);
    return status >= 500;
  }
}

const isBroken = (cause: unknown): boolean =>
  cause instanceof OpenAI.APIConnectionError ||
  (cause instanceof TypeError && /terminated|fetch failed/.test(cause.message));
