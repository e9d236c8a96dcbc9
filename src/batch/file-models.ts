/**
 * The models that the lines of one input file ask for, each with the route that it had when it was first seen.
 *
 * Nearly every line names the model of the line before it, in the same bytes, and any other has most likely been
 * seen too: a name is decoded, and its route looked up, only when its spelling is new.
 */
import { MAX_MODEL_BYTES } from "../contract/batch.ts";
import { isSame } from "./json.ts";
import { leavesModelOpen, modelOf, type ParsedLine } from "./line.ts";

export interface ModelRules {
  /** Equal for models that the same targets serve; null when none does. */
  readonly routeKeyOf: (model: string) => string | null;
  /** What may be said of a model that no target serves, in one sentence; null for nothing. */
  readonly hintFor?: (model: string) => string | null;
  /** What lines without a model ask for. */
  readonly defaultModel: string | null;
  /** Whether one batch may ask for several. */
  readonly allowsMixedModels: boolean;
}

/** What a line asks for. */
export interface AskedModel {
  readonly name: string;
  /** As it stands in the line, with its quotes. */
  readonly spelled: Buffer;
  /** Null for a spelling that is new. */
  readonly routeKey: string | null;
}

/** A model that was accepted. */
export interface AcceptedModel extends AskedModel {
  readonly routeKey: string;
}

/** Spellings that are remembered: a file of nothing but new names must not fill the memory. */
const MAX_REMEMBERED = 256;
/** The longest spelling of a name of allowed length: each character escaped, and two quotes. */
const MAX_SPELLED_BYTES = 6 * MAX_MODEL_BYTES + 2;
/** Stands for every spelling of a missing model. */
const OPEN = Buffer.from('""');

/** Null when no target serves it, or when it is too long to be a name. */
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

  /** Of the first line that was accepted. */
  get first(): AcceptedModel | null {
    return this.#first;
  }

  /** Of the last one. */
  get latest(): AcceptedModel | null {
    return this.#latest;
  }

  /** Null when neither the line nor a default names a model. */
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

  /** Makes it the model of the line, or says why it cannot be. */
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
    // What is spelled in a line is part of a larger piece of the file, which is not to be kept.
    const own = { ...model, spelled: Buffer.from(model.spelled) };
    if (this.#remembered.size < MAX_REMEMBERED) {
      this.#remembered.set(own.spelled.toString("latin1"), own);
    }
    return own;
  }
}

const isAccepted = (model: AskedModel): model is AcceptedModel => model.routeKey !== null;
