import * as fc from "fast-check";
import { expect, test } from "vitest";
import {
  escapeJson,
  fillTemplate,
  parseTemplate,
  type Template,
} from "../../src/batch/template.ts";
import { type JsonPath, JsonPaths } from "../../src/text/json-paths.ts";

/** Follows a path through a value as JSON.parse returns it. */
function at(value: unknown, path: JsonPath): unknown {
  let found = value;
  for (const key of path) {
    if (Array.isArray(found)) {
      if (!/^(?:0|[1-9][0-9]*)$/.test(key)) return undefined;
      found = found[Number(key)];
    } else if (typeof found === "object" && found !== null && Object.hasOwn(found, key)) {
      found = (found as Record<string, unknown>)[key];
    } else return undefined;
  }
  return found;
}

function find(json: Buffer, paths: readonly JsonPath[], stepBytes = 1 << 20): (string | null)[] {
  const reading = new JsonPaths(paths);
  // The first pass leaves nothing behind for the second.
  for (const text of [Buffer.from('{"a":{"b":[1,{"a":2}]}}'), json]) {
    reading.begin(text);
    while (!reading.advance(stepBytes));
  }
  return reading.result().map((found) => found && json.toString("utf8", found.start, found.end));
}

/** The keys are few, so that paths meet values, and there are some that a careless reader would take for more. */
const aKey = fc.constantFrom(
  "a",
  "b",
  "0",
  "1",
  "__proto__",
  "constructor",
  "é",
  "👾",
  "01",
  "-1",
  'a"b',
);
const aJson = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 5, withCrossShrink: true },
    fc.oneof(
      fc.string({ unit: "binary" }),
      fc.double({ noNaN: true }),
      fc.boolean(),
      fc.constant(null),
    ),
    fc.array(tie("value"), { maxLength: 4 }),
    fc.array(fc.tuple(aKey, tie("value")), { maxLength: 4 }).map((members) => new Members(members)),
  ),
})).value;

/** An object that may have a key several times. */
class Members {
  readonly members: readonly (readonly [string, unknown])[];
  constructor(members: readonly (readonly [string, unknown])[]) {
    this.members = members;
  }
}

function spell(value: unknown, isSpaced: boolean): string {
  const gap = isSpaced ? " \t" : "";
  if (Array.isArray(value))
    return `[${gap}${value.map((each) => spell(each, isSpaced)).join(`${gap},`)}]`;
  if (!(value instanceof Members)) return JSON.stringify(value);
  const members = value.members.map(([key, each], i) => {
    const spelled = i % 2 === 0 ? JSON.stringify(key) : `"${[...key].map(escapeAll).join("")}"`;
    return `${spelled}${gap}:${gap}${spell(each, isSpaced)}`;
  });
  return `{${members.join(`${gap},`)}${gap}}`;
}
const escapeAll = (character: string) =>
  Array.from(
    { length: character.length },
    (_, i) => `\\u${character.charCodeAt(i).toString(16).padStart(4, "0")}`,
  ).join("");

test("the values at any paths are those that JSON.parse would lead to, wherever the pass pauses", () => {
  const aPath = fc.array(aKey, { maxLength: 4 });
  fc.assert(
    fc.property(
      ...([aJson, fc.array(aPath, { minLength: 1, maxLength: 6 })] as const),
      ...([fc.boolean(), fc.integer({ min: 1, max: 9 })] as const),
      (value, paths, isSpaced, stepBytes) => {
        const json = Buffer.from(spell(value, isSpaced));
        const parsed = JSON.parse(json.toString()) as unknown;
        const found = find(json, paths, stepBytes);
        paths.forEach((path, i) => {
          const text = found[i] ?? null;
          const wanted = at(parsed, path);
          if (wanted === undefined) expect(text).toBeNull();
          else expect(JSON.parse(text ?? "0")).toEqual(wanted);
        });
      },
    ),
    { numRuns: 1_000 },
  );
});

test("deep, long and hostile texts are read without recursion and in little memory", () => {
  const deep = 200_000;
  const nested = Buffer.from(`${'{"a":'.repeat(deep)}1${"}".repeat(deep)}`);
  expect(find(nested, [["a", "b"], ["a"]])[0]).toBeNull();
  const list = Buffer.from(`[${"1,".repeat(100_000)}2]`);
  expect(find(list, [["100000"], ["100001"], ["999999999999999999999"], ["length"]])).toEqual([
    "2",
    null,
    null,
    null,
  ]);
});

const parsed = (template: unknown): Template => {
  const found = parseTemplate(template);
  if (typeof found === "string") throw new Error(found);
  return found;
};

