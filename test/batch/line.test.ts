import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ModelRules } from "../../src/batch/file-models.ts";
import { leavesModelOpen, modelOf, parseLine, textOf } from "../../src/batch/line.ts";
import { LineChecker } from "../../src/batch/line-check.ts";
import { isReadBack, jsonText, objectText } from "../support/json-arbitraries.ts";

const CHAT = "/v1/chat/completions";

const good = {
  custom_id: "a",
  method: "POST",
  url: CHAT,
  body: { model: "m", messages: [] },
};

const bytesOf = (line: unknown) =>
  Buffer.from(typeof line === "string" ? line : JSON.stringify(line));

/** Every model has a route but one; two go by other names of the same. */
const RULES: ModelRules = {
  routeKeyOf: (model) => (model === "unknown" ? null : model.replace(/^alias of /, "")),
  defaultModel: null,
  allowsMixedModels: false,
};

const chatChecker = (rules: Partial<ModelRules> = {}) =>
  new LineChecker(CHAT, { ...RULES, ...rules });

/** What a fresh checker says about one line of a chat batch. */
const faultOf = (line: unknown) => chatChecker().findFault(bytesOf(line));

const withBody = (body: unknown) => ({ ...good, body });

test("a good line has no fault", () => {
  expect(faultOf(good)).toBeNull();
  for (const stream of [false, null, 0, "", {}]) {
    expect(faultOf(withBody({ ...good.body, stream })), JSON.stringify(stream)).toBeNull();
  }
  expect(faultOf(withBody({ ...good.body, stream: "true", max_tokens: -1 }))).toBeNull();
  expect(faultOf({ extra: [1, { a: null }], ...good })).toBeNull();
});

describe("a line that is not one JSON object is invalid_json_line", () => {
  const fault = {
    code: "invalid_json_line",
    message: "This line is not parseable as valid JSON.",
    param: null,
  };
  test.each([
    "not json",
    "{",
    `${JSON.stringify(good)} {}`,
    `${JSON.stringify(good)},`,
    "[]",
    "null",
    "17",
    '"text"',
    '{"custom_id":"a","body":{"model":"m",}}',
  ])("%s", (line) => expect(faultOf(line)).toEqual(fault));
});

describe("a part with a wrong value is named", () => {
  test.each([
    [{ ...good, custom_id: 7 }, "invalid_type", "custom_id"],
    [{ ...good, custom_id: null }, "invalid_type", "custom_id"],
    [{ ...good, custom_id: "" }, "invalid_value", "custom_id"],
    [{ ...good, method: "GET" }, "invalid_method", "method"],
    [{ ...good, method: "post" }, "invalid_method", "method"],
    [{ ...good, method: null }, "invalid_method", "method"],
    [withBody("text"), "invalid_type", "body"],
    [withBody([{ model: "m" }]), "invalid_type", "body"],
    [withBody(null), "invalid_type", "body"],
  ])("%j", (line, code, param) => {
    const fault = faultOf(line);
    expect(fault).toMatchObject({ code, param });
    expect(fault?.message).toContain(`'${param}'`);
  });

  test.each([
    "/v1/completions",
    "/v1/chat/completions/",
    "/completions",
    "chat/completions",
    "v1/chat/completions",
    "/v2/chat/completions",
    "https://api.openai.com/v1/chat/completions",
    "",
    null,
    5,
  ])("url %j", (url) => {
    expect(faultOf({ ...good, url })).toEqual({
      code: "invalid_url",
      message: "The URL provided for this request does not match the batch endpoint.",
      param: "url",
    });
  });
});

describe("a body that cannot run is refused", () => {
  test.each([
    { messages: [] },
    { model: "", messages: [] },
    { model: 4, messages: [] },
    { nested: { model: "m" } },
  ])("without a model: %j", (body) => {
    expect(faultOf(withBody(body))).toEqual({
      code: "invalid_request",
      message: "Model parameter is required.",
      param: "body.model",
    });
  });

  test("for a model whose name is too long to be one", () => {
    const fits = new LineChecker(CHAT, RULES);
    expect(fits.findFault(bytesOf(withBody({ ...good.body, model: "m".repeat(1024) })))).toBeNull();
    const fault = faultOf(withBody({ ...good.body, model: "m".repeat(1025) }));
    expect(fault?.code).toBe("model_not_found");
  });
});

test("a url may leave out /v1, as Azure's clients write it", () => {
  expect(faultOf({ ...good, url: "/chat/completions" })).toBeNull();
  expect(faultOf(JSON.stringify({ ...good, url: CHAT }).replaceAll("/", "\\/"))).toBeNull();
});

