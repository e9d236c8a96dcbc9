import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openApiYaml } from "../../src/contract/openapi.ts";
import { startTestApi, type TestApi } from "../support/test-http.ts";

let api: TestApi;
beforeAll(async () => {
  api = await startTestApi({ keys: [{ name: "a", key: "sk-1", project: "default" }] });
});
afterAll(() => api[Symbol.asyncDispose]());

async function read(path: string) {
  const response = await api.fetch(path);
  return {
    status: response.status,
    type: response.headers.get("content-type"),
    policy: response.headers.get("content-security-policy"),
    text: await response.text(),
  };
}

test("the server serves its own document, and asks for no key", async () => {
  const { status, type, text } = await read("/openapi.yaml");
  expect([status, type]).toEqual([200, "application/yaml; charset=utf-8"]);
  expect(text).toBe(openApiYaml());
});

describe("the page for people", () => {
  test("takes everything it needs from this server, and may take nothing from elsewhere", async () => {
    const page = await read("/docs");
    expect([page.status, page.type]).toEqual([200, "text/html; charset=utf-8"]);
    expect(page.policy).toContain("default-src 'none'");
    expect(page.policy).not.toMatch(/https?:|\*/);
    const needed = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, path = ""]) => path);
    expect(needed).toHaveLength(6);
    for (const path of needed.filter((each) => each !== "data:,")) {
      expect(path).toMatch(/^\/[a-z]/);
      const { status, type, text } = await read(path);
      expect([path, status]).toEqual([path, 200]);
      expect(type).toMatch(/^(text\/css|text\/javascript|application\/yaml)/);
      expect(text.length).toBeGreaterThan(100);
    }
    expect((await read("/docs/")).text).toBe(page.text);
  });

  test("shows the document of this server", async () => {
    expect((await read("/docs/page.js")).text).toContain('url: "/openapi.yaml"');
    expect((await read("/docs/swagger-ui-bundle.js")).text).toContain("SwaggerUIBundle");
  });

  test.each([
    "/docs/nothing.js",
    "/docs/constructor",
    "/docs/__proto__",
    "/docs/..%2f..%2fpackage.json",
  ])("has nothing else beside it: %s", async (path) => {
    const { status, type } = await read(path);
    expect([status, type]).toEqual([404, "application/json"]);
  });
});