/** Fills a template from the parts of a line, as the engine does. */
function fill(template: Template, line: Readonly<Record<string, unknown>>): string | null {
  const json = Buffer.from(JSON.stringify(line));
  const paths = template.placeholders.map(({ root, path }) => [root, ...path]);
  const reading = new JsonPaths(paths);
  reading.begin(json);
  while (!reading.advance(7));
  const found = reading.result().map((extent) => extent && { bytes: json, extent });
  const filled = fillTemplate(template, found);
  if (!filled.ok) return null;
  return Buffer.concat(
    filled.pieces.map(({ bytes, isEscaped }) => (isEscaped ? escapeJson(bytes) : bytes)),
  ).toString();
}

/** What a template means, written down without bytes. */
function expected(template: unknown, line: unknown): unknown {
  if (Array.isArray(template)) return template.map((each) => expected(each, line));
  if (typeof template === "object" && template !== null) {
    return Object.fromEntries(
      Object.entries(template).map(([key, each]) => [key, expected(each, line)]),
    );
  }
  if (typeof template !== "string") return template;
  const whole = /^\{\{([^{}]*)\}\}$/.exec(template);
  const valueAt = (path: string) => {
    const value = at(line, path.trim().split("."));
    if (value === undefined) throw new Error("missing");
    return value;
  };
  if (whole !== null) return valueAt(whole[1] ?? "");
  return template.replaceAll(/\{\{([^{}]*)\}\}/g, (_, path: string) => {
    const value = valueAt(path);
    if (value === null) throw new Error("null");
    return typeof value === "string" ? value : JSON.stringify(value);
  });
}

test("a template means what it says, for any template and any line", () => {
  const aPlaceholder = fc.constantFrom(
    "{{custom_id}}",
    "{{ input.a }}",
    "{{input.a.0}}",
    "{{output.é.b}}",
    "{{output}}",
    "{{input.none}}",
  );
  const aText = fc
    .array(
      fc.oneof(
        aPlaceholder,
        fc.string({ unit: "binary" }).map((text) => text.replaceAll(/[{}]/g, "")),
      ),
      {
        maxLength: 3,
      },
    )
    .map((pieces) => pieces.join(""));
  const aTemplate = fc.dictionary(
    aKey.filter((key) => key !== "__proto__"),
    fc.oneof(aText, fc.array(aText), fc.integer()),
  );
  const aValue = fc.jsonValue({ maxDepth: 2 });
  fc.assert(
    fc.property(aTemplate, aValue, aValue, (template, a, é) => {
      const line = { custom_id: 'line "1"', input: { a }, output: { é } };
      let wanted: unknown;
      try {
        wanted = expected(template, line);
      } catch {
        expect(fill(parsed(template), line)).toBeNull();
        return;
      }
      // JSON has no negative zero in a text.
      expect(JSON.parse(fill(parsed(template), line) ?? "")).toEqual(
        JSON.parse(JSON.stringify(wanted)),
      );
    }),
    { numRuns: 1_000 },
  );
});

test("numbers and spellings are copied as they are", () => {
  const template = parsed({ n: "{{input.n}}", s: "n = {{input.n}}, s = {{input.s}}, {{'{{'}}x}}" });
  const json = Buffer.from('{"input":{"n":12345678901234567890.10,"s":"\\u00e9"}}');
  const reading = new JsonPaths(template.placeholders.map(({ root, path }) => [root, ...path]));
  reading.begin(json);
  while (!reading.advance(100));
  const filled = fillTemplate(
    template,
    reading.result().map((extent) => extent && { bytes: json, extent }),
  );
  const text = filled.ok ? Buffer.concat(filled.pieces.map(({ bytes }) => bytes)).toString() : "";
  expect(text).toBe(
    '{"n":12345678901234567890.10,"s":"n = 12345678901234567890.10, s = \\u00e9, {{x}}"}',
  );
});

test("a template that cannot be meant is refused with the reason", () => {
  const nested = (depth: number): unknown => (depth === 0 ? 1 : { a: nested(depth - 1) });
  for (const [template, reason] of [
    [{ a: "{{foo}}" }, "unknown placeholder '{{foo}}'"],
    [{ a: "{{custom_id.a}}" }, "unknown placeholder"],
    [{ a: "{{input..a}}" }, "unknown placeholder"],
    [{ a: "{{}}" }, "unknown placeholder"],
    [{ a: "{{input.a" }, "'{{' without '}}'"],
    [{ "{{input.a}}": 1 }, "a key has a placeholder"],
    [{ a: "x".repeat(33_000) }, "longer than 32768 bytes"],
    [JSON.parse('{"a":[1e400]}'), "a number is too large"],
    [JSON.parse('{"a":-1e400}'), "a number is too large"],
    [nested(40), "nested deeper than 32 levels"],
    [JSON.parse(`{"a":${"[".repeat(50_000)}${"]".repeat(50_000)}}`), "nested deeper"],
  ] as const) {
    expect(parseTemplate(template)).toEqual(expect.stringContaining(reason));
  }
});
