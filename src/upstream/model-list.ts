/**
 * Keeps the list of models that a target reports (`GET /models`). The list is asked for when it is needed, shared by
 * all callers meanwhile, and kept for a while. A target that is down, slow or gives another answer has no list. No
 * caller may depend on a list.
 */
import type { Outcome } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import type { Log } from "../telemetry/log.ts";
import { listedNames } from "./listed-names.ts";
import type { ModelListing } from "./upstream.ts";

/** The time is short because a model that was pulled a moment ago must not be missing for long. */
const GOOD_FOR_MS = 5_000;
/** The time is long because each try at a list that does not come costs its caller two seconds. */
const MISSING_FOR_MS = 30_000;

export interface ModelListOptions {
  /** The name of the target. */
  readonly name: string;
  /** Resolves to null when the target cannot be asked. Never rejects. */
  readonly ask: () => Promise<Outcome | null>;
  readonly clock: Clock;
  readonly log: Log;
}

export class ModelList {
  readonly #options: ModelListOptions;
  #latest: Promise<ModelListing> | null = null;
  #goodUntilMs = Number.POSITIVE_INFINITY;
  #latestIds: readonly string[] = [];

  constructor(options: ModelListOptions) {
    this.#options = options;
  }

  /** The models of the latest list that came; empty before. */
  get latestIds(): readonly string[] {
    return this.#latestIds;
  }

  get(): Promise<ModelListing> {
    if (this.#latest !== null && this.#options.clock.elapsedMs() < this.#goodUntilMs) {
      return this.#latest;
    }
    this.#goodUntilMs = Number.POSITIVE_INFINITY;
    this.#latest = this.#ask();
    return this.#latest;
  }

  /** Forgets the list, because the configuration of the target has changed. */
  forget(): void {
    this.#latest = null;
    this.#latestIds = [];
  }

  async #ask(): Promise<ModelListing> {
    const { name, ask, clock, log } = this.#options;
    const listing = await listingOf(await ask());
    const isGood = listing.kind === "listed";
    if (isGood) this.#latestIds = listing.ids;
    if (!isGood) log.debug({ target: name, ...listing }, "upstream.models_unknown");
    this.#goodUntilMs = clock.elapsedMs() + (isGood ? GOOD_FOR_MS : MISSING_FOR_MS);
    return listing;
  }
}

async function listingOf(outcome: Outcome | null): Promise<ModelListing> {
  if (outcome === null) return { kind: "unasked" };
  switch (outcome.kind) {
    case "answered":
      break;
    case "timed_out":
      return { kind: "silent", detail: "no answer in time" };
    case "interrupted":
      return { kind: "unasked" };
    default:
      return "status" in outcome
        ? { kind: "refused", status: outcome.status }
        : { kind: "silent", detail: outcome.detail };
  }
  if (outcome.status !== 200) return { kind: "refused", status: outcome.status };
  const names = await listedNames(outcome.body);
  return names === null
    ? { kind: "silent", detail: "too many models" }
    : { kind: "listed", ...names };
}

/**
 * Returns one spelling for the names that a server treats as one: Ollama adds `:latest`, Google lists `models/…`.
 */
const canonical = (name: string) => name.replace(/^models\//, "").replace(/:latest$/, "");

/** The names of each list in one spelling: a file may ask for 50,000 names, and a list may have as many. */
const spelled = new WeakMap<ModelListing, ReadonlySet<string>>();

/** Whether a target with this list takes a name. A target without a list, or with an empty one, may take any. */
export function mayServe(listing: ModelListing, upstreamName: string): boolean {
  if (listing.kind !== "listed" || listing.ids.length === 0) return true;
  const { ids, aliases } = listing;
  const names = spelled.get(listing) ?? new Set([...ids, ...aliases].map(canonical));
  spelled.set(listing, names);
  return names.has(canonical(upstreamName));
}
