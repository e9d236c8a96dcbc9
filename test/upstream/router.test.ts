import { describe, expect, test } from "vitest";
import { Router, upstreamNames } from "../../src/upstream/router.ts";

describe("a router", () => {
  const router = new Router([
    { name: "b", models: ["llama", "qwen", "*"] },
    { name: "a", models: [{ name: "llama", upstream_model: "meta/llama" }, "qwen"] },
    { name: "c", models: ["only-c", "*"] },
  ]);

  test("finds every target that lists the name, and the key does not depend on their order", () => {
    expect(router.find("llama")).toEqual({ key: "a,b", targets: ["a", "b"] });
    expect(router.find("qwen")?.key).toBe("a,b");
  });

  test("sends a listed name only to targets that list it, and any other name to the open ones", () => {
    expect(router.find("only-c")?.targets).toEqual(["c"]);
    expect(router.find("unheard-of")?.targets).toEqual(["b", "c"]);
    expect(router.find("*")?.targets).toEqual(["b", "c"]);
  });

  test("has one plan for each set of targets", () => {
    expect(router.plans.map((plan) => plan.key).sort()).toEqual(["a,b", "b,c", "c"]);
  });

  test("finds nothing for an unlisted name when no target is open", () => {
    expect(new Router([{ name: "a", models: ["llama"] }]).find("qwen")).toBeNull();
    expect(new Router([]).find("qwen")).toBeNull();
  });
});

test("an alias says what the target calls the model; a plain name stays", () => {
  const names = upstreamNames([
    "qwen",
    { name: "gpt", upstream_model: "meta/llama" },
    { name: "x" },
  ]);
  expect(Object.fromEntries(names)).toEqual({ qwen: null, gpt: "meta/llama", x: null });
});
