import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { inputTokensOf, parseLine } from "../../src/batch/line.ts";
import { answerTokensOf } from "../../src/batch/token-estimate.ts";
import { estimatedTokens } from "../support/estimated-tokens.ts";

function estimate(request: unknown): number {
  const body = Buffer.from(typeof request === "string" ? request : JSON.stringify(request));
  const { inputTokens, answerTokens } = estimatedTokens(body);
  return inputTokens + answerTokens;
}
const prompt = { model: "m", messages: [{ role: "user", content: "How many are there?" }] };
const promptTokens = (body: unknown) => Math.ceil(Buffer.byteLength(JSON.stringify(body)) / 4);

describe("the tokens that a request may cost", () => {
  test("are a quarter of its bytes and what it allows for the answer", () => {
    for (const key of ["max_completion_tokens", "max_tokens", "max_output_tokens"]) {
      const body = { ...prompt, [key]: 700 };
      expect(estimate(body)).toBe(promptTokens(body) + 700);
    }
  });

  test("are those of the largest maximum when there are two", () => {
    const body = { ...prompt, max_tokens: 50, max_completion_tokens: 400 };
    expect(estimate(body)).toBe(promptTokens(body) + 400);
    const other = { ...prompt, max_completion_tokens: 50, max_tokens: 400 };
    expect(estimate(other)).toBe(promptTokens(other) + 400);
  });

  test("are those of a request without a limit when a maximum is too long to read", () => {
    const body = (maximum: string) => `{"model":"m","max_tokens":${maximum}}`;
    const long = body(`0.${"0".repeat(40)}1`);
    expect(estimate(long) - Math.ceil(long.length / 4)).toBe(1_000_000);
  });

  test("are those of a number in a text, which some servers take for one", () => {
    const body = { ...prompt, max_tokens: "700", n: "2" };
    expect(estimate(body)).toBe(promptTokens(body) + 1_400);
    const escaped = `{"model":"m","max_tokens":"7\\u003000"}`;
    expect(estimate(escaped) - Math.ceil(escaped.length / 4)).toBe(1_000_000);
  });

  test("allow for a modest answer when no maximum is set, or none that is one", () => {
    const answer = estimate(prompt) - promptTokens(prompt);
    expect(answer).toBeGreaterThan(50);
    expect(answer).toBeLessThan(1_000);
    for (const nonsense of [null, "", "much", 0, -5, [100], { max_tokens: 9_000 }, true]) {
      const body = { ...prompt, max_tokens: nonsense, n: nonsense };
      expect(estimate(body)).toBe(promptTokens(body) + answer);
    }
  });

  test.each([
    [{ prompt: ["a", "b", "c"], max_tokens: 10 }, 30],
    [{ prompt: [[1, 2], [3]], max_tokens: 10, n: 2 }, 40],
    [{ prompt: [1, 2, 3], max_tokens: 10 }, 10],
    [{ prompt: "a, b", max_tokens: 10 }, 10],
    [{ prompt: [], max_tokens: 10 }, 10],
    [{ prompt: "a", max_tokens: 10, n: 2, best_of: 5 }, 50],
    [{ prompt: "a", max_tokens: 10, best_of: 5, n: 2 }, 50],
  ])("are those of the answers to all prompts, with the candidates: %j", (body, answer) => {
    expect(estimate(body)).toBe(promptTokens(body) + answer);
  });

  test("take no maximum from inside a value, and see an escaped key", () => {
    const nested = { ...prompt, metadata: { max_tokens: 5_000, n: 9 } };
    expect(estimate(nested) - promptTokens(nested)).toBe(estimate(prompt) - promptTokens(prompt));
    const escaped = '{"max_t\\u006fkens":77}';
    expect(estimate(escaped)).toBe(Math.ceil(escaped.length / 4) + 77);
  });

  test("stay a number to reckon with, whatever is allowed", () => {
    expect(estimate('{"max_tokens":1e999,"n":1e999}')).toBeLessThan(1e9);
    expect(estimate({ n: 1e15, max_tokens: 1e15 })).toBeLessThan(1e9);
  });
});

