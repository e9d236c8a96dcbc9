import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { NotAResultRow, readResultRow } from "../../src/formats/result-row.ts";
import { jsonText } from "../support/json-arbitraries.ts";

const rowOf = (body: unknown, more: object = {}): Buffer =>
  Buffer.from(
    JSON.stringify({
      id: "batch_req_0000001a000000000000000000000000",
      custom_id: "a",
      response: { status_code: 200, request_id: "r", body },
      error: null,
      ...more,
    }),
  );

const message = (content: unknown, more: object = {}) => ({
  choices: [{ index: 0, message: { role: "assistant", content, ...more }, finish_reason: "stop" }],
});

describe("the text and the JSON of an answer", () => {
  const calls = [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }];
  const output = [
    { type: "reasoning", content: [{ type: "reasoning_text", text: "hidden" }] },
    { type: "message", content: [{ text: "one, " }, { annotations: [], text: "two" }] },
  ];
  test.each([
    ["a chat", message("Hello"), "Hello", null],
    ["a chat of parts", message([{ type: "text", text: "a" }, { text: "b" }]), "ab", null],
    ["a refusal", message(null, { refusal: "No." }), "No.", null],
    ["tool calls", message(null, { tool_calls: calls }), null, calls],
    ["a completion", { choices: [{ text: "done", finish_reason: "stop" }] }, "done", null],
    ["the first of two choices", { choices: [{ text: "1" }, { text: "2" }] }, "1", null],
    ["a response", { output, status: "completed" }, "one, two", null],
    ["embeddings", { data: [{ embedding: [0.1, 2] }] }, null, [{ embedding: [0.1, 2] }]],
    ["a moderation", { results: [{ flagged: true }] }, null, [{ flagged: true }]],
    ["an image", { created: 1, data: [{ b64_json: "aa" }] }, null, [{ b64_json: "aa" }]],
    ["something else", { anything: 1 }, null, { anything: 1 }],
    ["a text that is empty", message(""), "", null],
    ["a lone surrogate", message("a\ud800b"), "a\ud800b", null],
    ["a body that is no object", [1], null, [1]],
  ])("of %s", (_name, body, text, json) => {
    const row = readResultRow(rowOf(body));
    expect([row.text, row.json === null ? null : JSON.parse(row.json)]).toEqual([text, json]);
  });
});

test("a row has the tokens, the model, and the number of its line", () => {
  const usage = {
    prompt_tokens: 5,
    completion_tokens: 7,
    prompt_tokens_details: { cached_tokens: 3 },
    completion_tokens_details: { reasoning_tokens: 2 },
  };
  expect(readResultRow(rowOf({ ...message("x"), model: "m", usage }))).toMatchObject({
    custom_id: "a",
    line: 26,
    status: 200,
    model: "m",
    finish_reason: "stop",
    input_tokens: 5,
    cached_tokens: 3,
    output_tokens: 7,
    reasoning_tokens: 2,
    total_tokens: 12,
    error_code: null,
    error_message: null,
  });
});

test.each([
  [
    "without an answer",
    { response: null, error: { code: "batch_expired", message: "Too late." } },
    { status: null, text: null, error_code: "batch_expired", error_message: "Too late." },
  ],
  [
    "with the answer of an upstream",
    { response: { status_code: 400, body: { error: { code: 40_001, message: "Bad" } } } },
    { status: 400, json: null, error_code: "40001", error_message: "Bad" },
  ],
  [
    "with an answer that names no error",
    { response: { status_code: 422, body: { detail: "x" } } },
    { status: 422, json: '{"detail":"x"}', error_code: null, error_message: null },
  ],
  ["of another server", { id: "other" }, { line: null }],
  ["whose custom_id is not known", { custom_id: null }, { custom_id: null }],
])("a row %s", (_name, more, expected) => {
  expect(readResultRow(rowOf(null, more))).toMatchObject(expected);
});

test("keys with a meaning in JavaScript and repeated keys are members like any other", () => {
  const bytes = Buffer.from(
    `{"__proto__":{"custom_id":"no"},"custom_id":"first","custom_id":"last","response":{"status_code":200,"body":{"__proto__":{"model":"no"},"constructor":1,"mod\\u0065l":"m"}}}`,
  );
  expect(readResultRow(bytes)).toMatchObject({ custom_id: "last", model: "m", status: 200 });
});

test("an answer that nests a hundred thousand levels deep is read in bounded memory", () => {
  const deep = `${"[".repeat(100_000)}${"]".repeat(100_000)}`;
  const bytes = Buffer.from(`{"custom_id":"a","response":{"body":{"choices":${deep}}}}`);
  expect(readResultRow(bytes)).toMatchObject({ custom_id: "a", text: null });
});

test("a line that is no JSON is refused", () => {
  expect(() => readResultRow(Buffer.from("{"))).toThrow(NotAResultRow);
});

test("any body of JSON is read, whatever it says", () => {
  const anywhere = fc.constantFrom(
    "choices",
    "output",
    "data",
    "usage",
    "error",
    "model",
    "message",
    "content",
    "text",
  );
  fc.assert(
    fc.property(jsonText, anywhere, anywhere, (value, outer, inner) => {
      const body = `{"${outer}":[{"${inner}":${value}}],"${inner}":${value}}`;
      const bytes = Buffer.from(`{"custom_id":"a","response":{"status_code":200,"body":${body}}}`);
      expect(readResultRow(bytes)).toMatchObject({ custom_id: "a", status: 200 });
    }),
  );
});
