import { isUtf8 } from "node:buffer";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  decodeString,
  indexOfKey,
  isJson,
  quoted,
  skipObject,
  skipValue,
} from "../../src/batch/json.ts";
import {
  injuredJson,
  jsonPieces,
  jsonText,
  objectText,
  stringText,
} from "../support/json-arbitraries.ts";

function isValidForJsonParse(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function agreesWithJsonParse(text: string): void {
  expect(isJson(Buffer.from(text)), text).toBe(isValidForJsonParse(text.toWellFormed()));
}

describe("a text is valid exactly when JSON.parse takes it", () => {
  test("for JSON of any spacing and any spelling", () => {
    fc.assert(
      fc.property(jsonText, (text) => {
        expect(isJson(Buffer.from(text)), text).toBe(true);
        agreesWithJsonParse(text);
      }),
      { numRuns: 500 },
    );
  });

  test("for JSON with a few injuries", () => {
    fc.assert(fc.property(injuredJson, agreesWithJsonParse), { numRuns: 2_000 });
  });

  test("for pieces of JSON in any order", () => {
    fc.assert(fc.property(jsonPieces, agreesWithJsonParse), { numRuns: 2_000 });
  });

  test("for JSON that ends too early", () => {
    fc.assert(
      fc.property(jsonText, fc.nat(), (text, cut) =>
        agreesWithJsonParse(text.slice(0, cut % (text.length + 1))),
      ),
      { numRuns: 1_000 },
    );
  });

  test("for any bytes that are UTF-8", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 12 }), (array) => {
        const bytes = Buffer.from(array);
        if (isUtf8(bytes)) agreesWithJsonParse(bytes.toString());
      }),
      { numRuns: 1_000 },
    );
  });

  test.each([
    "",
    " ",
    "01",
    "-",
    "-01",
    "1.",
    ".5",
    "1e",
    "1e+",
    "+1",
    "0x1",
    "NaN",
    "1 2",
    "tru",
    "truee",
    "nul",
    "[",
    "]",
    "[1,]",
    "[,1]",
    "[1 2]",
    "{",
    "{}}",
    "[}",
    "{]",
    '{"a"}',
    '{"a":}',
    '{"a":1,}',
    "{a:1}",
    "{1:1}",
    '"',
    '"\\',
    '"\\"',
    '"\\x"',
    '"\\u12"',
    '"\\u12g4"',
    '"\t"',
    '"\n"',
    "'a'",
    "\ufeff{}",
    "\u00a01",
    "//\n1",
    "0",
    "-0",
    "1e5",
    "1E-5",
    "-1.25e+10",
    '"\\u00e9\\/"',
    "[[],{}]",
    ' {"a" : [ ] } ',
  ])("for %j", agreesWithJsonParse);
});

describe("extents", () => {
  test("are exactly the raw text of each key and each value", () => {
    const member = fc.record({ key: stringText, value: jsonText.map((text) => text.trim()) });
    fc.assert(
      fc.property(objectText(member), fc.string({ maxLength: 3 }), ({ members, text }, tail) => {
        const bytes = Buffer.from(text + tail);
        const end = Buffer.byteLength(text);
        const seen: { key: string; value: string }[] = [];
        const after = skipObject(bytes, 0, end, (keyStart, keyEnd, valueStart) => {
          const valueEnd = skipValue(bytes, valueStart, end);
          seen.push({
            key: bytes.toString("utf8", keyStart, keyEnd),
            value: bytes.toString("utf8", valueStart, valueEnd),
          });
          return valueEnd;
        });
        expect(after).toBe(end);
        expect(seen).toEqual(members);
      }),
      { numRuns: 500 },
    );
  });

  test("never reach behind the end they are given, whatever lies there", () => {
    const cut = (text: string, end: number) => skipValue(Buffer.from(text), 0, end);
    expect(cut('"ab"', 3)).toBe(-1);
    expect(cut('"a\\n"', 3)).toBe(-1);
    expect(cut('"\\u0061"', 5)).toBe(-1);
    expect(cut("true", 3)).toBe(-1);
    expect(cut("1e5", 2)).toBe(-1);
    expect(cut("1e+5", 3)).toBe(-1);
    expect(cut("-5", 1)).toBe(-1);
    expect(cut("1.5", 2)).toBe(-1);
    expect(cut("[]", 1)).toBe(-1);
    expect(cut('{"a":1}', 6)).toBe(-1);
    expect(cut("15", 1)).toBe(1);
  });

  test("stop at the value and leave what follows to the caller", () => {
    expect(skipValue(Buffer.from('{"a":[1]} x'), 0, 11)).toBe(9);
  });
});

describe("nesting", () => {
  const DEPTH = 100_000;

  test("of 100,000 levels is valid when every bracket closes", () => {
    expect(isJson(Buffer.from("[".repeat(DEPTH) + "]".repeat(DEPTH)))).toBe(true);
    expect(isJson(Buffer.from(`${'{"a":'.repeat(DEPTH)}1${"}".repeat(DEPTH)}`))).toBe(true);
  });

  test("of 100,000 levels is invalid when one bracket is missing or of the wrong kind", () => {
    expect(isJson(Buffer.from("[".repeat(DEPTH) + "]".repeat(DEPTH - 1)))).toBe(false);
    expect(isJson(Buffer.from(`${"[".repeat(DEPTH)}${"]".repeat(DEPTH - 1)}}`))).toBe(false);
    expect(isJson(Buffer.from("[".repeat(DEPTH)))).toBe(false);
  });
});

describe("strings", () => {
  test("are decoded as JSON.parse decodes them", () => {
    fc.assert(
      fc.property(stringText, (text) => {
        const bytes = Buffer.from(`  ${text}`);
        expect(decodeString(bytes, { start: 2, end: bytes.length })).toBe(JSON.parse(text));
      }),
    );
  });

  test("match a key however they spell it", () => {
    const keys = quoted(["model", "stream"]);
    const find = (text: string) => indexOfKey(Buffer.from(text), 0, Buffer.byteLength(text), keys);
    expect(find('"stream"')).toBe(1);
    expect(find('"mod\\u0065l"')).toBe(0);
    expect(find('"\\u0073\\u0074ream"')).toBe(1);
    expect(find('"Model"')).toBe(-1);
    expect(find('"model\\u0000"')).toBe(-1);
    expect(find('"model "')).toBe(-1);
    expect(find('"mode"')).toBe(-1);
    expect(find('"__proto__"')).toBe(-1);
  });
});
