import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { parseLine } from "../../src/batch/line.ts";
import { Parameters } from "../../src/batch/parameters.ts";

function summaryOf(bodies: readonly string[]) {
  const parameters = new Parameters();
  for (const body of bodies) {
    const bytes = Buffer.from(`{"custom_id":"a","body":${body}}`);
    const line = parseLine(bytes);
    if (line === null) throw new Error("no line");
    parameters.add(bytes, line);
  }
  return parameters.finish();
}

const summaryOfBodies = (...bodies: object[]) =>
  summaryOf(bodies.map((body) => JSON.stringify(body)));

describe("the parameters of all lines", () => {
  test("are those that every line has with the same value", () => {
    const same = { temperature: 0.5, stop: ["a", "b"], stream: null };
    const summary = summaryOfBodies({ ...same, user: "1" }, { ...same, user: "2" });
    expect(summary).toEqual({ common: same, large: [], varying: ["user"], left_out: 0 });
  });

  test("have no content and no model, at any endpoint", () => {
    const content = { messages: [], input: "a", prompt: "b", instructions: "c", suffix: "d" };
    expect(summaryOfBodies({ model: "m", ...content, n: 1 })).toMatchObject({
      common: { n: 1 },
      varying: [],
    });
  });

  test("have no credentials, at any depth and in no address", () => {
    const secret = "sk-4711";
    const tool = (name: string, value: unknown) => ({
      type: "mcp",
      server_label: "a",
      [name]: value,
    });
    const body = {
      api_key: secret,
      "X-Api-Key": secret,
      hf_token: secret,
      max_tokens: 9,
      extra_headers: { "X-Team": secret, list: [secret, 1] },
      tools: [
        tool("authorization", secret),
        tool("headers", { Authorization: `Bearer ${secret}` }),
        tool("server_url", `https://me:${secret}@mcp.example.com/a@b`),
        tool(
          "server_url",
          `https://mcp.example.com/?a=1&exampleApiKey=${secret}&X-Amz-Security-Token=${secret}#x`,
        ),
        { type: "function", function: { parameters: { properties: { password: { type: "x" } } } } },
      ],
    };
    const { common } = summaryOfBodies(body, body);
    expect(JSON.stringify(common)).not.toContain(secret);
    expect(common).toMatchObject({
      api_key: "[redacted]",
      max_tokens: 9,
      extra_headers: { list: ["[redacted]", 1] },
      tools: [
        { type: "mcp", server_label: "a", authorization: "[redacted]" },
        {},
        { server_url: "https://[redacted]@mcp.example.com/a@b" },
        {
          server_url:
            "https://mcp.example.com/?a=1&exampleApiKey=[redacted]&X-Amz-Security-Token=[redacted]#x",
        },
        { function: { parameters: { properties: { password: { type: "x" } } } } },
      ],
    });
    expect(JSON.stringify(summaryOfBodies({ input: secret, inputs: secret }))).not.toContain(
      secret,
    );
  });

  test("are compared member by member at every depth", () => {
    const format = (name: string) => ({ type: "json", schema: { name, strict: true } });
    expect(summaryOfBodies({ format: format("x") }, { format: format("y") })).toMatchObject({
      common: { format: { type: "json", schema: { strict: true } } },
      varying: ["format.schema.name"],
    });
  });

  test("name the whole where it varies, and no member that varied before", () => {
    const bodies = [{ name: "x", strict: true }, { name: "y", strict: true }, "auto"];
    const formats = bodies.map((schema) => ({ format: { schema, type: "json" } }));
    expect(summaryOfBodies(...formats)).toMatchObject({
      common: { format: { type: "json" } },
      varying: ["format.schema"],
    });
  });

  test("are the same in another order and another spelling", () => {
    const summary = summaryOf([
      '{"a":{"x":1,"y":2},"t":1.0}',
      '{ "t":1, "\\u0061":{"y":2, "x":1} }',
    ]);
    expect(summary).toMatchObject({ common: { a: { x: 1, y: 2 }, t: 1 }, varying: [] });
  });

  test("with a name that means something in JavaScript are like any other", () => {
    const summary = summaryOf(['{"__proto__":{"a":1},"constructor":2}', '{"__proto__":{"a":1}}']);
    expect(JSON.stringify(summary.common)).toBe('{"__proto__":{"a":1}}');
    expect(summary.varying).toEqual(["constructor"]);
  });

  test("are named with their hash when they are long, and counted when they are too many", () => {
    const tools = Array.from({ length: 500 }, (_, i) => ({ name: `tool-${i}` }));
    const many = Object.fromEntries(Array.from({ length: 150 }, (_, i) => [`p${i}`, i]));
    const summary = summaryOfBodies({ tools, ...many }, { tools, ...many });
    expect(summary.large).toEqual([
      {
        name: "tools",
        bytes: JSON.stringify(tools).length,
        sha256: expect.stringMatching(/^\w{64}$/),
      },
    ]);
    expect(Object.keys(summary.common)).toHaveLength(99);
    expect(summary.left_out).toBe(51);
  });

  test("keep the last of two values with one key", () => {
    expect(summaryOf(['{"a":1,"a":2}', '{"a":2}'])).toMatchObject({ varying: ["a"] });
  });
});

test("what is common is common, for any bodies", () => {
  const value = fc.oneof(fc.constantFrom(1, 2, null, "x"), fc.constantFrom([1], [2], { k: 1 }));
  const body = fc.dictionary(fc.constantFrom("a", "b", "c"), value);
  fc.assert(
    fc.property(fc.array(body, { minLength: 1, maxLength: 5 }), (bodies) => {
      const { common, varying } = summaryOfBodies(...bodies);
      const names = [...new Set(bodies.flatMap((each) => Object.keys(each)))].sort();
      for (const name of names) {
        const values = bodies.map((each) => JSON.stringify(each[name]));
        const isSame = new Set(values).size === 1;
        expect(Object.hasOwn(common, name)).toBe(isSame);
        expect(varying.some((each) => each.split(".")[0] === name)).toBe(!isSame);
      }
    }),
  );
});
