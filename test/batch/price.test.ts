import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { firstMatching, matchesPattern } from "../../src/batch/name-pattern.ts";
import {
  amountOf,
  type Consumption,
  costOf,
  formatAmount,
  type Price,
  projectCost,
} from "../../src/batch/price.ts";
import { Decimal, TOKENS_OF_PRICE } from "../../src/contract/price.ts";

const decimals = fc
  .tuple(fc.nat(999_999_999), fc.nat(12), fc.maxSafeNat())
  .map(([whole, digits, fraction]) =>
    digits === 0 ? String(whole) : `${whole}.${String(fraction).padStart(12, "0").slice(-digits)}`,
  );

const prices: fc.Arbitrary<Price> = fc.record({
  currency: fc.constant("USD"),
  per: fc.constantFrom(...TOKENS_OF_PRICE),
  input: decimals,
  cachedInput: decimals,
  output: decimals,
  perRequest: decimals,
});

const consumptions: fc.Arbitrary<Consumption> = fc
  .tuple(fc.nat(5), fc.nat(1_000_000), fc.double({ min: 0, max: 1, noNaN: true }), fc.nat(100_000))
  .map(([requestCount, inputTokens, cached, outputTokens]) => ({
    requestCount,
    inputTokens,
    outputTokens,
    cachedTokens: Math.floor(inputTokens * cached),
  }));

const sum = (all: readonly Consumption[]): Consumption => ({
  requestCount: all.reduce((total, each) => total + each.requestCount, 0),
  inputTokens: all.reduce((total, each) => total + each.inputTokens, 0),
  cachedTokens: all.reduce((total, each) => total + each.cachedTokens, 0),
  outputTokens: all.reduce((total, each) => total + each.outputTokens, 0),
});

describe("the cost of lines", () => {
  test("is the same for each line alone as for their sum, to the last digit", () => {
    fc.assert(
      fc.property(prices, fc.array(consumptions, { maxLength: 50 }), (price, lines) => {
        const each = lines.reduce((total, line) => total + costOf(line, price), 0n);
        expect(costOf(sum(lines), price)).toBe(each);
      }),
    );
  });

  test.each([
    [{ inputTokens: 1_000_000 }, { input: "0.50" }, "0.5"],
    [{ inputTokens: 3 }, { input: "0.000000000001" }, "0.000000000000000003"],
    [{ inputTokens: 10, cachedTokens: 4 }, { input: "2", cachedInput: "1", per: 1_000 }, "0.016"],
    [{ outputTokens: 7 }, { output: "3", per: 1 }, "21"],
    [{ requestCount: 3, outputTokens: 1_000 }, { perRequest: "0.1", output: "1" }, "0.301"],
    [{}, { input: "1" }, "0"],
  ] as const)("of %j at %j is %s", (consumption, price, cost) => {
    const nothing = { requestCount: 0, inputTokens: 0, cachedTokens: 0, outputTokens: 0 };
    const free: Price = {
      currency: "USD",
      per: 1_000_000,
      input: "0",
      cachedInput: "0",
      output: "0",
      perRequest: "0",
    };
    expect(formatAmount(costOf({ ...nothing, ...consumption }, { ...free, ...price }))).toBe(cost);
  });

  test("is extended to all lines, never below what is spent, and rounded up", () => {
    const projected = (soFar: string, doneCount: number, totalCount: number) =>
      formatAmount(projectCost(amountOf(soFar), { doneCount, totalCount }));
    expect(projected("1", 3, 10)).toBe("3.333334");
    expect(projected("0.5", 10, 10)).toBe("0.5");
    expect(projected("0.0000000000001", 1, 2)).toBe("0.000001");
  });
});

test("a decimal number is read and written without a change of its value", () => {
  fc.assert(
    fc.property(decimals, (text) => {
      expect(Decimal.safeParse(text).success).toBe(true);
      const [whole, fraction = ""] = text.split(".");
      const shortest = fraction.replace(/0+$/, "");
      expect(formatAmount(amountOf(text))).toBe(
        String(BigInt(whole!)) + (shortest && `.${shortest}`),
      );
    }),
  );
  for (const text of ["", ".5", "1.", "-1", "1e3", "0x1", "1,5", " 1", "1.0000000000001"]) {
    expect(Decimal.safeParse(text).success).toBe(false);
  }
});

describe("a pattern of names", () => {
  test.each([
    ["*", "", true],
    ["llama-3*", "llama-3.1-8b", true],
    ["llama-3*", "llama-2", false],
    ["*-mini", "gpt-mini", true],
    ["a*a", "a", false],
    ["a*b*c", "aXbYc", true],
    ["a*b*c", "acb", false],
    ["exact", "exact", true],
    ["exact", "exactly", false],
  ])("%s and %s: %s", (pattern, name, isMatched) => {
    expect(matchesPattern(pattern, name)).toBe(isMatched);
  });

  test("is the first of several that a name matches, as if each was compared in turn", () => {
    const parts = fc.array(fc.constantFrom("a", "b", "*"), { maxLength: 5 });
    const patterns = fc.array(parts.map((some) => some.join("")));
    const name = fc.string({ unit: fc.constantFrom("a", "b"), maxLength: 5 });
    fc.assert(
      fc.property(patterns, name, (some, asked) => {
        const expected = some.find((pattern) => matchesPattern(pattern, asked));
        expect(firstMatching(some, (pattern) => pattern, asked)).toBe(expected);
      }),
    );
  });

  test("matches as its regular expression would", () => {
    const parts = fc.array(fc.constantFrom("a", "b", "ab", "*", "."), { maxLength: 8 });
    fc.assert(
      fc.property(
        parts,
        fc.array(fc.constantFrom("a", "b", "."), { maxLength: 8 }),
        (some, name) => {
          const pattern = some.join("");
          const source = pattern.replaceAll(".", "\\.").replaceAll("*", ".*");
          expect(matchesPattern(pattern, name.join(""))).toBe(
            new RegExp(`^${source}$`).test(name.join("")),
          );
        },
      ),
    );
  });
});