const count = fc.integer({ min: 1, max: 1_000 });
const request = fc.record(
  { messages: fc.jsonValue(), metadata: fc.jsonValue(), max_tokens: count, n: count },
  { requiredKeys: ["messages"] },
);

const jsonObject = fc
  .dictionary(
    fc.constantFrom(
      "n",
      "best_of",
      "prompt",
      "max_tokens",
      "max_completion_tokens",
      "max_output_tokens",
      "model",
      "a",
    ),
    fc.oneof(count, fc.jsonValue()),
  )
  .map((object) => JSON.stringify(object));

test("any request: more bytes, a higher maximum and more choices never cost less", () => {
  fc.assert(
    fc.property(request, fc.string(), (body, more) => {
      const tokens = estimate(body);
      expect(tokens).toBeGreaterThanOrEqual(promptTokens(body) + (body.max_tokens ?? 1));
      expect(estimate({ ...body, user: more })).toBeGreaterThanOrEqual(tokens);
      expect(estimate({ ...body, n: (body.n ?? 1) + 1 })).toBeGreaterThanOrEqual(tokens);
      if (body.max_tokens === undefined) return;
      const higher = { ...body, max_tokens: body.max_tokens + 1 };
      expect(estimate(higher)).toBeGreaterThan(tokens);
    }),
  );
});

test("any request has the same estimate as a line, as an interactive request, and in pieces", () => {
  fc.assert(
    fc.property(jsonObject, fc.integer({ min: 1, max: 64 }), (text, stepBytes) => {
      const body = Buffer.from(text);
      const line = parseLine(Buffer.from(`{"body":${text}}`))!;
      const tokens = estimatedTokens(body);
      expect({ inputTokens: inputTokensOf(line), answerTokens: answerTokensOf(line) }).toEqual(
        tokens,
      );
      expect(estimatedTokens(body, stepBytes)).toEqual(tokens);
    }),
  );
});

test("a long request counts the maximum that stands behind its prompt", () => {
  const messages = [{ role: "user", content: "x".repeat(300_000) }];
  const body = { model: "m", messages, max_tokens: 5_000, n: 2 };
  expect(estimate(body)).toBe(promptTokens(body) + 10_000);
});

describe("an image in a body", () => {
  const MIB = 1024 * 1024;
  const withImages = (...urls: string[]) => {
    const content = urls.map((url) => ({ type: "image_url", image_url: { url } }));
    return Buffer.from(JSON.stringify({ model: "m", messages: [{ role: "user", content }] }));
  };
  const imageOf = (bytes: number, start = "data:image/png;base64,") =>
    start + "iVBORw0K".repeat(Math.ceil((bytes - start.length) / 8));

  test("counts by its size as an image, not as text, wherever the scan pauses", () => {
    const body = withImages(imageOf(5 * MIB), imageOf(100_000));
    const { inputTokens } = estimatedTokens(body);
    expect(inputTokens).toBeGreaterThan(20_000);
    expect(inputTokens).toBeLessThan(25_000);
    expect(estimatedTokens(body, 10_007).inputTokens).toBe(inputTokens);
    // An image elsewhere in the line makes the text of the body no cheaper.
    const before = `"metadata":{"x":"${imageOf(MIB)}"},"body":{"a":"${imageOf(MIB)}"}`;
    const line = parseLine(Buffer.from(`{${before},"body":${body},"x":"${imageOf(MIB)}"}`))!;
    expect(inputTokensOf(line)).toBe(inputTokens);
  });

  test.each([
    ["a text", imageOf(MIB, "Look at data:image/png;base64,")],
    ["a document", imageOf(MIB, "data:application/pdf;base64,")],
    ["a short one", imageOf(4_000)],
    ["a text that begins like one", `data:image/png;base64,${"Tell me more. ".repeat(10_000)}`],
  ])("is not found in %s, which counts as text", (_, url) => {
    const body = withImages(url);
    expect(estimatedTokens(body).inputTokens).toBe(Math.ceil(body.length / 4));
  });
});
