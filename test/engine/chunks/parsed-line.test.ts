/** Reading a line in slices changes nothing in what is read. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { parseLine } from "../../../src/batch/line.ts";
import { parsedLine } from "../../../src/engine/chunks/parsed-line.ts";
import { injuredJson, jsonText, stringText } from "../../support/json-arbitraries.ts";

/** Lines with the keys of a request, of which some are cut or are not objects. */
const lineText = fc.oneof(
  fc
    .record({ id: stringText, body: jsonText })
    .map(({ id, body }) => `{"custom_id":${id},"url":"/v1/embeddings","body":${body}}`),
  jsonText,
  injuredJson,
);
/** No step of a slice ends at a place that is good for the parser in each of them. */
const LONG_BYTES = 150_000;

test("a short line is read at once", async () => {
  const property = fc.property(lineText, (text) => {
    const bytes = Buffer.from(text);
    expect(parsedLine(bytes)).toEqual(parseLine(bytes));
  });
  fc.assert(property, { numRuns: 100 });
});

test("a long line is read in slices, like a short one", async () => {
  const fillings = fc.constantFrom(" ", "[", '"é\\n"', '{"a":1}', "1");
  const property = fc.asyncProperty(lineText, fillings, async (text, filling) => {
    const count = Math.ceil(LONG_BYTES / (filling.length + 1));
    const bytes = Buffer.from(text.replace(/^\{/, `{"x":[${Array(count).fill(filling)}],`));
    const isLong = bytes.length > LONG_BYTES;
    const parsed = parsedLine(bytes);
    expect(parsed instanceof Promise).toBe(isLong);
    expect(await parsed).toEqual(parseLine(bytes));
  });
  await fc.assert(property, { numRuns: 30 });
});