test("a message quotes no more than a bit of what the client wrote", () => {
  const long = "x".repeat(1_000_000);
  const longId = "x".repeat(65_000);
  const checker = chatChecker();
  const faultsOf = (line: unknown) => checker.findFault(bytesOf(line))?.message.length ?? 0;
  expect(faultsOf({ ...good, custom_id: longId })).toBe(0);
  for (const line of [
    { ...good, custom_id: longId },
    { ...good, custom_id: long },
    { ...good, custom_id: "b", body: { ...good.body, model: long } },
    { ...good, custom_id: "c", body: { ...good.body, model: "n".repeat(1_000) } },
    { ...good, custom_id: "d", method: long },
    { ...good, custom_id: "e", url: long },
  ]) {
    const length = faultsOf(line);
    expect(length).toBeGreaterThan(0);
    expect(length).toBeLessThan(500);
  }
});

describe("inputs to embed", () => {
  const count = (input: unknown) => {
    const checker = new LineChecker("/v1/embeddings", RULES);
    const body = { model: "m", input };
    checker.findFault(bytesOf({ ...good, url: "/v1/embeddings", body }));
    return checker.inputCount;
  };

  test.each<[unknown, number]>([
    ["one text", 1],
    ["", 1],
    [["a"], 1],
    [["a", "b,c", "[d"], 3],
    [[1, 2, 3], 1],
    [[[1, 2], [3], []], 3],
    [[], 1],
    [{ text: "a" }, 1],
    [null, 1],
    [undefined, 0],
  ])("of %j are %i", (input, expected) => expect(count(input)).toBe(expected));

  test("are counted whatever the spacing", () => {
    const checker = new LineChecker("/v1/embeddings", RULES);
    checker.findFault(
      bytesOf(
        '{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input": [ "x" ,\t"y" ,[ ] ], "model":"m"}}',
      ),
    );
    expect(checker.inputCount).toBe(3);
  });

  test("are counted over all lines, and for embeddings alone", () => {
    const embeddings = new LineChecker("/v1/embeddings", RULES);
    const chat = chatChecker();
    for (const custom_id of ["a", "b", "c"]) {
      const body = { model: "m", messages: [], input: ["x", "y"] };
      embeddings.findFault(bytesOf({ ...good, custom_id, url: "/v1/embeddings", body }));
      chat.findFault(bytesOf({ ...good, custom_id, body }));
    }
    expect([embeddings.inputCount, chat.inputCount]).toEqual([6, 0]);
  });
});

describe("across the lines of a file", () => {
  test("a custom_id that comes again is a duplicate, however it is spelled", () => {
    const checker = chatChecker();
    expect(checker.findFault(bytesOf(good))).toBeNull();
    const spelled = JSON.stringify(good).replace('"a"', '"\\u0061"');
    expect(checker.findFault(bytesOf(spelled))).toEqual({
      code: "duplicate_custom_id",
      message:
        "The custom_id 'a' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.",
      param: "custom_id",
    });
    expect(checker.findFault(bytesOf({ ...good, custom_id: "A" }))).toBeNull();
  });

  test("the first known model is the model of the file, and any other one is refused", () => {
    const checker = chatChecker();
    const check = (custom_id: string, model: string) =>
      checker.findFault(bytesOf({ ...good, custom_id, body: { ...good.body, model } }))?.code ??
      null;
    expect(checker.model).toBeNull();
    expect(check("1", "unknown")).toBe("model_not_found");
    expect(checker.model).toBeNull();
    expect(check("2", 'first "one"')).toBeNull();
    expect(checker.model).toBe('first "one"');
    expect(check("3", 'first "one"')).toBeNull();
    expect(check("4", "second")).toBe("mismatched_model");
    expect(check("5", "unknown")).toBe("model_not_found");
    expect(check("6", 'first "one"')).toBeNull();
  });

  test("the same model spelled with escapes is the same model", () => {
    const checker = chatChecker();
    expect(checker.findFault(bytesOf(good))).toBeNull();
    const spelled = JSON.stringify({ ...good, custom_id: "b" }).replace('"m"', '"\\u006d"');
    expect(checker.findFault(bytesOf(spelled))).toBeNull();
  });
});

