/** A filled line is JSON of the wanted form, says what is missing, and is never longer than a line may be. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { parseTemplate, type Template } from "../../../src/batch/template.ts";
import { LineFiller } from "../../../src/engine/deriving/filled-line.ts";

const ENDPOINT = { endpoint: "/v1/chat/completions" } as const;
const NO_LIMIT = Number.MAX_SAFE_INTEGER;

const templateOf = (template: object) => parseTemplate(template) as Template;

/** Fills a template with the values of one line, and with its answer. */
async function fill(
  template: object,
  values: { readonly id?: string; readonly input?: unknown; readonly answer?: unknown },
  maxLineBytes = NO_LIMIT,
) {
  const { id = "a", input = {}, answer } = values;
  const bytes = Buffer.from(JSON.stringify({ custom_id: id, body: input }));
  const row =
    answer === undefined ? null : Buffer.from(JSON.stringify({ response: { body: answer } }));
  const filler = new LineFiller(templateOf(template), ENDPOINT, maxLineBytes);
  const filled = await filler.fill({ bytes, row });
  return filled.ok ? Buffer.concat(filled.pieces).toString() : filled.fault;
}

/** What a person would put into a text. */
const inText = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));

test("values come from the line and its answer: whole ones as they are, those within a text as text", async () => {
  const aValue = fc.jsonValue({ maxDepth: 3 }).filter((value) => value !== null);
  const cases = fc.record({ id: fc.string({ unit: "grapheme" }), input: aValue, answer: aValue });
  const template = {
    whole: "{{input.x}}",
    both: ["{{output.y}}", "{{custom_id}}: <{{input.x}}> and {{output.y}}."],
  };
  const property = fc.asyncProperty(cases, async ({ id, input, answer }) => {
    const line = await fill(template, { id, input: { x: input }, answer: { y: answer } });
    const plain = (value: unknown): unknown => JSON.parse(JSON.stringify(value));
    expect(JSON.parse(line as string)).toEqual({
      custom_id: id,
      method: "POST",
      url: ENDPOINT.endpoint,
      body: {
        whole: plain(input),
        both: [plain(answer), `${id}: <${inText(input)}> and ${inText(answer)}.`],
      },
    });
  });
  await fc.assert(property, { numRuns: 50 });
});

test.each([
  ["{{input.x}}", {}, "has no 'input.x'"],
  ["a {{input.x}}", { input: { x: null } }, "has null at 'input.x', which is no text"],
  ["{{output.x}}", {}, "has no answer, so there is no 'output.x'"],
  ["{{output.x}}", { answer: {} }, "has no 'output.x'"],
])("%s of %j is a fault that names the line", async (x, values, reason) => {
  expect(await fill({ x }, { ...values, id: "line-1" })).toEqual({
    code: "template_value_missing",
    message: `The line of 'line-1' ${reason}.`,
    param: "x_batchd.from.template",
  });
});

test("a line of the allowed length is made, and one of a byte more is a fault, also where escapes make it so", async () => {
  const template = { x: "{{output.text}}{{output.list}}" };
  const answer = { text: "t", list: ['"quoted"'] };
  const bytes = Buffer.byteLength((await fill(template, { answer })) as string);
  expect(await fill(template, { answer }, bytes)).toHaveLength(bytes);
  expect(await fill(template, { answer }, bytes - 1)).toMatchObject({ code: "line_too_long" });
});
