/**
 * Calculates what the work of models costs. All of it is exact: a price is a decimal text, an amount is a whole number
 * of tiny units, and no floating-point number comes between. So the cost of many lines is the sum of the costs of
 * each, to the last digit.
 */

import { PRICE_DIGITS, type TOKENS_OF_PRICE } from "../contract/price.ts";
import { firstMatching } from "./name-pattern.ts";

/** A decimal number that is not negative, such as `0.50`, with at most {@link PRICE_DIGITS} digits behind the point. */
export type Decimal = string;

const MAX_TOKENS_OF_PRICE = 1_000_000n;

export interface Price {
  readonly currency: string;
  /** The number of tokens that `input`, `cachedInput` and `output` are for. */
  readonly per: (typeof TOKENS_OF_PRICE)[number];
  readonly input: Decimal;
  readonly cachedInput: Decimal;
  readonly output: Decimal;
  /** It is paid for each answered request, whatever its tokens. */
  readonly perRequest: Decimal;
}

/** The price of the models whose names match the pattern `model`. */
export interface PriceRule {
  readonly model: string;
  readonly price: Price;
}

/** Returns the price of a model; null without one. The first rule that matches counts. */
export const priceFor = (rules: readonly PriceRule[], model: string): Price | null =>
  firstMatching(rules, (rule) => rule.model, model)?.price ?? null;

/** What is paid for: answered requests and their tokens. */
export interface Consumption {
  readonly requestCount: number;
  /** They include the cached ones. */
  readonly inputTokens: number;
  /** They are at most as many as `inputTokens`. */
  readonly cachedTokens: number;
  readonly outputTokens: number;
}

export const NO_CONSUMPTION: Consumption = {
  requestCount: 0,
  inputTokens: 0,
  cachedTokens: 0,
  outputTokens: 0,
};

export const addConsumption = (a: Consumption, b: Consumption): Consumption => ({
  requestCount: a.requestCount + b.requestCount,
  inputTokens: a.inputTokens + b.inputTokens,
  cachedTokens: a.cachedTokens + b.cachedTokens,
  outputTokens: a.outputTokens + b.outputTokens,
});

/** Money, in units of 10^-18 of its currency. No price has smaller parts, nor has a price for one token of a million. */
export type Amount = bigint;

const AMOUNT_DIGITS = PRICE_DIGITS + 6;
const AMOUNT_UNIT = 10n ** BigInt(AMOUNT_DIGITS);

/** Reads a decimal number as an amount. */
export function amountOf(decimal: Decimal): Amount {
  const [whole = "0", fraction = ""] = decimal.split(".");
  return BigInt(whole + fraction.padEnd(AMOUNT_DIGITS, "0"));
}

/** Writes an amount as a decimal number, without zeros at its end. */
export function formatAmount(amount: Amount): Decimal {
  const digits = amount.toString().padStart(AMOUNT_DIGITS + 1, "0");
  const fraction = digits.slice(-AMOUNT_DIGITS).replace(/0+$/, "");
  return digits.slice(0, -AMOUNT_DIGITS) + (fraction === "" ? "" : `.${fraction}`);
}

export function costOf(consumption: Consumption, price: Price): Amount {
  const { requestCount, inputTokens, cachedTokens, outputTokens } = consumption;
  const tokens =
    BigInt(inputTokens - cachedTokens) * priceUnits(price.input) +
    BigInt(cachedTokens) * priceUnits(price.cachedInput) +
    BigInt(outputTokens) * priceUnits(price.output);
  return (
    tokens * (MAX_TOKENS_OF_PRICE / BigInt(price.per)) +
    BigInt(requestCount) * amountOf(price.perRequest)
  );
}

/** A price in units of 10^-12. */
const priceUnits = (decimal: Decimal): bigint => amountOf(decimal) / MAX_TOKENS_OF_PRICE;

const PROJECTION_UNIT = AMOUNT_UNIT / 1_000_000n;

/** Extends the cost of some lines to all of them, rounded up to a millionth of the currency. */
export function projectCost(
  soFar: Amount,
  { doneCount, totalCount }: { readonly doneCount: number; readonly totalCount: number },
): Amount {
  if (doneCount >= totalCount) return soFar;
  const projected = (soFar * BigInt(totalCount)) / BigInt(doneCount);
  return ((projected + PROJECTION_UNIT - 1n) / PROJECTION_UNIT) * PROJECTION_UNIT;
}

/** Returns a text that is equal for equal prices, and from which {@link parsePrice} makes the price again. */
export const priceKey = (price: Price | null): string =>
  price === null
    ? ""
    : JSON.stringify([
        price.currency,
        price.per,
        price.input,
        price.cachedInput,
        price.output,
        price.perRequest,
      ]);

export function parsePrice(key: string): Price | null {
  if (key === "") return null;
  const [currency, per, input, cachedInput, output, perRequest] = JSON.parse(key) as [
    string,
    Price["per"],
    ...[string, string, string, string],
  ];
  return { currency, per, input, cachedInput, output, perRequest };
}
