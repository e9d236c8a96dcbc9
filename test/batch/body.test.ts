import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { BodyRewriting, type BodyRules, isRewritten } from "../../src/batch/body.ts";
import { bodyOf, parseLine } from "../../src/batch/line.ts";
import { isJson } from "../../src/text/json-scan.ts";
import { isReadBack, jsonText, objectText, stringText } from "../support/json-arbitraries.ts";

const NOTHING: BodyRules = { model: null, defaults: new Map(), extra: new Map() };

const fields = (values: Readonly<Record<string, unknown>>) =>
  new Map(Object.entries(values).map(([name, value]) => [name, JSON.stringify(value)]));

/** Rewrites the body in steps of so many bytes. */
function rewriteBody(body: Buffer, rules: BodyRules, stepBytes = body.length): Buffer {
  const rewriting = new BodyRewriting(rules);
  rewriting.begin(body);
  while (!rewriting.advance(stepBytes));
  return rewriting.result();
}

/** Rewrites the body with any steps, however small. */
function rewrite(body: string, rules: Partial<BodyRules>): string {
  const [whole, inSteps] = [body.length, 3].map((stepBytes) =>
    rewriteBody(Buffer.from(body), { ...NOTHING, ...rules }, stepBytes).toString(),
  );
  expect(inSteps).toBe(whole);
  return whole as string;
}

describe("a model that is renamed", () => {
  test("is replaced wherever it stands at the top, and left alone below", () => {
    expect(
      rewrite('{"model":"a","x":{"model":"b"},"\\u006dodel":null,"model":7}', { model: "u" }),
    ).toBe('{"model":"u","x":{"model":"b"},"\\u006dodel":"u","model":"u"}');
  });

  test.each([
    ["{}", '{"model":"u"}'],
    [" { } ", ' {"model":"u" } '],
    ['{"a":1}', '{"a":1,"model":"u"}'],
    ['{"a":{"model":"m"} }\n', '{"a":{"model":"m"},"model":"u" }\n'],
  ])("is put into a body that has none: %s", (body, expected) => {
    expect(rewrite(body, { model: "u" })).toBe(expected);
  });
});

describe("extra fields", () => {
  test("wherever they stand, however often another forced field is repeated", () => {
    const body = `{"store":true,${'"model":"m",'.repeat(5_000)}"p":1}`;
    const rewritten = rewrite(body, { model: "u", extra: fields({ store: false }) });
    expect(rewritten.startsWith('{"store":false,"model":')).toBe(true);
    expect(JSON.parse(rewritten)).toEqual({ store: false, model: "u", p: 1 });
  });

  test.each(["Max_Tokens", "max_to\u212aens", "max_token\u017f", "MAX\\u005ftokens"])(
    "replace one in other letters, which servers in Go take for the field: %s",
    (key) => {
      const extra = fields({ max_tokens: 5 });
      expect(rewrite(`{"${key}":9,"max_tokens":8,"${key}":7}`, { extra })).toBe(
        `{"${key}":5,"max_tokens":5,"${key}":5}`,
      );
      expect(rewrite(`{"${key}":9}`, { extra })).toBe(`{"${key}":5,"max_tokens":5}`);
      const like = '{"max-tokens":9,"max_token":9,"Min_tokens":9,"x":{"Max_tokens":9}';
      expect(rewrite(`${like}}`, { extra })).toBe(`${like},"max_tokens":5}`);
      const defaults = fields({ max_tokens: 5 });
      expect(rewrite(`{"${key}":9}`, { defaults })).toBe(`{"${key}":9,"max_tokens":5}`);
    },
  );
});

describe("a body stays the same buffer", () => {
  test("and need not be read when there is nothing to do", () => {
    expect(isRewritten(NOTHING)).toBe(false);
    expect(isRewritten({ ...NOTHING, model: "m" })).toBe(true);
    const body = Buffer.from("not JSON");
    expect(() => rewriteBody(body, { ...NOTHING, model: "m" })).toThrow("not a JSON object");
  });

  test("between the first place of a field and the last thousand", () => {
    const places = '"model":"m",'.repeat(5_000);
    const written = rewrite(`{${places}"n":1}`, { model: "u" });
    expect(JSON.parse(written)).toEqual({ model: "u", n: 1 });
    expect(written).toMatch(/^\{"model":"u","model":"m",.*"model":"u","n":1\}$/);
  });
});