describe("a model that is left open", () => {
  const open: [string, object][] = [
    ["missing", { messages: [] }],
    ["null", { model: null, messages: [] }],
    ["empty", { model: "", messages: [] }],
  ];

  test.each(open)("is the default one: %s", (_case, body) => {
    const checker = chatChecker({ defaultModel: "d" });
    expect(checker.findFault(bytesOf(withBody(body)))).toBeNull();
    expect(checker.model).toBe("d");
    expect(checker.latestModel).toMatchObject({ name: "d", routeKey: "d" });
  });

  test.each(open)("is refused without a default: %s", (_case, body) => {
    expect(faultOf(withBody(body))?.message).toBe("Model parameter is required.");
  });

  test("is the same as the default one by its name", () => {
    const checker = chatChecker({ defaultModel: "d" });
    const check = (custom_id: string, model: unknown) =>
      checker.findFault(bytesOf({ ...good, custom_id, body: { model, messages: [] } }))?.code ??
      null;
    expect(check("1", "")).toBeNull();
    expect(check("2", "d")).toBeNull();
    expect(check("3", null)).toBeNull();
    expect(check("4", "m")).toBe("mismatched_model");
    expect(check("5", undefined)).toBeNull();
  });

  test("differs from the model of the lines before it", () => {
    const checker = chatChecker({ defaultModel: "d" });
    expect(checker.findFault(bytesOf(good))).toBeNull();
    const open = { ...good, custom_id: "b", body: { messages: [] } };
    expect(checker.findFault(bytesOf(open))?.message).toMatch(/^The model 'd' for this request/);
  });

  test("is not found when no upstream serves the default one", () => {
    const checker = chatChecker({ defaultModel: "unknown" });
    expect(checker.findFault(bytesOf(withBody({ messages: [] })))).toEqual({
      code: "model_not_found",
      message: "The provided model 'unknown' is not supported by the Batch API.",
      param: "body.model",
    });
  });

  test("is none that is not a name", () => {
    const checker = chatChecker({ defaultModel: "d" });
    for (const model of [4, {}, [], false]) {
      const fault = checker.findFault(
        bytesOf({ ...good, custom_id: JSON.stringify(model), body: { model, messages: [] } }),
      );
      expect(fault?.message).toBe("Model parameter is required.");
    }
  });
});

describe("where several models are allowed", () => {
  const mixed = { allowsMixedModels: true, defaultModel: "d" };

  test("each line has its own, whatever came before it", () => {
    const checker = chatChecker(mixed);
    const latest = (custom_id: string, model: string | null) => {
      const line = bytesOf({ ...good, custom_id, body: { model, messages: [] } });
      const code = checker.findFault(line)?.code;
      return code ?? [checker.latestModel?.name, checker.latestModel?.routeKey];
    };
    expect(latest("1", "a")).toEqual(["a", "a"]);
    expect(latest("2", "alias of a")).toEqual(["alias of a", "a"]);
    expect(latest("3", null)).toEqual(["d", "d"]);
    expect(latest("4", "unknown")).toBe("model_not_found");
    expect(latest("5", "a")).toEqual(["a", "a"]);
    expect(latest("6", "")).toEqual(["d", "d"]);
    expect(latest("7", "größe ☃")).toEqual(["größe ☃", "größe ☃"]);
    expect(latest("8", "alias of a")).toEqual(["alias of a", "a"]);
    expect(checker.model).toBe("a");
  });

  test("a route is looked up once for each spelling, not for each line", () => {
    const asked: string[] = [];
    const routeKeyOf = (model: string) => {
      asked.push(model);
      return model;
    };
    const checker = chatChecker({ ...mixed, routeKeyOf });
    for (let i = 0; i < 300; i++) {
      const body = { model: `m${i % 3}`, messages: [] };
      expect(checker.findFault(bytesOf({ ...good, custom_id: `${i}`, body }))).toBeNull();
    }
    expect(asked).toEqual(["m0", "m1", "m2"]);
  });

  test("more models than are remembered are no less right", () => {
    const checker = chatChecker(mixed);
    for (let i = 0; i < 2_000; i++) {
      const body = { model: `m${i % 1_000}`, messages: [] };
      expect(checker.findFault(bytesOf({ ...good, custom_id: `${i}`, body }))).toBeNull();
      expect(checker.latestModel?.name).toBe(`m${i % 1_000}`);
    }
  });

  test("a remembered name outlives the bytes that it came in", () => {
    const checker = chatChecker(mixed);
    const line = bytesOf(good);
    expect(checker.findFault(line)).toBeNull();
    line.fill(0x20);
    expect(checker.findFault(bytesOf({ ...good, custom_id: "b" }))).toBeNull();
    expect(checker.latestModel?.name).toBe("m");
  });
});

test("whoever sends a line finds the model that it was accepted with", () => {
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
      expect(JSON.stringify(valueAt(found.stream))).toBe(JSON.stringify(own(body, "stream")));
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
