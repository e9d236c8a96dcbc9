/**
 * The clients of a run. They do what the official SDK does with failures: they repeat a request after a broken
 * connection and after an answer that asks for it, at any API server that is there. Every other answer is a fault.
 */
import { setTimeout as delay } from "node:timers/promises";
import OpenAI from "openai";
import { idsOf, inputOf } from "./lines.ts";
import type { Sizes } from "./sizes.ts";

const PAUSE_MS = 250;
const POLL_EVERY_MS = 1_000;
/** No answer may take longer, whatever is away behind the server. */
const ANSWER_WITHIN_MS = 60_000;

interface Server {
  readonly url: string | null;
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
  #next = 0;

  constructor(options: ClientsOptions) {
    this.#options = options;
  }

  /** Uploads the input and creates the batch; repeats neither of them twice, thanks to the key. */
  async submit(batch: number): Promise<string> {
    const { linesPerBatch } = this.#options.sizes;
    const once = (step: string) => ({ headers: { "idempotency-key": `batch-${batch}-${step}` } });
    const text = inputOf(batch, linesPerBatch);
    const input = await this.#insist(batch, (openai) =>
      openai.files.create(
        { file: new File([text], `batch-${batch}.jsonl`), purpose: "batch" },
        once("file"),
      ),
    );
    const created = await this.#insist(batch, (openai) =>
      openai.batches.create(
        {
          ...{ input_file_id: input.id, completion_window: "24h" },
          endpoint: "/v1/chat/completions",
        },
        once("batch"),
      ),
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

  idsOf(batch: number): string[] {
    return idsOf(batch, this.#options.sizes.linesPerBatch);
  }

  async #insist<T>(batch: number, ask: (openai: OpenAI) => Promise<T>): Promise<T> {
    const { sizes, servers, keyOf } = this.#options;
    const apiKey = keyOf(batch % sizes.projectCount);
    for (;;) {
      const url = servers[this.#next++ % servers.length]?.url ?? null;
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