const OTHER_CASES = ["Model", "N", "\u017ftop", "STOP"];
const NAMES = ["model", "n", "stop", "__proto__", "constructor", 'a"b', "a\\b", "é", "\ud800", ""];
const name = fc.constantFrom(...NAMES);
const anyCase = fc.constantFrom(...NAMES, ...OTHER_CASES);
const valueText = jsonText.filter(isReadBack).map((text) => text.trim());
/** A key as some program may write it: with needless escapes. */
const keyText = fc.oneof(
  stringText.filter(isReadBack),
  fc.tuple(anyCase, fc.infiniteStream(fc.boolean())).map(([text, dice]) => {
    const units = Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
    const written = units.map((unit) =>
      dice.next().value === true
        ? `\\u${unit.toString(16).padStart(4, "0")}`
        : JSON.stringify(String.fromCharCode(unit)).slice(1, -1),
    );
    return `"${written.join("")}"`;
  }),
);
const body = objectText(fc.record({ key: keyText, value: valueText })).map(({ text }) => text);
const texts = fc
  .array(fc.tuple(name, valueText), { maxLength: 4 })
  .map((entries) => new Map(entries.filter(([field]) => field !== "model")));
const rules = fc.record({
  model: fc.option(fc.string({ unit: "grapheme" })),
  defaults: texts,
  extra: texts,
});

const own = (value: object, key: string) => Object.getOwnPropertyDescriptor(value, key)?.value;
const withoutCase = (text: string) => text.toUpperCase().toLowerCase();
const parse = (text: string) => JSON.parse(text) as object;

test("means to JSON.parse what the rules say, and is otherwise the object that it was", () => {
  fc.assert(
    fc.property(body, rules, (text, { model, defaults, extra }) => {
      const before = parse(text);
      const result = rewrite(text, { model, defaults, extra });
      expect(isJson(Buffer.from(result))).toBe(true);
      const after = parse(result);
      const names = new Set([...Object.keys(before), ...NAMES]);
      const all = new Map([
        ...(model === null ? [] : [["model", JSON.stringify(model)] as const]),
        ...extra,
      ]);
      const inOtherCase = (key: string) =>
        NAMES.includes(key)
          ? undefined
          : [...all].find(([field]) => /^[a-z]+$/.test(field) && field === withoutCase(key))?.[1];
      expect(Object.keys(after).filter((key) => !names.has(key))).toEqual([]);
      for (const key of names) {
        const forced =
          extra.get(key) ??
          inOtherCase(key) ??
          (Object.hasOwn(before, key) ? undefined : defaults.get(key));
        const expected =
          key === "model" && model !== null
            ? model
            : forced === undefined
              ? own(before, key)
              : JSON.parse(forced);
        expect(JSON.stringify(own(after, key))).toBe(JSON.stringify(expected));
      }
    }),
    { numRuns: 2_000 },
  );
});

test("rewriting twice is rewriting once, and leaves the same buffer", () => {
  fc.assert(
    fc.property(body, rules, (text, each) => {
      const once = rewriteBody(Buffer.from(text), each);
      expect(rewriteBody(once, each)).toBe(once);
    }),
  );
});

describe("the body of a line", () => {
  /** A body that names its model, and what stands before and after that name. */
  const aroundModel = fc
    .tuple(body, fc.constantFrom('"m"', '"\\u006d"', '  "m" '), body)
    .map(([before, model, after]) => ({
      head: `{"first": ${before},\t"model":${model.slice(0, model.indexOf('"'))}`,
      model: model.trim(),
      tail: `${model.slice(model.lastIndexOf('"') + 1)},"last":${after}}`,
    }));
  const lineAround = (text: string) =>
    Buffer.from(` {"custom_id":"a","body" : ${text} , "method":"POST"}`);

  test("goes out as the client wrote it, byte for byte, in the memory of the line", () => {
    fc.assert(
      fc.property(aroundModel, ({ head, model, tail }) => {
        const bytes = lineAround(head + model + tail);
        const sent = rewriteBody(bodyOf(bytes, parseLine(bytes)!), NOTHING);
        expect(sent.toString()).toBe(head + model + tail);
        expect(sent.buffer).toBe(bytes.buffer);
      }),
    );
  });

  test("has another model and nothing else changed when an alias says so", () => {
    fc.assert(
      fc.property(aroundModel, fc.string(), ({ head, model, tail }, upstreamModel) => {
        const bytes = lineAround(head + model + tail);
        const sent = rewriteBody(bodyOf(bytes, parseLine(bytes)!), {
          ...NOTHING,
          model: upstreamModel,
        });
        const isSame = JSON.stringify(upstreamModel) === model;
        expect(sent.toString()).toBe(
          head + (isSame ? model : JSON.stringify(upstreamModel)) + tail,
        );
      }),
    );
  });
});
