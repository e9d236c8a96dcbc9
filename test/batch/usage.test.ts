import { describe, expect, test } from "vitest";
import { factsIfJson } from "../../src/batch/answer-facts.ts";
import { NO_USAGE, type Usage } from "../../src/batch/batch.ts";
import { addUsage } from "../../src/batch/usage.ts";

const usageIn = (answer: unknown) =>
  factsIfJson(Buffer.from(typeof answer === "string" ? answer : JSON.stringify(answer)))?.usage ??
  null;

const counted = (partial: Partial<Usage>): Usage => ({ ...NO_USAGE, ...partial });

describe("the tokens of an answer", () => {
  test("from chat completions", () => {
    const usage = {
      prompt_tokens: 19,
      completion_tokens: 10,
      total_tokens: 29,
      prompt_tokens_details: { cached_tokens: 4, audio_tokens: 0 },
      completion_tokens_details: { reasoning_tokens: 7, audio_tokens: 0 },
    };
    expect(usageIn({ id: "c", choices: [{ usage: { prompt_tokens: 999 } }], usage })).toEqual({
      inputTokens: 19,
      cachedTokens: 4,
      outputTokens: 10,
      reasoningTokens: 7,
      totalTokens: 29,
    });
  });

  test("from completions, whose details may be null", () => {
    const usage = {
      prompt_tokens: 5,
      completion_tokens: 7,
      total_tokens: 12,
      prompt_tokens_details: null,
    };
    expect(usageIn({ usage })).toEqual(
      counted({ inputTokens: 5, outputTokens: 7, totalTokens: 12 }),
    );
  });

  test("from embeddings, which have no output", () => {
    expect(usageIn({ data: [], usage: { prompt_tokens: 8, total_tokens: 8 } })).toEqual(
      counted({ inputTokens: 8, totalTokens: 8 }),
    );
  });

  test("from responses", () => {
    const usage = {
      input_tokens: 36,
      input_tokens_details: { cached_tokens: 1 },
      output_tokens: 87,
      output_tokens_details: { reasoning_tokens: 2 },
      total_tokens: 123,
    };
    expect(usageIn({ output: [], usage })).toEqual({
      inputTokens: 36,
      cachedTokens: 1,
      outputTokens: 87,
      reasoningTokens: 2,
      totalTokens: 123,
    });
  });

  test("from a gateway that has zeros under the names of the other endpoints", () => {
    const chat = {
      prompt_tokens: 9,
      completion_tokens: 4,
      prompt_tokens_details: { cached_tokens: 2 },
    };
    const zeros = { input_tokens: 0, output_tokens: 0, input_tokens_details: { cached_tokens: 0 } };
    const tokens = { inputTokens: 9, cachedTokens: 2, outputTokens: 4, totalTokens: 13 };
    expect(usageIn({ usage: { ...chat, ...zeros } })).toEqual(counted(tokens));
    const responses = {
      input_tokens: 9,
      output_tokens: 4,
      input_tokens_details: { cached_tokens: 2 },
    };
    const others = { prompt_tokens: 0, completion_tokens: 0, prompt_tokens_details: {} };
    expect(usageIn({ usage: { ...others, ...responses } })).toEqual(counted(tokens));
  });

  test("are output where only the total counts them, as reasoning at xAI and Gemini", () => {
    const usage = { prompt_tokens: 32, completion_tokens: 9, total_tokens: 135 };
    const completion_tokens_details = { reasoning_tokens: 94 };
    const tokens = { inputTokens: 32, outputTokens: 103, totalTokens: 135 };
    expect(usageIn({ usage })).toEqual(counted(tokens));
    expect(usageIn({ usage: { ...usage, completion_tokens_details } })).toEqual(
      counted({ ...tokens, reasoningTokens: 94 }),
    );
  });

  test("are input where the answer names a total alone, as embeddings of Voyage do", () => {
    expect(usageIn({ data: [], usage: { total_tokens: 8 } })).toEqual(
      counted({ inputTokens: 8, totalTokens: 8 }),
    );
  });

  test.each(["cached_tokens", "prompt_cache_hit_tokens"])(
    "are cached ones where the service names them %s",
    (name) => {
      const usage = { prompt_tokens: 9, completion_tokens: 1, [name]: 7 };
      const tokens = { inputTokens: 9, outputTokens: 1, totalTokens: 10 };
      expect(usageIn({ usage })).toEqual(counted({ ...tokens, cachedTokens: 7 }));
    },
  );

  test("are added up when the answer has no total", () => {
    expect(usageIn({ usage: { prompt_tokens: 3, completion_tokens: 4 } })?.totalTokens).toBe(7);
  });

  test("are those of the last usage when there are two, and of an escaped key too", () => {
    expect(
      usageIn('{"usage":{"prompt_tokens":1},"us\\u0061ge":{"prompt_tokens":2}}')?.inputTokens,
    ).toBe(2);
  });

  test.each([
    {},
    [],
    '"usage"',
    { usage: null },
    { usage: 7 },
    { usage: [] },
    { usage: { prompt_tokens: "9", completion_tokens: -1, total_tokens: 1.5 } },
    { usage: { prompt_tokens: 1e300 } },
    { usage: { prompt_tokens: 1_000_000_001, total_tokens: Number.MAX_SAFE_INTEGER } },
    { error: { usage: { prompt_tokens: 4 } } },
  ])("are zero when it reports none that counts: %j", (answer) => {
    expect(usageIn(answer)).toEqual(NO_USAGE);
  });
});

test("usages add field by field", () => {
  const one = {
    inputTokens: 1,
    cachedTokens: 2,
    outputTokens: 3,
    reasoningTokens: 4,
    totalTokens: 5,
  };
  expect(addUsage(one, one)).toEqual({
    inputTokens: 2,
    cachedTokens: 4,
    outputTokens: 6,
    reasoningTokens: 8,
    totalTokens: 10,
  });
  expect(addUsage(one, NO_USAGE)).toEqual(one);
});
