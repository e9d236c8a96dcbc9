import { describe, expect, test } from "vitest";
import { LineChecker } from "../../src/batch/line-check.ts";
import {
  bytesOf,
  CHAT,
  chatChecker,
  faultOf,
  good,
  RULES,
  withBody,
} from "../support/line-checker.ts";

test("a good line has no fault", () => {
  expect(faultOf(good)).toBeNull();
  for (const stream of [false, null, 0, "", {}]) {
    expect(faultOf(withBody({ ...good.body, stream })), JSON.stringify(stream)).toBeNull();
  }
  expect(faultOf(withBody({ ...good.body, stream: "true", max_tokens: -1 }))).toBeNull();
  expect(faultOf({ extra: [1, { a: null }], ...good })).toBeNull();
});

test.each([
  ["Model", "Model"],
  ["MODEL", "MODEL"],
  ["mod\\u0045l", "modEl"],
  ["\\u004d\\u004f\\u0044\\u0045\\u004c", "MODEL"],
])("a body with the key %s, which servers in Go take for the model, is refused", (key, name) => {
  const bodies = [`{"model":"m","${key}":"x","messages":[]}`, `{"${key}":"x","model":"m"}`];
  for (const body of bodies) {
    const line = JSON.stringify(withBody("BODY")).replace('"BODY"', body);
    expect(faultOf(line)).toEqual({
      code: "invalid_request",
      message: `Unknown parameter: 'body.${name}'. The model is in 'body.model'.`,
      param: `body.${name}`,
    });
  }
});

test.each([
  '"Stream":true',
  '"stream":false,"STREAM":true',
  '"stream":true,"Stream":false',
  '"\\u017ftream":true',
])("a body that asks some servers to stream is refused: %s", (members) => {
  const body = `{"model":"m","messages":[],${members}}`;
  const line = JSON.stringify(withBody("BODY")).replace('"BODY"', body);
  expect(faultOf(line)).toMatchObject({ code: "streaming_unsupported", param: "body.stream" });
  const calm = line.replaceAll("true", "false");
  expect(faultOf(calm)).toBeNull();
});

test.each(['"model":"x"', '"mod\\u0065l":"x"', '"model":null'])(
  "a body with two models is refused, as servers differ in which they take: %s",
  (other) => {
    for (const members of [`"model":"m",${other}`, `${other},"model":"m"`]) {
      const line = JSON.stringify(withBody("BODY")).replace('"BODY"', `{${members},"messages":[]}`);
      expect(faultOf(line)).toEqual({
        code: "invalid_request",
        message: "Duplicate parameter: 'body.model' has two values.",
        param: "body.model",
      });
    }
    const body = `{"model":"m","messages":[],"model":"m"}`;
    const line = JSON.stringify(withBody("BODY")).replace('"BODY"', body);
    expect(faultOf(line)).toBeNull();
  },
);

test("keys that only resemble the model, or stand elsewhere, are no fault", () => {
  const others = { Models: 1, mode: 1, metadata: { Model: 1 }, Modem: 1, "m\u00f6del": 1, M: 1 };
  expect(faultOf({ ...withBody({ ...good.body, ...others }), extra: { Model: 1 } })).toBeNull();
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
    '{"custom_id":"a","body":{"model":"m",}}',
    '{"custom_id":"NaN"',
    '{"custom_id":"a","body":{"seed":NaN,}}',
    '{"custom_id":"a","body":{"seed":nan}}',
    `[${JSON.stringify("x".repeat(65_536))}]`,
  ])("%s", (line) => expect(faultOf(line)).toEqual(fault));

  test.each(["[]", "null", "17", '"text"'])("with a hint when it is other JSON: %s", (line) => {
    const message = `${fault.message} (HINT: It is JSON, but not an object. Each line must be one.)`;
    expect(faultOf(line)).toEqual({ ...fault, message });
  });

  test.each([
    '{"custom_id":"a","body":{"seed":NaN}}',
    '{"custom_id":"NaN","body":{"logit_bias":[-Infinity,1,Infinity]}}',
  ])("with a hint when a value is no number: %s", (line) => {
    expect(faultOf(line)?.code).toBe(fault.code);
    expect(faultOf(line)?.message).toContain(
      `${fault.message} (HINT: It is JSON but for NaN or Infinity, which JSON does not have.`,
    );
  });
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
    [7, "an integer"],
    [1.5, "a decimal"],
    [null, "null"],
    [true, "a boolean"],
    [{}, "an object"],
    [["a"], "an array"],
  ])("custom_id %j, with what it is", (value, got) => {
    expect(faultOf({ ...good, custom_id: value })?.message).toBe(
      `Invalid type for 'custom_id': expected a string, but got ${got} instead.`,
    );
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
  test.each([{ messages: [] }, { model: "", messages: [] }, { nested: { model: "m" } }])(
    "without a model: %j",
    (body) => {
      expect(faultOf(withBody(body))).toEqual({
        code: "invalid_request",
        message: "Model parameter is required.",
        param: "body.model",
      });
    },
  );

  test.each([
    [4, "an integer"],
    [false, "a boolean"],
    [{ id: "m" }, "an object"],
    [["m"], "an array"],
  ])("for a model that is no text, with what it is: %j", (model, got) => {
    expect(faultOf(withBody({ ...good.body, model }))).toEqual({
      code: "invalid_type",
      message: `Invalid type for 'body.model': expected a string, but got ${got} instead.`,
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
});
