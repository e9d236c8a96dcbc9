/** Batches of every kind on servers that are killed, and what is done to them in the order of a seed. */
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect } from "vitest";
import { BatchdProcess } from "../support/process.ts";
import { seededRandom } from "../support/seeded-random.ts";
import { chatLine, type ResultRow } from "../support/service.ts";
import type { Ballast } from "../support/small-disk.ts";
import type { TestUpstream } from "../support/upstream.ts";

/**
 * They have as many digits as a price may have. The one price counts its requests in the last six of them, the other in the
 * first.
 */
const PRICES = ["1.000000000001", "1.000001"];
/** Returns the number of requests that cost so much, whichever of the prices each of them had. */
export function requestsOf(cost: string): number {
  const [whole = "", fraction = ""] = cost.split(".");
  const digits = fraction.padEnd(12, "0");
  expect(Number(digits.slice(0, 6)) + Number(digits.slice(6)), cost).toBe(Number(whole));
  return Number(whole);
}

export interface Shown {
  readonly id: string;
  readonly status: string;
  readonly input_file_id: string;
  readonly output_file_id: string | null;
  readonly error_file_id: string | null;
  readonly errors: { readonly data: readonly { readonly code: string }[] } | null;
  readonly request_counts: {
    readonly total: number;
    readonly completed: number;
    readonly failed: number;
  };
  readonly usage: { readonly total_tokens: number };
  readonly x_batchd: {
    readonly paused: { readonly reason: string } | null;
    readonly failures: readonly { readonly lines: number }[];
    readonly deduplicated: number | null;
    readonly cost: { readonly so_far: string } | null;
  };
}

export interface Line {
  readonly customId: string;
  readonly question: string;
}

/** A batch as the test knows it. */
export interface Known {
  readonly id: string;
  readonly from: {
    readonly source: Known;
    readonly lines: "failed" | "succeeded" | "all";
    readonly merge: boolean;
  } | null;
  /** The lines of an uploaded input, by number. */
  readonly lines: ReadonlyMap<number, Line>;
  readonly inputId: string;
  /** The highest budget that it has had; null if it never had one. */
  highestBudget: number | null;
  /** Whether a client has deleted the input by itself. */
  isInputDeleted: boolean;
  isDeleted: boolean;
}

const BASE = { endpoint: "/v1/chat/completions", completion_window: "24h" };
/** What goes wrong with some of the questions. */
const TROUBLES = [
  "[[status 400]]",
  "[[status 400 x1]]",
  "[[status 500 x1]]",
  "[[status 429 x1]]",
  "[[reset x1]]",
  "[[delay 30]]",
];
/** Answers that have a commit of their own each, so that the last answers of a chunk are there before its end. */
const LARGE_ANSWERS = ["[[big 1200000]]", "[[big 4500000]]"];
/** How often an action comes among the others. */
const TIMES = {
  upload: 3,
  retry: 2,
  terminate: 1,
  kill: 3,
  pause: 3,
  resume: 4,
  cancel: 2,
  expire: 1,
  budget: 2,
  delete: 2,
  deleteInput: 1,
  price: 2,
};
type Action = keyof typeof TIMES;
const ACTIONS = Object.entries(TIMES).flatMap(([action, times]) =>
  Array<Action>(times).fill(action as Action),
);
/** The bytes that are left on a disk that is filled. A server keeps the last part of them for its database. */
const ROOMS = [0, 0, 4_096, 40_000, 400_000];
const MAX_REFUSALS = 10;
export const FINAL = ["completed", "failed", "cancelled", "expired"];

interface Parts {
  readonly seed: number;
  readonly folder: string;
  readonly upstream: TestUpstream;
  /** Remembers an ended batch before it is deleted; resolves to false when it must stay. */
  readonly remember: (batch: Known) => Promise<boolean>;
  /** Ends the window of a batch now; windows do not end when it is left out. */
  readonly endWindow?: (batch: Pick<Known, "id">) => Promise<void> | void;
  /** The servers that share the work; one when it is left out. */
  readonly serverCount?: number;
  /** What fills the disk of the data again and again; the disk has room when it is left out. */
  readonly ballast?: Ballast;
  /** The places of their data; a folder when it is left out. */
  readonly places?: Readonly<Record<string, unknown>>;
}

interface Report {
  readonly data: readonly { readonly cost: { readonly amount: string } }[];
}

interface Server {
  readonly batchd: BatchdProcess;
  readonly url: string;
}

