/** Batches that several checks look at. Each one is created when the first check asks for it. */
import assert from "node:assert/strict";
import type { TestUpstream } from "../test/support/upstream.ts";
import { chatBody, HASTY, line, NARROW } from "./lines.ts";
import { type Answer, type Batch, type Row, type Server, until } from "./server.ts";

/** A batch with its first and its last answer, and its files. */
export interface Story {
  readonly created: Batch;
  readonly final: Batch;
  readonly output: readonly Row[];
  readonly errors: readonly Row[];
}

/** A cancelled batch, with the answer to the cancellation. */
export interface Cancellation extends Story {
  readonly cancelling: Answer;
  /** The batch just before the cancellation. */
  readonly before: Batch;
}

const once = <T>(create: () => Promise<T>): (() => Promise<T>) => {
  let created: Promise<T> | null = null;
  return () => {
    created ??= create();
    return created;
  };
};

const narrowLine = (id: string, content: string) =>
  line(id, content, { body: chatBody(content, { user: id, model: NARROW }) });

const LONG_FILE_LINES = 40_000;
const BUSY_BATCHES = 6;

/** The servers at which they take place. */
export interface Stage {
  /** Asks for no key and serves every model. */
  readonly main: Server;
  readonly upstream: TestUpstream;
}

export class Stories {
  readonly #stage: Stage;

  constructor(stage: Stage) {
    this.#stage = stage;
  }

  /** A batch of three good lines. */
  readonly clean = once(() =>
    this.#run([line("a", "one"), line("b", "two two"), line("c", "three")], {
      metadata: { kind: "clean", owner: "me" },
    }),
  );

  /** A batch of a good line, two lines that the model server refuses, and another good one. */
  readonly mixed = once(() =>
    this.#run([
      line("good-1"),
      line("bad-1", "[[status 400]]"),
      line("bad-2", "[[status 404]]"),
      line("good-2"),
    ]),
  );

  readonly allBad = once(() =>
    this.#run([line("bad-1", "[[status 400]]"), line("bad-2", "[[status 422]]")]),
  );

  /** A batch of good and faulty lines, numbered from 1. */
  readonly faulty = once(() =>
    this.#run([
      line("good"),
      '{"custom_id":',
      line("good"),
      line("other", "hi", { url: "/v1/embeddings" }),
      "[1]",
    ]),
  );

  readonly missingInput = once(async () => {
    const { main } = this.#stage;
    const created = (await main.create("file-that-never-was")).json as Batch;
    return this.#ended(created);
  });

  /** A batch whose model never answers. It takes a while, because there are five attempts. */
  readonly timedOut = once(() =>
    this.#run([line("slow", "[[hang]]", { body: chatBody("[[hang]]", { model: HASTY }) })]),
  );

  /** A cancelled batch with one answer, one request in flight and one unsent line. */
  readonly cancelledWhileRunning = once(() => {
    const lines = [
      narrowLine("done", "quick"),
      narrowLine("flying", "[[hang]]"),
      narrowLine("waiting", "never"),
    ];
    return this.#cancelled(lines, ({ request_counts }) => request_counts.completed === 1);
  });

  readonly cancelledBeforeAnyAnswer = once(() =>
    this.#cancelled(
      [narrowLine("flying", "[[hang]]"), narrowLine("waiting", "never")],
      ({ status }) => status === "in_progress",
    ),
  );

  readonly cancelledWhileValidating = async (): Promise<Cancellation> =>
    (await this.#whileValidatorIsBusy()).cancelled;

  /** A batch whose input was deleted before it was validated. */
  readonly deletedInput = async (): Promise<Batch> => (await this.#whileValidatorIsBusy()).deleted;

  /** The status of a batch as of the answer to a later `POST /openai/v1/batches`. */
  readonly statusBeforeNext = async (): Promise<string> =>
    (await this.#whileValidatorIsBusy()).statusBeforeNext;

  /**
   * What can only be seen while a batch waits for its validation, all of it during one wait: three batches are validated side
   * by side, so later ones wait for these.
   */
  readonly #whileValidatorIsBusy = once(async () => {
    const { main } = this.#stage;
    const [unread, deletable] = [
      await main.upload([line("never")]),
      await main.upload([line("a")]),
    ];
    const lines = Array.from({ length: LONG_FILE_LINES }, (_, i) => line(`line-${i}`));
    const long = await main.upload([...lines, "not JSON"]);
    let last = "";
    for (let i = 0; i < BUSY_BATCHES; i++) last = String((await main.create(long)).json["id"]);
    const [{ before, cancelling }, orphan] = await Promise.all([
      this.#cancelledAtOnce(unread),
      this.#deletedAtOnce(deletable),
    ]);
    const asked = { input_file_id: "file-x", endpoint: "/v1/chat/completions" };
    assert.equal((await main.post("/openai/v1/batches", asked)).status, 200);
    const statusBeforeNext = (await main.batch(last)).status;
    const cancelled = { ...(await this.#ended(before)), before, cancelling };
    return { cancelled, deleted: await main.ended(orphan.id), statusBeforeNext };
  });

  async #cancelledAtOnce(file: string): Promise<Pick<Cancellation, "before" | "cancelling">> {
    const { main } = this.#stage;
    const before = (await main.create(file)).json as Batch;
    return { before, cancelling: await main.call("POST", `/v1/batches/${before.id}/cancel`) };
  }

  async #deletedAtOnce(file: string): Promise<Batch> {
    const { main } = this.#stage;
    const { json } = await main.create(file);
    await main.call("DELETE", `/v1/files/${file}`);
    return json as Batch;
  }

  /** Starts the stories that take a while. */
  begin(): void {
    for (const story of [this.timedOut, this.cancelledWhileRunning]) story().catch(() => {});
  }

  async #run(lines: readonly string[], more: object = {}): Promise<Story> {
    return this.#ended(await this.#stage.main.submit(lines, more));
  }

  async #ended(created: Batch): Promise<Story> {
    const { main } = this.#stage;
    const final = await main.ended(created.id);
    const output = await main.rows(final.output_file_id);
    return { created, final, output, errors: await main.rows(final.error_file_id) };
  }

  async #cancelled(
    lines: readonly string[],
    isTime: (batch: Batch) => boolean,
  ): Promise<Cancellation> {
    const { main, upstream } = this.#stage;
    const created = await main.submit(lines);
    const before = await main.reached(created.id, isTime);
    const hasFlying = () => upstream.inFlight > 0;
    await until("a request in flight", async () => hasFlying(), Boolean);
    const cancelling = await main.call("POST", `/v1/batches/${created.id}/cancel`);
    assert.equal(cancelling.status, 200, cancelling.text);
    return { ...(await this.#ended(created)), before, cancelling };
  }
}
