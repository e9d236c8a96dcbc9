import { describe, expect, test } from "vitest";
import { bytesOf, chatChecker, faultOf, good, withBody } from "../support/line-checker.ts";

describe("across the lines of a file", () => {
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
      expect(fault).toMatchObject({ code: "invalid_type", param: "body.model" });
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
