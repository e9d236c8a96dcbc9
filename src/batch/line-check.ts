/** Checks the lines of an input file, and reports faults in the words of the API. */
import { type BatchEndpoint, MAX_LISTED_FAULTS } from "../contract/batch.ts";
import {
  decodeStart,
  decodeString,
  type Extent,
  isObjectAt,
  isSame,
  isSpelled,
  isStringAt,
} from "../text/json.ts";
import { kindAt } from "../text/json-kind.ts";
import { isJson } from "../text/json-scan.ts";
import { holdsNoNumbers, NO_NUMBERS } from "../text/no-numbers.ts";
import { truncate } from "../text/truncate.ts";
import type { Fault } from "./batch.ts";
import { CustomIds } from "./custom-ids.ts";
import { type AcceptedModel, FileModels, type ModelRules } from "./file-models.ts";
import { beginsWithMark } from "./first-line.ts";
import { leavesModelOpen, type ParsedLine, parseLine } from "./line.ts";
import { textCountAt } from "./token-estimate.ts";

/** Returns whether a string value equals `text`, which is ASCII and has its quotes. */
const says = (bytes: Buffer, { start, end }: Extent, text: Buffer): boolean =>
  isSame(bytes, start, end, text) || isSpelled(bytes, start, end, text);

const NULL = Buffer.from("null");

const isLiteral = (bytes: Buffer, part: Extent | null, literal: Buffer) =>
  part !== null && isSame(bytes, part.start, part.end, literal);

/** Counts the texts that an `input` asks to embed. */
const countInputs = (bytes: Buffer, { input, inputCommaCount }: ParsedLine): number =>
  input === null ? 0 : textCountAt(bytes, { ...input, commaCount: inputCommaCount });

const isMissing = (bytes: Buffer, part: Extent | null) =>
  part === null || isLiteral(bytes, part, NULL);

export type LineFault = Omit<Fault, "line">;

const missing = (name: string): LineFault => ({
  code: "missing_required_parameter",
  message: `Missing required parameter: '${name}'.`,
  param: name,
});

const wrongType = (name: string, expected: string, got: string): LineFault => ({
  code: "invalid_type",
  message: `Invalid type for '${name}': expected ${expected}, but got ${got} instead.`,
  param: name,
});

const invalidRequest = (message: string, param: string): LineFault => ({
  code: "invalid_request",
  message,
  param,
});

/** The fault of a line whose model is open where there is no default, or is a value of another kind. */
const noModel = (bytes: Buffer, line: ParsedLine): LineFault =>
  line.model === null || leavesModelOpen(bytes, line)
    ? invalidRequest("Model parameter is required.", "body.model")
    : wrongType("body.model", "a string", kindAt(bytes, line.model));

/** The name of each endpoint in the message about `stream: true`. */
const ENDPOINT_TITLES: Readonly<Record<BatchEndpoint, string>> = {
  "/v1/chat/completions": "Chat Completions",
  "/v1/completions": "Completions",
  "/v1/embeddings": "Embeddings",
  "/v1/responses": "Responses",
  "/v1/moderations": "Moderations",
  "/v1/images/generations": "Images",
  "/v1/images/edits": "Images",
  "/v1/videos": "Videos",
};

const INVALID_JSON: LineFault = {
  code: "invalid_json_line",
  message: "This line is not parseable as valid JSON.",
  param: null,
};

/** A longer line is not looked at again for a hint. */
const MAX_HINTED_BYTES = 64 * 1024;

/** The fault of bytes that are no JSON object. */
function noRequest(bytes: Buffer): LineFault {
  const hint = hintForNoRequest(bytes);
  if (hint === null) return INVALID_JSON;
  return { ...INVALID_JSON, message: `${INVALID_JSON.message} (HINT: ${hint})` };
}

function hintForNoRequest(bytes: Buffer): string | null {
  if (beginsWithMark(bytes)) {
    return "It begins with a byte order mark. Save the file as UTF-8 without one.";
  }
  if (bytes.length > MAX_HINTED_BYTES) return null;
  if (isJson(bytes)) return "It is JSON, but not an object. Each line must be one.";
  return holdsNoNumbers(bytes) ? `It is ${NO_NUMBERS}` : null;
}

/** The fault of a line, or of the default model of a batch. */
export const modelNotFound = (
  model: string,
  param: string,
  hint: string | null = null,
): LineFault => ({
  code: "model_not_found",
  message: `The provided model '${truncate(model)}' is not supported by the Batch API.${hint === null ? "" : ` ${hint}`}`,
  param,
});

const mismatchedModel = (model: string): LineFault => ({
  code: "mismatched_model",
  message: `The model '${truncate(model)}' for this request does not match the rest of the batch. Each batch must contain requests for a single model.`,
  param: "body.model",
});

/**
 * Says why a body is refused that names a second model by the key `name`. Servers differ in which of the two they take, so a
 * project could reach a model that it may not use.
 */
export const secondModel = (name: string, param: string): string =>
  name === param
    ? `Duplicate parameter: '${name}' has two values.`
    : `Unknown parameter: '${name}'. The model is in '${param}'.`;

const inQuotes = (text: string) => Buffer.from(JSON.stringify(text));
const POST = inQuotes("POST");
const EMPTY = inQuotes("");

