/** The schema of prices in a configuration. */
import { z } from "zod";
import type { PriceRule } from "../batch/price.ts";
import { Decimal, TOKENS_OF_PRICE } from "../contract/price.ts";

const PriceEntry = z.strictObject({
  model: z
    .string()
    .min(1)
    .max(256)
    .describe(
      "The models, as clients name them. `*` stands for any characters. The first entry that matches counts.",
    ),
  currency: z
    .string()
    .regex(/^[A-Z]{3}$/, "expected three capital letters, such as USD")
    .meta({ description: "The currency, the same in all entries.", example: "USD" }),
  per: z
    .literal(TOKENS_OF_PRICE)
    .default(1_000_000)
    .describe("The number of tokens that `input`, `cached_input` and `output` are for."),
  input: Decimal.default("0").describe("Price of input tokens."),
  cached_input: Decimal.optional().meta({
    description: "Price of input tokens that the upstream had in its cache.",
    left_out: "as `input`",
  }),
  output: Decimal.default("0").describe("Price of output tokens."),
  per_request: Decimal.default("0").describe("Price of each answered request, beside its tokens."),
});
type PriceConfig = z.infer<typeof PriceEntry>;

export const Prices = z
  .array(PriceEntry)
  .refine(
    (entries) => new Set(entries.map(({ currency }) => currency)).size <= 1,
    "all prices need the same currency",
  );

const rulesByEntries = new WeakMap<readonly PriceConfig[], readonly PriceRule[]>();

/** Returns the prices with the patterns of their models, in their order. They are one list for each configuration. */
export function priceRules(entries: readonly PriceConfig[]): readonly PriceRule[] {
  const known = rulesByEntries.get(entries);
  if (known !== undefined) return known;
  const rules = entries.map(ruleOf);
  rulesByEntries.set(entries, rules);
  return rules;
}

const ruleOf = ({ model, cached_input, per_request, ...price }: PriceConfig): PriceRule => ({
  model,
  price: { ...price, cachedInput: cached_input ?? price.input, perRequest: per_request },
});
