import { expect, test } from "vitest";
import { type Consumption, NO_CONSUMPTION, type Price } from "../../../src/batch/price.ts";
import { Pricing } from "../../../src/engine/journal/pricing.ts";

const priced = (output: string): Price => ({
  currency: "USD",
  per: 1_000_000,
  input: "0",
  cachedInput: "0",
  perRequest: "0",
  output,
});
const one: Consumption = { ...NO_CONSUMPTION, requestCount: 1, outputTokens: 7 };
/** Counts an answer of each model at the price that a line has which goes out now. */
function countOne(pricing: Pricing, models: readonly string[], project: string) {
  const paid = Map.groupBy(models, (model) => pricing.priceOf(model));
  const sums = [...paid].map(
    ([price, names]) => [price, new Map(names.map((name) => [name, one]))] as const,
  );
  return pricing.count(new Map(sums), at(project));
}
const at = (project: string) => ({ project, atMs: Date.UTC(2026, 0, 31, 23, 59) });

test("the first price whose pattern matches counts, and no price for other models", () => {
  const rules = [
    { model: "llama-3*", price: priced("1") },
    { model: "llama*", price: priced("2") },
  ];
  const pricing = new Pricing(() => rules);
  const models = ["llama-3.1", "llama-2", "qwen"];
  const day = "2026-01-31";
  expect(countOne(pricing, models, "a")).toEqual([
    { model: "llama-3.1", day, price: priced("1"), ...one },
    { model: "llama-2", day, price: priced("2"), ...one },
    { model: "qwen", day, price: null, ...one },
  ]);
});

test("a project that invents names of models gets a hundred, and takes none from others", () => {
  const rules = [{ model: "dear-*", price: priced("9") }];
  const pricing = new Pricing(() => rules);
  const names = Array.from({ length: 300 }, (_, n) => (n % 2 === 0 ? `dear-${n}` : `cheap-${n}`));
  const counted = countOne(pricing, names, "a");
  expect(counted).toHaveLength(102);
  expect(counted.filter(({ model }) => model === "other")).toEqual([
    expect.objectContaining({ price: priced("9"), requestCount: 50, outputTokens: 350 }),
    expect.objectContaining({ price: null, requestCount: 150, outputTokens: 1_050 }),
  ]);
  expect(countOne(pricing, ["mine"], "b")).toMatchObject([{ model: "mine" }]);
  expect(countOne(pricing, ["mine"], "a")).toMatchObject([{ model: "other" }]);
  // A new project may have the name of a deleted one.
  pricing.forgetProjects(["a"]);
  expect(countOne(pricing, ["mine"], "a")).toMatchObject([{ model: "mine" }]);
});

test("a name that a database cannot store is counted under one that it can", () => {
  const pricing = new Pricing(() => []);
  const [entry] = countOne(pricing, ["a\0b\ud800"], "a");
  expect(entry?.model).toBe("a\ufffdb\ufffd");
  expect(countOne(pricing, ["x".repeat(300)], "a")).toMatchObject([{ model: "other" }]);
});
