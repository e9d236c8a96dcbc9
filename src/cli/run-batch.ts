/**
 * The batch of a run in its folder: the one of an earlier start, or a new one. Its metadata keep what a later start has to know:
 * which input it has, which model server has answered to it, and whether its results are where the user wants them.
 */
import { createHash } from "node:crypto";
import { createReadStream, existsSync } from "node:fs";
import type { Batch } from "../batch/batch.ts";
import { CommandFailure } from "../client/failure.ts";
import type { InputFile } from "../client/input.ts";
import type { ShownBatch } from "../client/shown-batch.ts";
import { findUpstreamKey } from "../config/client.ts";
import type { Config } from "../config/schema.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import { DEFAULT_PROJECT } from "../contract/key.ts";
import { completionWindowMs } from "../contract/window.ts";
import { PublicError } from "../errors.ts";
import { NO_DETAILS, presentBatch } from "../http/present.ts";
import type { Workshop } from "../runtime/runtime.ts";
import { complain } from "../terminal/lines.ts";
import { count, lines } from "../words.ts";
import type { RunFlags } from "./run-config.ts";

/** The input of a run is refused, so its folder has nothing to go on with. */
export class RunRefused extends CommandFailure {}

/** What a run is asked to do. */
export interface AskedRun {
  readonly input: InputFile;
  /** The digest of the input. */
  readonly sha256: string;
  readonly dataDir: string;
  /** The file of the answers; null for a pipe. */
  readonly outputFile: string | null;
  readonly endpoint: BatchEndpoint;
  readonly config: Config;
  readonly flags: RunFlags;
}

/** The key of the metadata that says which input a batch has. */
const INPUT_KEY = "input_sha256";
/** The key of the metadata that says which address and key a model server has answered to. */
const ANSWERED_KEY = "answered_to";
/** The key of the metadata that says that the results are where the user wants them. */
const WRITTEN_KEY = "results_written";

export class RunBatch {
  readonly #workshop: Workshop;
  readonly #begun: Batch;
  /** A digest of the address and the key of the model server. */
  readonly #server: string;
  #hasAnswered: boolean;

  private constructor(workshop: Workshop, begun: Batch, { upstream = "" }: RunFlags) {
    this.#workshop = workshop;
    this.#begun = begun;
    const asked = JSON.stringify([upstream, findUpstreamKey(upstream).apiKey]);
    this.#server = createHash("sha256").update(asked).digest("hex").slice(0, 16);
    this.#hasAnswered = begun.metadata?.[ANSWERED_KEY] === this.#server;
  }

  /** Goes on with the batch of an earlier start, or makes one. */
  static async open(workshop: Workshop, run: AskedRun, signal: AbortSignal): Promise<RunBatch> {
    const begun =
      (await begunBatch(workshop, run)) ??
      (await makeBatch(workshop, run, signal).catch((cause: unknown) => {
        throw cause instanceof PublicError ? new RunRefused(cause.message, { cause }) : cause;
      }));
    return new RunBatch(workshop, begun, run.flags);
  }

  /** Returns the batch as it is now, as a server would show it. */
  async read(): Promise<ShownBatch> {
    const batch = await this.#find();
    const [forecasts, costs] = await Promise.all([
      this.#workshop.forecastsFor([batch]),
      this.#workshop.costsFor([batch]),
    ]);
    const shown = presentBatch(batch, {
      ...NO_DETAILS,
      forecast: forecasts.get(batch.id) ?? null,
      cost: costs.get(batch.id) ?? null,
    });
    // What is made of a key stays in the folder: others may read a log with what `--json` prints.
    const { [ANSWERED_KEY]: _, [WRITTEN_KEY]: __, ...metadata } = shown.metadata ?? {};
    return { ...shown, metadata };
  }

  /** Returns whether the model server has answered, at this start or before, and remembers it. */
  async hasAnswered({ request_counts: now }: ShownBatch): Promise<boolean> {
    const { counts } = this.#begun;
    const count = (now?.completed ?? 0) + (now?.failed ?? 0);
    if (!this.#hasAnswered && count > counts.completed + counts.failed) {
      await this.#remember(ANSWERED_KEY, this.#server);
      this.#hasAnswered = true;
    }
    return this.#hasAnswered;
  }

  rememberWritten(): Promise<void> {
    return this.#remember(WRITTEN_KEY, "true");
  }

  async #remember(key: string, value: string): Promise<void> {
    const { metadata, id } = await this.#find();
    const asked = { project: DEFAULT_PROJECT, id };
    await this.#workshop.batches.update(asked, { metadata: { ...metadata, [key]: value } });
  }

  #find(): Promise<Batch> {
    return this.#workshop.batches.find({ project: DEFAULT_PROJECT, id: this.#begun.id });
  }
}

async function begunBatch({ batches }: Workshop, run: AskedRun): Promise<Batch | null> {
  const { sha256, dataDir, endpoint, flags } = run;
  const { data } = await batches.list({ project: DEFAULT_PROJECT, limit: 1, after: null });
  const [found] = data;
  if (found === undefined) {
    assertReplaceable(run);
    return null;
  }
  const isSame =
    found.metadata?.[INPUT_KEY] === sha256 &&
    found.endpoint === endpoint &&
    (flags.model === undefined || found.defaultModel === flags.model);
  if (!isSame) {
    throw new CommandFailure(
      `${dataDir} has a run of another input or with other options. Delete it to begin anew, or name another folder with --data-dir`,
    );
  }
  // What was wrong, such as the models of a configuration, may be mended. All lines are sent again only after their results
  // were written: a run that ended before that, at a full disk, has paid for them.
  const isWritten = found.metadata?.[WRITTEN_KEY] !== undefined;
  if (found.status === "failed" || (flags.overwrite && isWritten)) return null;
  const { total, completed, failed } = found.counts;
  if (total > 0) complain(`going on after ${count(completed + failed)} of ${lines(total)}`);
  return found;
}

/** Refuses to send everything again because a finished run is started once more. */
export function assertReplaceable({ outputFile, flags }: Pick<AskedRun, "outputFile" | "flags">) {
  if (outputFile === null || flags.overwrite || !existsSync(outputFile)) return;
  throw new CommandFailure(
    `${outputFile} is there already; --overwrite sends all lines again and replaces it`,
  );
}

const ORIGIN = { requestId: "run", traceparent: null };

/** The input is copied first, which takes a while for one of gigabytes. */
async function makeBatch(
  { files, batches }: Workshop,
  run: AskedRun,
  signal: AbortSignal,
): Promise<Batch> {
  const { input, sha256, endpoint, config, flags } = run;
  const file = await files.receive(DEFAULT_PROJECT, {
    filename: input.name,
    content: createReadStream(input.path),
    requestBytes: input.bytes,
    details: async () => ({ purpose: "batch", expiresAfterSeconds: null }),
    origin: ORIGIN,
    signal,
  });
  return batches.create(DEFAULT_PROJECT, {
    inputFileId: file.id,
    source: null,
    endpoint,
    completionWindow: longestOf(config.limits.completion_windows),
    metadata: { [INPUT_KEY]: sha256 },
    outputExpiresAfterSeconds: null,
    priority: 0,
    budget: null,
    defaultModel: flags.model ?? null,
    sample: null,
    dedupe: null,
    deliver: [],
    origin: ORIGIN,
  });
}

const longestOf = (windows: readonly string[]): string =>
  windows.toSorted((a, b) => (completionWindowMs(b) ?? 0) - (completionWindowMs(a) ?? 0))[0] ??
  "24h";
