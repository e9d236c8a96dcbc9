/** One pass over an input gives either a plan for all of its lines, or its first faults by their lines. */
import fc from "fast-check";
import { expect, test } from "vitest";
import type { Batch } from "../../../src/batch/batch.ts";
import { MAX_LISTED_FAULTS } from "../../../src/contract/batch.ts";
import { InputReading, type Verdict } from "../../../src/engine/intake/input-reading.ts";
import { LineSplitter } from "../../../src/text/split.ts";
import { aBatch, aFile } from "../../support/store-builders.ts";

const LIMITS = {
  maxFileBytes: 1e9,
  maxRequestsPerBatch: 1_000,
  maxLineBytes: 1_000,
  maxEmbeddingInputsPerBatch: 1_000,
  allowMixedModels: true,
  chunk: { unitLines: 3, maxLines: 6, maxBytes: 1e6 },
};

const lineOf = (n: number, model: string, content = `${n}`) => {
  const body = { model, messages: [{ role: "user", content }] };
  const line = { custom_id: `line-${n}`, method: "POST", url: "/v1/chat/completions", body };
  return JSON.stringify(line);
};

interface Options {
  readonly batch?: Partial<Batch>;
  readonly isSampled?: (place: number) => boolean;
  readonly shift?: number;
}

async function verdictOf(lines: readonly string[], options: Options = {}): Promise<Verdict> {
  const { batch = {}, isSampled = null, shift = 0 } = options;
  const reading = new InputReading(aBatch(batch), {
    limits: LIMITS,
    models: { routeKeyOf: (model) => (model === "unknown" ? null : model), hintFor: () => null },
    defaultModel: null,
    isSampled,
    prices: [],
    input: aFile(),
  });
  const splitter = new LineSplitter(LIMITS.maxLineBytes, { start: 0, firstLine: 1 });
  const bytes = Buffer.from(lines.join("\n"));
  for (const line of [...splitter.push(bytes), ...splitter.end()]) await reading.add(line, shift);
  return reading.verdict();
}

/** The lines that a plan has, as the chunks read them from the file. */
function plannedLines(verdict: Verdict, lines: readonly string[]) {
  if (!verdict.ok) throw new Error(JSON.stringify(verdict.faults));
  const text = Buffer.from(lines.join("\n"));
  return verdict.plan.chunks.flatMap(({ model, lineCount, extents }) => {
    const own = extents.flatMap(({ start, end, firstLine }) =>
      text
        .toString("utf8", start, end)
        .split("\n")
        .map((line, i) => ({ number: firstLine + i, line, model }))
        .filter(({ line }) => line !== ""),
    );
    expect(own).toHaveLength(lineCount);
    return own;
  });
}

const kinds = fc.array(fc.constantFrom("a", "a", "b", "blank"), { minLength: 1, maxLength: 40 });
const textOf = (kind: string, i: number) => (kind === "blank" ? "" : lineOf(i + 1, kind));

test("the chunks of a plan have each line once, with its number and its model, also where numbers are shifted", async () => {
  const cases = fc.record({ all: kinds, shift: fc.constantFrom(0, 0, 7) });
  const property = fc.asyncProperty(cases, async ({ all, shift }) => {
    fc.pre(all.some((kind) => kind !== "blank"));
    const lines = all.map(textOf);
    const planned = plannedLines(await verdictOf(lines, { shift }), lines);
    expect(planned.toSorted((a, b) => a.number - b.number)).toEqual(
      lines.flatMap((line, i) =>
        line === "" ? [] : [{ number: i + 1 + shift, line, model: all[i] }],
      ),
    );
  });
  await fc.assert(property, { numRuns: 50 });
});

const BAD: Record<string, string> = {
  invalid_json_line: "{",
  line_too_long: lineOf(1, "a", "x".repeat(2_000)),
  duplicate_custom_id: lineOf(1, "a"),
  model_not_found: lineOf(9_999, "unknown"),
};

test("a file with bad lines has no plan, and the first faults name their lines in order", async () => {
  const codes = fc.constantFrom(null, null, ...Object.keys(BAD));
  const property = fc.asyncProperty(fc.array(codes, { maxLength: 250 }), async (all) => {
    const lines = [lineOf(1, "a"), ...all.map((code, i) => BAD[code ?? ""] ?? lineOf(i + 2, "a"))];
    const verdict = await verdictOf(lines);
    const wrong = all.flatMap((code, i) => (code === null ? [] : [{ line: i + 2 }]));
    expect(verdict.ok).toBe(wrong.length === 0);
    if (verdict.ok) return;
    expect(verdict.faults.map(({ line }) => ({ line }))).toEqual(wrong.slice(0, MAX_LISTED_FAULTS));
  });
  await fc.assert(property, { numRuns: 20 });
});

test("a file without a line is a fault of the file", async () => {
  for (const lines of [[], ["", " "]]) {
    expect(await verdictOf(lines)).toMatchObject({ faults: [{ code: "empty_file", line: null }] });
  }
});

test("no more faults are kept than a batch lists", async () => {
  const verdict = await verdictOf(Array<string>(2 * MAX_LISTED_FAULTS).fill("{"));
  expect(verdict.ok ? null : verdict.faults.map(({ line }) => line)).toEqual(
    Array.from({ length: MAX_LISTED_FAULTS }, (_, i) => i + 1),
  );
});

test.each(Object.entries(BAD))("%s is the code of such a line", async (code, line) => {
  const verdict = await verdictOf([lineOf(1, "a"), line]);
  expect(verdict).toMatchObject({ ok: false, faults: [{ code, line: 2 }] });
});

test("a line whose body came before is in no chunk of a batch that sends equal bodies once", async () => {
  const lines = ["x", "y", "x", "x"].map((content, i) => lineOf(i + 1, "a", content));
  const batch = { deduplicated: { lineCount: 0, firstLine: null } };
  const verdict = await verdictOf(lines, { batch, shift: 7 });
  expect(plannedLines(verdict, lines).map(({ number }) => number)).toEqual([8, 9]);
  expect(verdict).toMatchObject({
    plan: { total: 4, duplicates: { lineCount: 2, firstLine: 10 } },
  });
});

test("the sample has chunks of its own, which come first, and a sample of all lines is none", async () => {
  const lines = Array.from({ length: 9 }, (_, i) => lineOf(i + 1, "a"));
  const verdict = await verdictOf(lines, { isSampled: (place) => place % 4 === 0 });
  expect(verdict).toMatchObject({ plan: { sampleChunkCount: 1 } });
  expect(plannedLines(verdict, lines).slice(0, 3)).toMatchObject([
    { number: 1 },
    { number: 5 },
    { number: 9 },
  ]);
  const all = await verdictOf(lines, { isSampled: () => true });
  expect(all).toMatchObject({ plan: { sampleChunkCount: null } });
});

test("a model without a price fails a batch with a budget, and only such a batch", async () => {
  const lines = [lineOf(1, "a")];
  expect(await verdictOf(lines, { batch: { budget: "5" } })).toMatchObject({
    ok: false,
    faults: [{ code: "budget_without_price", line: 1 }],
  });
  expect(await verdictOf(lines)).toMatchObject({ ok: true });
});
