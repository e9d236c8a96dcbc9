/**
 * One pass over the lines of an input file: checks each line, plans its chunk, and gives the verdict on the file.
 *
 * It must keep no line: memory holds the custom ids, the plan and the first `MAX_LISTED_FAULTS` faults. `intake.ts` reads the
 * bytes and records the verdict.
 */
import type { Batch, Duplicates, Fault, LineMark, StoredFile } from "../../batch/batch.ts";
import type { FaultCode } from "../../batch/codes.ts";
import { EqualBodies } from "../../batch/equal-bodies.ts";
import { FileCheck, type FileLimits } from "../../batch/file-check.ts";
import { inputTokensOf, type ParsedLine } from "../../batch/line.ts";
import type { LineFault } from "../../batch/line-check.ts";
import { NameCounter } from "../../batch/name-counter.ts";
import { Parameters } from "../../batch/parameters.ts";
import { type ChunkLimits, Planner } from "../../batch/plan.ts";
import { type PriceRule, priceFor } from "../../batch/price.ts";
import type { InputSummary } from "../../batch/run-summary.ts";
import { MAX_LISTED_FAULTS } from "../../contract/batch.ts";
import { readableText } from "../../contract/text.ts";
import type { BatchPlan } from "../../store/validation.ts";
import type { SplitLine } from "../../text/split.ts";
import { truncate } from "../../text/truncate.ts";
import { parsedLine } from "../chunks/parsed-line.ts";
import { firstWithBody } from "../results/repeated-lines.ts";
import type { ServedModels } from "./served-models.ts";

export interface IntakeLimits extends FileLimits {
  readonly chunk: ChunkLimits;
}

/** The faults that a file fails with. */
export interface Refusal {
  readonly ok: false;
  readonly faults: readonly Fault[];
}

export type Verdict = { readonly ok: true; readonly plan: BatchPlan } | Refusal;

/** Refuses a file for one fault of the whole. */
export const refusal = (fault: LineFault): Refusal => ({
  ok: false,
  faults: [{ ...fault, line: null }],
});

export const refusalFor = (
  code: FaultCode,
  message: string,
  param: string | null = null,
): Refusal => refusal({ code, message, param });

/** The rules for the lines of a batch. */
interface Rules {
  readonly limits: IntakeLimits;
  readonly models: ServedModels;
  /** The model for lines without one in a batch without a default of its own. */
  readonly defaultModel: string | null;
  /**
   * Whether a line, by its place from 0 among the lines that are sent, runs before the batch pauses; null when it does not
   * pause by itself.
   */
  readonly isSampled: ((place: number) => boolean) | null;
  readonly prices: readonly PriceRule[];
  readonly input: StoredFile;
}

const unpriced = (model: string, line: number): Fault => ({
  code: "budget_without_price",
  message: `The model '${truncate(model)}' has no price, so the budget of the batch could not be held.`,
  param: "body.model",
  line,
});

/** The result of one pass over the lines of an input file. */
export class InputReading {
  /** The marks of the file that numbers the lines, when it is not the input; null when it is. */
  readonly #givenMarks: readonly LineMark[] | null;
  /** The model is settled here and kept with the batch, so that a line asks for the same one whenever it is sent. */
  readonly #defaultModel: string | null;
  readonly #check: FileCheck;
  readonly #planner: Planner;
  readonly #isSampled: Rules["isSampled"];
  readonly #faults: Fault[] = [];
  #shift = 0;
  /** It is null for a batch without a budget, which needs no price. */
  readonly #prices: readonly PriceRule[] | null;
  #estimatedTokens = 0;
  readonly #input: StoredFile;
  readonly #models = new NameCounter();
  readonly #parameters = new Parameters();
  /** It is null for a batch that sends every line. */
  readonly #bodies: EqualBodies | null;
  #duplicates: Duplicates = { lineCount: 0, firstLine: null };

