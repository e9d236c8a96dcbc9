/** Prices and amounts of money: decimal texts, because a number of JSON or YAML would not be exact. */
import { z } from "zod";

/** The most digits behind the point. Amounts are calculated without a loss up to there. */
export const PRICE_DIGITS = 12;

/** The form of an amount, also for the fields of the page. */
export const DECIMAL_PATTERN = String.raw`\d{1,12}(?:\.\d{1,12})?`;

export const Decimal = z
  .string({ error: 'expected a text in quotes, such as "0.50", so that it stays exact' })
  .regex(
    new RegExp(`^${DECIMAL_PATTERN}$`),
    "expected a decimal number, such as 0.50, with at most 12 digits before and behind the point",
  );

/** The numbers of tokens that a price may be for. Each is a power of ten, because the quotient of another has no end. */
export const TOKENS_OF_PRICE = [1, 1_000, 1_000_000] as const;

export const Money = z.string().meta({
  description: "A decimal number, exact, without zeros at its end.",
  example: "0.0125",
});
