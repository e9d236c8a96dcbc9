import fc from "fast-check";
import { expect, test } from "vitest";
import { leavesModelOpen, modelOf, parseLine, textOf } from "../../src/batch/line.ts";
import { isReadBack, jsonText, objectText } from "../support/json-arbitraries.ts";
import { bytesOf, withBody } from "../support/line-checker.ts";

test("a line that is sent has the model that it was accepted with", () => {
  const asked = (body: object, defaultModel: string | null) => {
    const bytes = bytesOf(withBody(body));
    const line = parseLine(bytes)!;
    return [modelOf(bytes, line, defaultModel), leavesModelOpen(bytes, line)];
  };
  expect(asked({ model: "m" }, "d")).toEqual(["m", false]);
  expect(asked({ model: "" }, "d")).toEqual(["d", true]);
  expect(asked({ model: null }, "d")).toEqual(["d", true]);
  expect(asked({}, "d")).toEqual(["d", true]);
  expect(asked({}, null)).toEqual([null, true]);
});

const KEYS = [
  '"custom_id"',
  '"custom\\u005fid"',
  '"method"',
  '"url"',
  '"body"',
  '"b\\u006fdy"',
  '"__proto__"',
  '"constructor"',
  '"model"',
];
const BODY_KEYS = [
  '"model"',
  '"m\\u006fdel"',
  '"stream"',
  '"messages"',
  '"input"',
  '"__proto__"',
  '"url"',
];

const valueText = jsonText.filter(isReadBack);
const bodyText = fc.oneof(
  valueText,
  objectText(fc.record({ key: fc.constantFrom(...BODY_KEYS), value: valueText })).map(
    ({ text }) => text,
  ),
);
const lineText = objectText(
  fc.record({ key: fc.constantFrom(...KEYS), value: bodyText.map((text) => text.trim()) }),
).map(({ text }) => text);

test("parts are those that JSON.parse finds: the last of equal keys, escapes resolved, no prototypes", () => {
  fc.assert(
    fc.property(lineText, (text) => {
      const bytes = Buffer.from(text);
      const parsed = parseLine(bytes);
      const expected = JSON.parse(text) as Record<string, unknown>;
      const own = (holder: unknown, key: string): unknown =>
        holder instanceof Object && !Array.isArray(holder) && Object.hasOwn(holder, key)
          ? (holder as Record<string, unknown>)[key]
          : undefined;
      const valueAt = (part: { start: number; end: number } | null) =>
        part === null
          ? undefined
          : (JSON.parse(bytes.toString("utf8", part.start, part.end)) as unknown);
      expect(parsed).not.toBeNull();
      const found = parsed!;
      expect(JSON.stringify(valueAt(found.customId))).toBe(
        JSON.stringify(own(expected, "custom_id")),
      );
      expect(JSON.stringify(valueAt(found.method))).toBe(JSON.stringify(own(expected, "method")));
      expect(JSON.stringify(valueAt(found.url))).toBe(JSON.stringify(own(expected, "url")));
      const body = own(expected, "body");
      expect(JSON.stringify(valueAt(found.body))).toBe(JSON.stringify(body));
      expect(JSON.stringify(valueAt(found.model))).toBe(JSON.stringify(own(body, "model")));
      expect(found.asksToStream).toBe(own(body, "stream") === true);
      expect(JSON.stringify(valueAt(found.messages))).toBe(JSON.stringify(own(body, "messages")));
      expect(JSON.stringify(valueAt(found.input))).toBe(JSON.stringify(own(body, "input")));
    }),
    { numRuns: 1_000 },
  );
});

test("the text of a part is null when there is none or it is not a string", () => {
  const bytes = bytesOf('{"custom_id":"\\u0061b","method":5}');
  const line = parseLine(bytes)!;
  expect(textOf(bytes, line.customId)).toBe("ab");
  expect(textOf(bytes, line.method)).toBeNull();
  expect(textOf(bytes, line.url)).toBeNull();
});