export class AnyOrder {
  readonly batches: Known[] = [];
  readonly #parts: Parts;
  readonly #random: () => number;
  readonly #done: string[] = [];
  #keyNumber = 0;
  #priceNumber = 0;
  #servers: Server[] = [];

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#random = seededRandom(parts.seed);
  }

  async start(): Promise<void> {
    this.#configure();
    const { serverCount = 1 } = this.#parts;
    this.#servers = await Promise.all(Array.from({ length: serverCount }, () => this.#open()));
  }

  /** A server that starts, or looks for a change, finds one of the configurations as a whole. */
  #configure(): void {
    const { folder, upstream, places } = this.#parts;
    const upstreams = ["a", "b"].map((model) => ({
      name: model,
      base_url: upstream.url,
      models: [model],
      max_concurrency: 5,
    }));
    const per_request = PRICES[this.#priceNumber++ % PRICES.length];
    const prices = [{ model: "*", per_request, currency: "EUR" }];
    const config = {
      data_dir: join(folder, "data"),
      prices,
      upstreams,
      ...places,
      limits: { allow_mixed_models: true },
      engine: { stop_grace_seconds: 0, lease_seconds: 3 },
    };
    const path = `${this.#configPath}.new`;
    writeFileSync(path, JSON.stringify(config));
    renameSync(path, this.#configPath);
  }

  async end(): Promise<void> {
    for (const { batchd } of this.#servers) await batchd.kill("SIGTERM");
  }

  /** Does the next thing, and lets the server work for a while. Some of the time a server is killed before its answer. */
  async step(): Promise<void> {
    if (this.#parts.ballast !== undefined) this.#changeRoom(this.#parts.ballast);
    const action = this.#present.length === 0 ? "upload" : this.#pick(ACTIONS);
    const isKilled = this.#below(4) === 0 && action !== "kill" && action !== "terminate";
    const killed = isKilled ? this.#replace("SIGKILL", this.#below(40)) : null;
    await this.#act(action);
    await killed;
    const present = this.#present;
    if (present.length === 0) return;
    for (let left = this.#below(60); left > 0; left--) await this.look(this.#pick(present));
  }

  /** Resumes what is paused, until all batches have ended. */
  async finish(): Promise<void> {
    this.#parts.ballast?.remove();
    // A batch that waits for another one comes after it.
    for (const batch of this.#present) {
      await expect.poll(() => this.#goOn(batch), { message: this.about(batch) }).toBe(true);
    }
  }

  async deleteAll(): Promise<void> {
    for (const batch of this.#present) await this.#delete(batch);
  }

  async look({ id }: Pick<Known, "id">): Promise<Shown> {
    return (await this.#ask(`batches/${id}`)).json() as Promise<Shown>;
  }

  /** What all batches cost, also those that are deleted. */
  async cost(): Promise<string> {
    const report = await (await this.#ask("usage?group_by=project")).json();
    return (report as Report).data[0]?.cost.amount ?? "0";
  }

  async rows(fileId: string | null): Promise<ResultRow[]> {
    if (fileId === null) return [];
    const text = await (await this.#ask(`files/${fileId}/content`)).text();
    const rows = text.split("\n").slice(0, -1);
    return rows.map((row) => JSON.parse(row) as ResultRow);
  }

  about({ id }: Pick<Known, "id">): string {
    return `seed ${this.#parts.seed}, ${id}, after:\n${this.#done.join("\n")}`;
  }

  get #present(): readonly Known[] {
    return this.batches.filter(({ isDeleted }) => !isDeleted);
  }

  #below(limit: number): number {
    return Math.floor(this.#random() * limit);
  }

  #pick<T>(of: readonly T[]): T {
    return of[this.#below(of.length)] as T;
  }

  get #configPath(): string {
    return join(this.#parts.folder, "batchd.yaml");
  }

  async #open(): Promise<Server> {
    const { ballast } = this.#parts;
    const batchd = new BatchdProcess(["serve", "--port", "0", "--config", this.#configPath]);
    try {
      return { batchd, url: await batchd.listening() };
    } catch (error) {
      // A full disk may have no room for a start.
      if (ballast?.isThere !== true) throw error;
      ballast.remove();
      return this.#open();
    }
  }

  #changeRoom(ballast: Ballast): void {
    const change = this.#pick(["fill", "free", "keep"]);
    const leftBytes = this.#pick(ROOMS);
    if (change === "fill") ballast.fillBut(leftBytes);
    if (change === "free") ballast.remove();
    this.#done.push(`${change} the disk, but for ${leftBytes} bytes`);
  }

  /** Ends one of the servers after a while, and starts another in its place. */
  async #replace(signal: NodeJS.Signals, afterMs = 0): Promise<void> {
    const server = this.#pick(this.#servers);
    this.#done.push(`${signal} in ${afterMs} ms`);
    await sleep(afterMs);
    await server.batchd.kill(signal);
    this.#servers[this.#servers.indexOf(server)] = await this.#open();
  }

  /** Asks any of the servers. Asks again, under the same key, where it was killed before its answer, or has no room. */
  async #ask(path: string, body?: object, method = body && "POST"): Promise<Response> {
    const sent = body instanceof FormData ? body : JSON.stringify(body);
    const key = `${this.#keyNumber++}`;
    const { ballast } = this.#parts;
    let refusals = 0;
    for (let turn = this.#below(this.#servers.length); ; turn++) {
      const { url } = this.#servers[turn % this.#servers.length]!;
      const asked = { method: method ?? "GET", body: sent ?? null };
      const headers = { "idempotency-key": key };
      try {
        const answer = await fetch(`${url}/v1/${path}`, { ...asked, headers });
        const text = await answer.text();
        const isFull = ballast !== undefined && text.includes("disk of the server is full");
        if (isFull && ++refusals === MAX_REFUSALS) ballast.remove();
        if (!isFull && !text.includes("idempotency_key_in_use")) return new Response(text, answer);
      } catch {
        // The next server has its place.
      }
      await sleep(50);
    }
  }

  async #act(action: Action): Promise<void> {
    if (action === "upload") return this.#upload();
    if (action === "retry") return this.#retry();
    const batch = this.#pick(this.#present.slice(-5));
    this.#done.push(`${action} ${batch.id}`);
    if (action === "kill" || action === "terminate") {
      await this.#replace(action === "kill" ? "SIGKILL" : "SIGTERM");
    } else if (action === "expire") {
      await this.#parts.endWindow?.(batch);
    } else if (action === "delete") {
      await this.#delete(batch);
    } else if (action === "deleteInput") {
      batch.isInputDeleted = true;
      await this.#ask(`files/${batch.inputId}`, undefined, "DELETE");
    } else if (action === "price") {
      this.#configure();
    } else if (action !== "budget") {
      await this.#ask(`batches/${batch.id}/${action}`, {});
    } else if (batch.highestBudget !== null) {
      await this.#setBudget(batch, 1 + this.#below(300));
    }
  }

  async #upload(): Promise<void> {
    const { texts, lines } = this.#newLines();
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new File([`${texts.join("\n")}\n`], "input.jsonl"));
    const { id } = (await (await this.#ask("files", form)).json()) as { id: string };
    await this.#create({ input_file_id: id }, { from: null, lines });
  }

  async #retry(): Promise<void> {
    const source = this.#pick(this.#present);
    const lines = this.#pick(["failed", "failed", "succeeded", "all"] as const);
    const merge = this.#below(3) > 0;
    const from = { batch: source.id, lines, merge };
    await this.#create({ from }, { from: { source, lines, merge }, lines: new Map() });
  }

  /** A retry may be refused, because its source has no such lines. */
  async #create(
    { from, ...input }: { readonly from?: object; readonly input_file_id?: string },
    known: Pick<Known, "from" | "lines">,
  ): Promise<void> {
    const budget = this.#below(4) === 0 ? 5 + this.#below(100) : null;
    const x_batchd = {
      ...(from !== undefined && { from }),
      ...(this.#below(3) === 0 && { dedupe: true }),
      ...(this.#below(4) === 0 && { sample: 1 + this.#below(20) }),
      ...(budget !== null && { budget: `${budget}` }),
    };
    const response = await this.#ask("batches", { ...BASE, ...input, x_batchd });
    const { id, input_file_id: inputId } = (await response.json()) as Shown;
    this.#done.push(`${response.status} create ${id} ${JSON.stringify(x_batchd)}`);
    expect(response.ok || from !== undefined).toBe(true);
    if (!response.ok) return;
    const untouched = { highestBudget: budget, isInputDeleted: false, isDeleted: false };
    this.batches.push({ id, inputId, ...known, ...untouched });
  }

  /** Makes lines of which some ask the same, with blank ones between them. */
  #newLines() {
    const batch = this.batches.length;
    const lineCount = 1 + this.#below(this.#pick([10, 100, 700]));
    const questionCount = this.#pick([3, 20, 1_000]);
    // A small disk has no room for them.
    const isLarge = lineCount <= 5 && this.#below(2) === 0 && this.#parts.ballast === undefined;
    const kinds = isLarge ? LARGE_ANSWERS : TROUBLES;
    const texts: string[] = [];
    const lines = new Map<number, Line>();
    while (lines.size < lineCount) {
      while (this.#below(30) === 0) texts.push("");
      const n = this.#below(questionCount);
      const question = `batch ${batch} question ${n}. ${kinds[n % (isLarge ? 3 : 17)] ?? ""}`;
      const customId = `${batch}-${lines.size}`;
      const body = { user: `${batch}/${n}`, model: n % 5 === 0 ? "b" : "a" };
      texts.push(chatLine(customId, question, body));
      lines.set(texts.length, { customId, question });
    }
    return { texts, lines };
  }

  async #delete(batch: Known): Promise<void> {
    if (!(await this.#parts.remember(batch))) return;
    const { status } = await this.#ask(`batches/${batch.id}?files=input`, undefined, "DELETE");
    // The answer of a server that was killed may have been lost.
    expect([200, 404], this.about(batch)).toContain(status);
    batch.isDeleted = true;
  }

  async #setBudget(batch: Known, budget: number): Promise<void> {
    const { ok } = await this.#ask(`batches/${batch.id}`, { budget: `${budget}` });
    if (ok) batch.highestBudget = Math.max(batch.highestBudget ?? 0, budget);
  }

  /** Resolves to whether the batch has ended. */
  async #goOn(batch: Known): Promise<boolean> {
    const shown = await this.look(batch);
    if (FINAL.includes(shown.status)) return true;
    const { paused } = shown.x_batchd;
    if (paused?.reason === "budget") await this.#setBudget(batch, 100_000);
    if (paused !== null) await this.#ask(`batches/${batch.id}/resume`, {});
    return false;
  }
}
