/** What an upstream gets is what the client wrote, byte for byte. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { parseLine } from "../../../src/batch/line.ts";
import { checked, requestOf } from "../../../src/engine/chunks/line-request.ts";
import { MemoryBudget } from "../../../src/resources/memory-budget.ts";
import { jsonText, stringText } from "../../support/json-arbitraries.ts";
import { aBatch } from "../../support/store-builders.ts";

const room = new MemoryBudget(() => 1_000_000).open("answers", "default");

function requestFrom(text: string, defaultModel: string | null) {
  const bytes = Buffer.from(text);
  const line = { number: 7, start: 0, end: bytes.length, bytes };
  const sent = { ...checked(line, parseLine(bytes)), traceparent: null, room, deadlineAtMs: 1 };
  return { customId: sent.customId, request: requestOf(sent, aBatch({ defaultModel })) };
}

test("the body and the custom id go on as they are spelled, wherever they stand in the line", () => {
  const parts = fc.record({
    id: stringText,
    value: jsonText,
    model: fc.option(fc.constantFrom("small", "größer", 'a"b')),
    isBodyFirst: fc.boolean(),
  });
  const property = fc.property(parts, ({ id, value, model, isBodyFirst }) => {
    const named = model === null ? "" : `"model": ${JSON.stringify(model)} ,`;
    const body = `{${named} "x" :${value}}`;
    const members = [`"custom_id" : ${id}`, `"body" :\t${body}`];
    const text = `{${(isBodyFirst ? members.toReversed() : members).join(" , ")}}`;
    const { request, customId } = requestFrom(text, "of-the-batch");
    expect(request.body.toString()).toBe(body);
    expect(customId.toString()).toBe(id);
    expect([request.model, request.isModelInBody]).toEqual(
      model === null ? ["of-the-batch", false] : [model, true],
    );
  });
  fc.assert(property, { numRuns: 100 });
});

test.each([
  ["no JSON", '{"custom_id":"a"'],
  ["a line without a custom id", '{"body":{"model":"m"}}'],
])("%s is not what was validated, and is not sent", (_what, text) => {
  expect(() => requestFrom(text, null)).toThrow("line 7 of the input file is not what was");
});