/** The longest spelling of a custom id. Each line of the results repeats the id, and spellings are compared. */
const MAX_CUSTOM_ID_BYTES = 64 * 1024;
/** The longest part of a text to decode. No message quotes as much. */
const MAX_QUOTED_BYTES = 4 * 1024;

/**
 * Checks the lines of one input file, in order. The checker remembers the custom ids, each at the cost of its length
 * and about 30 bytes, and the models. Constant parts of a line are compared as bytes, so a good line needs no decoding.
 */
export class LineChecker {
  readonly #endpoint: BatchEndpoint;
  /** The endpoint in its own spelling and in the spelling of Azure's clients. */
  readonly #urls: readonly Buffer[];
  readonly #customIds = new CustomIds();
  readonly #models: FileModels;
  readonly #hintFor: (model: string) => string | null;
  #inputCount = 0;
  #noRequestCount = 0;

  constructor(endpoint: BatchEndpoint, rules: ModelRules) {
    this.#endpoint = endpoint;
    this.#urls = [inQuotes(endpoint), inQuotes(endpoint.slice("/v1".length))];
    this.#models = new FileModels(rules);
    this.#hintFor = rules.hintFor ?? (() => null);
  }

  /** The model of the first good line; null until there is one. */
  get model(): string | null {
    return this.#models.first?.name ?? null;
  }

  /** The model of the last good line. */
  get latestModel(): AcceptedModel | null {
    return this.#models.latest;
  }

  /** The number of inputs in all lines of an embeddings batch so far that are JSON. Other batches have 0. */
  get inputCount(): number {
    return this.#inputCount;
  }

  /** Returns the most basic fault of a line; null for a good line. `line` is null for bytes that are no JSON object. */
  findFault(bytes: Buffer, line: ParsedLine | null = parseLine(bytes)): LineFault | null {
    // A file may have 50,000 such lines, and a batch lists its first faults alone.
    if (line === null)
      return ++this.#noRequestCount > MAX_LISTED_FAULTS ? INVALID_JSON : noRequest(bytes);
    if (this.#endpoint === "/v1/embeddings") this.#inputCount += countInputs(bytes, line);
    return (
      this.#customIdFault(bytes, line) ??
      this.#addressFault(bytes, line) ??
      this.#bodyFault(bytes, line)
    );
  }

  #customIdFault(bytes: Buffer, line: ParsedLine): LineFault | null {
    if (line.customId === null) return missing("custom_id");
    if (!isStringAt(bytes, line.customId.start)) {
      return wrongType("custom_id", "a string", kindAt(bytes, line.customId));
    }
    if (says(bytes, line.customId, EMPTY)) {
      return {
        code: "invalid_value",
        message: "Invalid 'custom_id': expected a non-empty string.",
        param: "custom_id",
      };
    }
    if (line.customId.end - line.customId.start > MAX_CUSTOM_ID_BYTES) {
      return {
        code: "invalid_value",
        message: `Invalid 'custom_id': longer than ${MAX_CUSTOM_ID_BYTES} bytes.`,
        param: "custom_id",
      };
    }
    if (!this.#customIds.addIfNew(bytes, line.customId)) {
      return {
        code: "duplicate_custom_id",
        message: `The custom_id '${truncate(decodeStart(bytes, line.customId, MAX_QUOTED_BYTES))}' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.`,
        param: "custom_id",
      };
    }
    return null;
  }

  #addressFault(bytes: Buffer, line: ParsedLine): LineFault | null {
    if (line.method === null) return missing("method");
    if (!says(bytes, line.method, POST)) {
      return {
        code: "invalid_method",
        message: "Invalid value for 'method': every request in a batch must be a 'POST'.",
        param: "method",
      };
    }
    if (line.url === null) return missing("url");
    const { url } = line;
    if (!this.#urls.some((each) => says(bytes, url, each))) {
      return {
        code: "invalid_url",
        message: "The URL provided for this request does not match the batch endpoint.",
        param: "url",
      };
    }
    return null;
  }

  #bodyFault(bytes: Buffer, line: ParsedLine): LineFault | null {
    if (line.body === null) return missing("body");
    if (!isObjectAt(bytes, line.body.start)) {
      return wrongType("body", "an object", kindAt(bytes, line.body));
    }
    if (line.otherModel !== null) {
      const name = `body.${decodeString(bytes, line.otherModel)}`;
      return invalidRequest(secondModel(name, "body.model"), name);
    }
    const model = this.#models.read(bytes, line);
    if (model === null) return noModel(bytes, line);
    if (this.#endpoint === "/v1/chat/completions" && isMissing(bytes, line.messages)) {
      return invalidRequest("Messages parameter is required.", "body.messages");
    }
    if (line.asksToStream) {
      return {
        code: "streaming_unsupported",
        message: `${ENDPOINT_TITLES[this.#endpoint]}: Streaming is not supported in the Batch API.`,
        param: "body.stream",
      };
    }
    switch (this.#models.accept(model)) {
      case "not_served":
        return modelNotFound(model.name, "body.model", this.#hintFor(model.name));
      case "mismatched":
        return mismatchedModel(model.name);
      case null:
        return null;
    }
  }
}
