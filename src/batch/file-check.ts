/**
 * The rules for an input file, line by line and as a whole. The engine validates with them, and so does the command that
 * checks a file before anything is sent. It keeps no line.
 */
import type { BatchEndpoint } from "../contract/batch.ts";
import type { AcceptedModel, ModelRules } from "./file-models.ts";
import type { ParsedLine } from "./line.ts";
import { LineChecker, type LineFault } from "./line-check.ts";

export interface FileLimits {
  readonly maxFileBytes: number;
  readonly maxRequestsPerBatch: number;
  readonly maxLineBytes: number;
  readonly maxEmbeddingInputsPerBatch: number;
  /** Whether the lines of one batch may name several models. */
  readonly allowMixedModels: boolean;
}

export class FileCheck {
  readonly #limits: FileLimits;
  readonly #checker: LineChecker;
  #lineCount = 0;
  #hasFaults = false;

  constructor(
    endpoint: BatchEndpoint,
    limits: FileLimits,
    models: Omit<ModelRules, "allowsMixedModels">,
  ) {
    this.#limits = limits;
    const allowsMixedModels = limits.allowMixedModels;
    this.#checker = new LineChecker(endpoint, { ...models, allowsMixedModels });
  }

  get lineCount(): number {
    return this.#lineCount;
  }

  /** The model of the first good line; null until there is one. */
  get model(): string | null {
    return this.#checker.model;
  }

  /** The model of the last good line. */
  get latestModel(): AcceptedModel | null {
    return this.#checker.latestModel;
  }

  /** Counts a line that is not blank. Returns false for one that a batch has no room for. */
  countLine(): boolean {
    this.#lineCount++;
    return this.#lineCount <= this.#limits.maxRequestsPerBatch;
  }

  /** Returns the fault of a line; null for a good one. `parsed` is null for bytes that are no JSON object. */
  findFault(bytes: Buffer, parsed: ParsedLine | null): LineFault | null {
    const fault = this.#checker.findFault(bytes, parsed);
    if (fault !== null) this.#hasFaults = true;
    return fault;
  }

  /** Returns the fault of a line that is longer than allowed. */
  findTooLong(): LineFault {
    this.#hasFaults = true;
    return {
      code: "line_too_long",
      message: `This line is longer than the ${this.#limits.maxLineBytes} bytes that a request may have.`,
      param: null,
    };
  }

  /** Returns the fault of the file as a whole, once all lines are counted; null if it has none. */
  findFileFault(): LineFault | null {
    const { maxRequestsPerBatch, maxEmbeddingInputsPerBatch } = this.#limits;
    const { model, inputCount } = this.#checker;
    if (this.#lineCount > maxRequestsPerBatch) {
      return {
        code: "too_many_requests",
        message: `The input file holds ${this.#lineCount} requests. A batch may hold at most ${maxRequestsPerBatch}.`,
        param: null,
      };
    }
    if (inputCount > maxEmbeddingInputsPerBatch) {
      return {
        code: "too_many_inputs",
        message: `The input file holds ${inputCount} inputs. The requests of an embeddings batch may hold at most ${maxEmbeddingInputsPerBatch} together.`,
        param: null,
      };
    }
    if (this.#hasFaults || (this.#lineCount > 0 && model !== null)) return null;
    return {
      code: "empty_file",
      message:
        "The input file is empty. Please ensure that the batch contains at least one request.",
      param: null,
    };
  }
}

/** The fault of a file with too many bytes. */
export const fileTooLarge = (maxBytes: number): LineFault => ({
  code: "file_too_large",
  message: `The batch input file is larger than the ${maxBytes} maximum.`,
  param: null,
});