  constructor(batch: Batch, { limits, models, defaultModel, isSampled, prices, input }: Rules) {
    this.#input = input;
    this.#isSampled = isSampled;
    this.#bodies = batch.deduplicated === null ? null : new EqualBodies();
    this.#givenMarks = batch.source?.merge == null ? null : batch.lineMarks;
    this.#prices = batch.budget === null ? null : prices;
    this.#defaultModel = batch.defaultModel ?? defaultModel;
    const rules = { ...models, defaultModel: this.#defaultModel };
    this.#check = new FileCheck(batch.endpoint, limits, rules);
    this.#planner = new Planner(limits.chunk);
  }

  /**
   * Adds a line; `shift` is added to its number for all but its faults. Returns null when it is added already; only a
   * long line takes its time.
   */
  add(line: SplitLine, shift = 0): Promise<void> | null {
    this.#shift = shift;
    if (!this.#check.countLine()) return null;
    const { bytes } = line;
    if (bytes === null) {
      this.#judge(line, this.#check.findTooLong());
      return null;
    }
    const parsed = parsedLine(bytes);
    if (parsed instanceof Promise) {
      return parsed.then(async (found) => void (await this.#add(line, bytes, found)));
    }
    return this.#add(line, bytes, parsed);
  }

  #add(line: SplitLine, bytes: Buffer, parsed: ParsedLine | null): Promise<void> | null {
    const fault = this.#check.findFault(bytes, parsed);
    const body = parsed?.body ?? null;
    if (fault !== null || body === null || this.#bodies === null) {
      this.#takeNew(line, parsed, fault);
      this.#summarize(bytes, parsed);
      return null;
    }
    const take = (earlier: number | null) => {
      if (earlier === null) this.#takeNew(line, parsed, null);
      else this.#passOver(line);
      this.#summarize(bytes, parsed);
    };
    const own = bytes.subarray(body.start, body.end);
    const earlier = firstWithBody(this.#bodies, own, line.number + this.#shift);
    if (earlier instanceof Promise) return earlier.then(take);
    take(earlier);
    return null;
  }

  #takeNew(line: SplitLine, parsed: ParsedLine | null, fault: LineFault | null): void {
    if (parsed !== null) this.#estimatedTokens += inputTokensOf(parsed);
    this.#judge(line, fault);
  }

  #summarize(bytes: Buffer, parsed: ParsedLine | null): void {
    if (this.#faults.length > 0 || parsed === null) return;
    this.#models.add(this.#check.latestModel?.name ?? "");
    this.#parameters.add(bytes, parsed);
  }

  /** Leaves a line out of all chunks, because its body came before. Its row is made of the row of that line. */
  #passOver({ number, start }: SplitLine): void {
    const shifted = number + this.#shift;
    const { lineCount, firstLine } = this.#duplicates;
    this.#duplicates = { lineCount: lineCount + 1, firstLine: firstLine ?? shifted };
    this.#planner.passOver({ number: shifted, start });
  }

  #judge(line: SplitLine, fault: LineFault | null): void {
    if (fault !== null) {
      if (this.#faults.length < MAX_LISTED_FAULTS)
        this.#faults.push({ ...fault, line: line.number });
    } else if (this.#faults.length === 0) {
      this.#plan(line);
    }
  }

  verdict(): Verdict {
    const wrong = this.#check.findFileFault();
    if (wrong !== null) return refusal(wrong);
    const { model, lineCount: total } = this.#check;
    if (this.#faults.length > 0 || model === null) return { ok: false, faults: this.#faults };
    const { sampleChunkCount, ...planned } = this.#planner.finish();
    // Without a line to run after the pause, no chunk would end the batch.
    const isPaused = this.#isSampled !== null && sampleChunkCount < planned.chunks.length;
    const plan = {
      model: readableText(model),
      defaultModel: this.#defaultModel,
      total,
      ...planned,
      estimatedTokens: this.#estimatedTokens,
      lineMarks: this.#givenMarks ?? planned.lineMarks,
      duplicates: this.#duplicates,
      sampleChunkCount: isPaused ? sampleChunkCount : null,
      summary: this.#summary(total),
    };
    return { ok: true, plan };
  }

  #summary(lines: number): InputSummary {
    const { filename, bytes, sha256, copiedFrom = null } = this.#input;
    return {
      filename,
      bytes,
      sha256,
      lines,
      copiedFrom,
      models: this.#models.finish(),
      parameters: this.#parameters.finish(),
    };
  }

  #plan(line: SplitLine): void {
    const asked = this.#check.latestModel;
    if (asked === null) throw new Error("a line without a model was accepted");
    const { number, start, end } = line;
    if (this.#prices !== null && priceFor(this.#prices, asked.name) === null) {
      this.#faults.push(unpriced(asked.name, number));
      return;
    }
    const place = this.#check.lineCount - this.#duplicates.lineCount - 1;
    const isSampled = this.#isSampled?.(place) ?? false;
    const { name: model, routeKey } = asked;
    const shift = this.#shift;
    this.#planner.add({ number: number + shift, shift, start, end, model, routeKey, isSampled });
  }
}
