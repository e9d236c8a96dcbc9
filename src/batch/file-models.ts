/**
 * Keeps the models that the lines of one input file ask for, each with the route that it had when it was first seen.
 *
 * Nearly every line names the model of the line before it, in the same bytes, and most other names have been seen too.
 * So only a new spelling is decoded, and only its route is looked up.
 */
import { MAX_MODEL_BYTES } from "../contract/create-batch.ts";
import { isSame } from "../text/json.ts";
import { leavesModelOpen, modelOf, type ParsedLine } from "./line.ts";

export interface ModelRules {
  /** Returns the same key for models that the same targets serve; null for a model that no target serves. */
  readonly routeKeyOf: (model: string) => string | null;
  /** Returns one sentence that helps with a model that no target serves; null when there is nothing to say. */
  readonly hintFor?: (model: string) => string | null;
  /** The model for lines that name none. */
  readonly defaultModel: string | null;
  /** Whether the lines of one batch may name different models. */
  readonly allowsMixedModels: boolean;
}

/** The model that a line asks for. */
export interface AskedModel {
  readonly name: string;
  /** The bytes of the name in the line, with its quotes. */
  readonly spelled: Buffer;
  /** The key of the route; null for a spelling that is new. */
  readonly routeKey: string | null;
}

/** A model whose line passed the check. */
export interface AcceptedModel extends AskedModel {
  readonly routeKey: string;
}

/** The number of spellings to remember: a file with a new name on each line must not fill the memory. */
const MAX_REMEMBERED = 256;
/** The longest spelling of a name of the allowed length: each character escaped, and two quotes. */
const MAX_SPELLED_BYTES = 6 * MAX_MODEL_BYTES + 2;
/** The key for all spellings of a missing model. */
const OPEN = Buffer.from('""');

/** Returns null for a model that no target serves, and for a text that is too long for a name. */
export const servedBy = (routeKeyOf: ModelRules["routeKeyOf"], model: string): string | null =>
  Buffer.byteLength(model) <= MAX_MODEL_BYTES ? routeKeyOf(model) : null;

export class FileModels {
  readonly #rules: ModelRules;
  readonly #remembered = new Map<string, AcceptedModel>();
  #first: AcceptedModel | null = null;
  #latest: AcceptedModel | null = null;

  constructor(rules: ModelRules) {
    this.#rules = rules;
  }

  /** The model of the first accepted line. */
  get first(): AcceptedModel | null {
    return this.#first;
  }

  /** The model of the last accepted line. */
  get latest(): AcceptedModel | null {
    return this.#latest;
  }

  /** Returns null when neither the line nor a default names a model. */
  read(bytes: Buffer, line: ParsedLine): AskedModel | null {
    const { model } = line;
    const latest = this.#latest;
    if (model !== null && latest !== null) {
      if (isSame(bytes, model.start, model.end, latest.spelled)) return latest;
    }
    const isOpen = model === null || leavesModelOpen(bytes, line);
    const spelled = isOpen ? OPEN : bytes.subarray(model.start, model.end);
    const remembered =
      spelled.length > MAX_SPELLED_BYTES
        ? undefined
        : this.#remembered.get(spelled.toString("latin1"));
    if (remembered !== undefined) return remembered;
    const name = modelOf(bytes, line, this.#rules.defaultModel);
    return name === null ? null : { name, spelled, routeKey: null };
  }

  /** Makes `asked` the model of the line, or returns the reason for which it cannot be. */
  accept(asked: AskedModel): "not_served" | "mismatched" | null {
    if (asked === this.#latest) return null;
    const routeKey = asked.routeKey ?? servedBy(this.#rules.routeKeyOf, asked.name);
    if (routeKey === null) return "not_served";
    const isMixed = this.#first !== null && asked.name !== this.#first.name;
    if (isMixed && !this.#rules.allowsMixedModels) return "mismatched";
    this.#latest = isAccepted(asked) ? asked : this.#remember({ ...asked, routeKey });
    this.#first ??= this.#latest;
    return null;
  }

  #remember(model: AcceptedModel): AcceptedModel {
    // The spelling is a view of a larger piece of the file. Without a copy, the whole piece would stay in memory.
    const own = { ...model, spelled: Buffer.from(model.spelled) };
    if (this.#remembered.size < MAX_REMEMBERED) {
      this.#remembered.set(own.spelled.toString("latin1"), own);
    }
    return own;
  }
}

const isAccepted = (model: AskedModel): model is AcceptedModel => model.routeKey !== null;
