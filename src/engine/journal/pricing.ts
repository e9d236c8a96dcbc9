/**
 * Decides at which price and under which name the answers of a model are counted.
 *
 * Behind `*` a client may invent names of models, and each name is a row that stays for good. So a project has its first
 * 100 names in this process, and all others are counted as `other`, each at its own price. The names are kept apart by
 * project: one project must not use up the names of another.
 */
import { dayOf, type ModelUsage } from "../../batch/model-usage.ts";
import {
  addConsumption,
  type Consumption,
  NO_CONSUMPTION,
  type Price,
  type PriceRule,
  priceFor,
  priceKey,
} from "../../batch/price.ts";
import { readableText } from "../../contract/text.ts";

const MAX_NAMES = 100;
const MAX_NAME_LENGTH = 256;
const OTHER = "other";

interface LookedUp {
  readonly rules: readonly PriceRule[];
  readonly model: string;
  readonly price: Price | null;
}

export class Pricing {
  readonly #prices: () => readonly PriceRule[];
  readonly #names = new Map<string, Set<string>>();

  /** The price that was looked up last: most lines ask for the model of the line before. */
  #last: LookedUp | null = null;

  /** `prices` returns those that are configured now: the same list until there are others. */
  constructor(prices: () => readonly PriceRule[]) {
    this.#prices = prices;
  }

  /** Forgets the names of projects that are deleted. */
  forgetProjects(projects: readonly string[]): void {
    for (const project of projects) this.#names.delete(project);
  }

  /** Returns the price of a line that goes out now. */
  priceOf(model: string): Price | null {
    const rules = this.#prices();
    if (this.#last?.rules !== rules || this.#last.model !== model) {
      this.#last = { rules, model, price: priceFor(rules, model) };
    }
    return this.#last.price;
  }

  /** Counts what answers took, by their price and the model that the client named. */
  count(
    paid: ReadonlyMap<Price | null, ReadonlyMap<string, Consumption>>,
    { project, atMs }: { readonly project: string; readonly atMs: number },
  ): ModelUsage[] {
    const day = dayOf(atMs);
    const entries = new Map<string, ModelUsage>();
    for (const [price, sums] of paid) {
      for (const [model, sum] of sums) {
        const name = this.#nameOf(model, project);
        const key = `${priceKey(price)} ${name}`;
        const total = addConsumption(entries.get(key) ?? NO_CONSUMPTION, sum);
        entries.set(key, { model: name, day, price, ...total });
      }
    }
    return [...entries.values()];
  }

  #nameOf(model: string, project: string): string {
    const name = readableText(model);
    const names = this.#names.get(project) ?? new Set();
    this.#names.set(project, names);
    if (names.has(name)) return name;
    if (names.size === MAX_NAMES || name.length > MAX_NAME_LENGTH) return OTHER;
    names.add(name);
    return name;
  }
}
