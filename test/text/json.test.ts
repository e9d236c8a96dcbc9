import { isUtf8 } from "node:buffer";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { decodeStart, decodeString, indexOfKey, quoted } from "../../src/text/json.ts";
import { isJson, JsonScan, type Member } from "../../src/text/json-scan.ts";
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

/** The members that a scan reports, read in steps of so many bytes. */
function membersOf(text: string, { depth, stepBytes }: { depth: 1 | 2; stepBytes: number }) {
  const bytes = Buffer.from(text);
  const members: (Member & { key: string; value: string })[] = [];
  const scan = new JsonScan(depth, (member) => {
    const { depth, keyStart, keyEnd, start, end, commaCount } = member;
    const key = bytes.toString("utf8", keyStart, keyEnd);
    const value = bytes.toString("utf8", start, end);
    members.push({ depth, keyStart, keyEnd, start, end, commaCount, key, value });
  });
  scan.begin(bytes);
  while (!scan.advance(stepBytes));
  return { members, isValid: scan.isValid };
}

const stepBytes = fc.integer({ min: 1, max: 40 });

describe("a scan that stops after any number of bytes", () => {
  test("finds the same texts valid", () => {
    fc.assert(
      fc.property(fc.oneof(jsonText, injuredJson, jsonPieces), stepBytes, (text, stepBytes) => {
        const isValid = isValidForJsonParse(text.toWellFormed());
        expect(membersOf(text, { depth: 1, stepBytes }).isValid, text).toBe(isValid);
      }),
      { numRuns: 2_000 },
    );
  });

  test("reports the same members", () => {
    const options = { numRuns: 500 };
    const property = fc.property(jsonText, stepBytes, (text, stepBytes) => {
      const whole = membersOf(text, { depth: 2, stepBytes: text.length + 1 });
      expect(membersOf(text, { depth: 2, stepBytes })).toEqual(whole);
    });
    fc.assert(property, options);
  });
});

describe("members", () => {
  test("are reported with the raw text of each key and each value", () => {
    const member = fc.record({ key: stringText, value: jsonText.map((text) => text.trim()) });
    fc.assert(
      fc.property(objectText(member), stepBytes, ({ members, text }, stepBytes) => {
        const seen = membersOf(text, { depth: 1, stepBytes });
        expect(seen.isValid).toBe(true);
        expect(seen.members.map(({ key, value }) => ({ key, value }))).toEqual(members);
      }),
      { numRuns: 500 },
    );
  });

  test("of an object in an object come before the member that holds it, those of deeper ones never", () => {
    const { members } = membersOf('{"a":{"b":{"c":1},"d":[{"e":2}]},"f":[{"g":3}]}', {
      depth: 2,
      stepBytes: 3,
    });
    expect(members.map(({ depth, key }) => [depth, key])).toEqual([
      [2, '"b"'],
      [2, '"d"'],
      [1, '"a"'],
      [1, '"f"'],
    ]);
  });

  test("say how many commas stand between the elements of an array", () => {
    const { members } = membersOf('{"a":["x,y",[1,2,3],"z"],"b":[],"c":"1,2"}', {
      depth: 1,
      stepBytes: 5,
    });
    expect(members.map(({ commaCount }) => commaCount)).toEqual([2, 0, 0]);
  });
});

test("a number of more than 64 KiB is no JSON here", () => {
  expect(isJson(Buffer.from("1".repeat(65_535)))).toBe(true);
  expect(isJson(Buffer.from("1".repeat(65_537)))).toBe(false);
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

  test("are decoded as far as the caller wants to see them", () => {
    const start = (text: string, maxBytes: number) =>
      decodeStart(Buffer.from(text), { start: 0, end: Buffer.byteLength(text) }, maxBytes);
    expect(start('"abc"', 10)).toBe("abc");
    expect(start('"abc"', 2)).toBe("ab");
    expect(start('"a\\u0062c"', 2)).toBe("ab");
    expect(start('"a\\\\c"', 2)).toBe("a\\");
  });
});
