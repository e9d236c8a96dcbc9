/**
 * Reads the input of a batch beside the merge of its results, and says of each line which line has its body first. Which lines
 * were sent is not stored, so this finds it out again. It must never fail because of a damaged input: it ends at the first
 * bytes that are no line any more, because behind them the numbers of lines mean nothing. An error that may pass is thrown, as
 * the step is tried again.
 */
import type { Batch } from "../../batch/batch.ts";
import type { EqualBodies } from "../../batch/equal-bodies.ts";
import { read, timeForMore } from "../../resources/time-slice.ts";
import { LineSplitter, type SplitLine } from "../../text/split.ts";
import { parsedLine } from "../chunks/parsed-line.ts";
import { isLost } from "../journal/segment.ts";
import { type KeptRowsDeps, NumbersInSource } from "./merged-lines.ts";

export interface RepeatedLinesDeps extends KeptRowsDeps {
  readonly inputBlobKey: string;
}

/** A line of the input, which may repeat the body of one before it. */
export interface RepeatedLine {
  readonly number: number;
  /** It is null when it cannot be read any more. */
  readonly customId: Buffer | null;
  /** The number of the first line with its body; null for the first one. */
  readonly first: number | null;
}

/** The lines of the input were checked when the batch was validated. */
const NO_LIMIT = Number.MAX_SAFE_INTEGER;

/** The lines of the input, up to the end of what can be read of it. */
export class RepeatedLines {
  readonly #deps: RepeatedLinesDeps;
  readonly #groups: AsyncGenerator<readonly RepeatedLine[]>;
  #group: readonly RepeatedLine[] = [];
  #at = 0;

  constructor(batch: Batch, bodies: EqualBodies, deps: RepeatedLinesDeps) {
    this.#groups = linesOf(batch, bodies, deps);
    this.#deps = deps;
  }

  /** The next line; null at the end, and before {@link fill}. */
  get head(): RepeatedLine | null {
    return this.#group[this.#at] ?? null;
  }

  take(): void {
    this.#at++;
  }

  /** Reads on when all lines that were read are taken. */
  async fill(): Promise<void> {
    while (this.head === null) {
      const next = await this.#next();
      if (next === null) return;
      this.#group = next;
      this.#at = 0;
    }
  }

  async #next(): Promise<readonly RepeatedLine[] | null> {
    const { isLastTry } = this.#deps;
    try {
      const next = await this.#groups.next();
      return next.done === true ? null : next.value;
    } catch (error) {
      if (!isLost(error) && !isLastTry) throw error;
      return null;
    }
  }

  async close(): Promise<void> {
    await this.#groups.return(undefined);
  }
}

/**
 * Yields the lines of the input in order, with the numbers that they have in the results, up to the first bytes that are no line
 * any more.
 */
async function* linesOf(
  batch: Batch,
  bodies: EqualBodies,
  deps: RepeatedLinesDeps,
): AsyncGenerator<readonly RepeatedLine[]> {
  const numbers = batch.source?.merge == null ? null : new NumbersInSource(batch, deps);
  const splitter = new LineSplitter(NO_LIMIT, { start: 0, firstLine: 1 });
  const read = async ({ bytes, number: ownNumber }: SplitLine): Promise<RepeatedLine | null> => {
    const parsed = bytes === null ? null : await parsedLine(bytes);
    if (bytes === null || !parsed?.body || parsed.customId === null) return null;
    const number = numbers === null ? ownNumber : await numbers.next(bytes);
    if (number === null) return null;
    const { start, end } = parsed.customId;
    const body = bytes.subarray(parsed.body.start, parsed.body.end);
    const first = await firstWithBody(bodies, body, number);
    return { number, first, customId: bytes.subarray(start, end) };
  };
  const pieces = async function* () {
    for await (const piece of deps.blobs.read(deps.inputBlobKey)) {
      yield splitter.push(piece as Buffer);
    }
    yield splitter.end();
  };
  try {
    for await (const lines of pieces()) {
      const group: RepeatedLine[] = [];
      for (const each of lines) {
        const line = await read(each);
        if (line !== null) group.push(line);
        else {
          yield group;
          return;
        }
        const pause = timeForMore();
        if (pause !== null) await pause;
      }
      yield group;
    }
  } finally {
    await numbers?.close();
  }
}

/**
 * Looks for an earlier line with an equal body, in slices where the body is long, because it would hold up the event loop. Returns
 * its number; null for a body that is new, which is remembered. Only a long body makes a promise.
 */
export function firstWithBody(
  bodies: EqualBodies,
  body: Buffer,
  lineNumber: number,
): number | null | Promise<number | null> {
  const digest = read(bodies.digesting, body);
  return digest instanceof Promise
    ? digest.then((whole) => bodies.firstWith(whole, lineNumber))
    : bodies.firstWith(digest, lineNumber);
}
