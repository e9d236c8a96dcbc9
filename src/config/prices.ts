/** The schema of prices in a configuration. */
import { z } from "zod";
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

/** Returns the prices with the patterns of their models, in their order. */
export const priceRules = (entries: readonly PriceConfig[]) =>
  entries.map(({ model, currency, per, input, output, ...entry }) => ({
    model,
    price: {
      currency,
      per,
      input,
      output,
      cachedInput: entry.cached_input ?? input,
      perRequest: entry.per_request,
    },
  }));

/** Returns the prices of now. They are the same list until another configuration is read. */
export function currentPrices(now: () => readonly PriceConfig[]) {
  let entries = now();
  let rules = priceRules(entries);
  return () => {
    if (entries !== now()) {
      entries = now();
      rules = priceRules(entries);
    }
    return rules;
  };
}
