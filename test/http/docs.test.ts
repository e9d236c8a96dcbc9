import { ServerResponse } from "node:http";
import { describe, expect, test, vi } from "vitest";
import { parse } from "yaml";
import packageJson from "../../package.json" with { type: "json" };
import { openApiYaml } from "../../src/contract/openapi.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLine } from "../support/service.ts";
import { startTestApi } from "../support/test-http.ts";

const api = forAllTests(
  await startTestApi({ keys: [{ name: "a", key: "sk-1", project: "default" }] }),
);

async function read(path: string) {
  const response = await api.fetch(path);
  return {
    status: response.status,
    type: response.headers.get("content-type"),
    policy: response.headers.get("content-security-policy"),
    text: await response.text(),
  };
}

/** The addresses that the page loads or links, but for the empty icon. */
const addressesIn = (html: string): string[] =>
  [...html.matchAll(/(?:src|href)="([^"]+)"/g)]
    .map(([, address = ""]) => address)
    .filter((address) => address !== "data:,");

test("the server serves its own document, and asks for no key", async () => {
  const { status, type, text } = await read("/openapi.yaml");
  expect([status, type]).toEqual([200, "application/yaml; charset=utf-8"]);
  expect(text).toBe(openApiYaml());
});

test("clients that read nothing of a large file share its bytes", async () => {
  const end = vi.spyOn(ServerResponse.prototype, "end");
  for (const path of ["/openapi.yaml", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"]) {
    end.mockClear();
    await Promise.all([read(path), read(path)]);
    const [[one] = [], [other] = []] = end.mock.calls;
    expect([path, Buffer.isBuffer(one), one === other]).toEqual([path, true, true]);
  }
  end.mockRestore();
});

describe("the page for people", () => {
  test("takes everything it needs from this server, and may take nothing from elsewhere", async () => {
    const page = await read("/docs");
    expect([page.status, page.type]).toEqual([200, "text/html; charset=utf-8"]);
    expect(page.policy).toContain("default-src 'none'");
    expect(page.policy).not.toMatch(/https?:|\*/);
    const needed = addressesIn(page.text);
    expect(needed).toHaveLength(5);
    for (const path of needed) {
      const { status, type, text } = await read(`/${path}`);
      expect([path, status]).toEqual([path, 200]);
      expect(type).toMatch(/^(text\/css|text\/javascript|application\/yaml)/);
      expect(text.length).toBeGreaterThan(100);
    }
  });

  test("stands at one address, to which the one with a slash leads", async () => {
    const response = await api.fetch("/docs/", { redirect: "manual" });
    expect([response.status, response.headers.get("location")]).toEqual([308, "../docs"]);
    expect((await read("/docs/")).text).toBe((await read("/docs")).text);
  });

  test("works behind a proxy that adds a path prefix", async () => {
    const prefix = "https://host.example/batch/api";
    const page = await read("/docs");
    const code = await read("/docs/page.js");
    const document = /url: "([^"]+)"/.exec(code.text)?.[1] ?? "";
    for (const address of [...addressesIn(page.text), document]) {
      expect(new URL(address, `${prefix}/docs`).href).toMatch(`${prefix}/`);
    }
    const { servers } = parse((await read("/openapi.yaml")).text) as { servers: { url: string }[] };
    expect(new URL(servers[0]?.url ?? "", `${prefix}/openapi.yaml`).href).toBe(`${prefix}/`);
  });

  test("shows the document of this server, with the version of this server", async () => {
    expect((await read("/docs/swagger-ui-bundle.js")).text).toContain("SwaggerUIBundle");
    const { info } = parse((await read("/openapi.yaml")).text) as { info: { version: string } };
    expect(info.version).toBe(packageJson.version);
  });

  test("fills in no parameter that may be left out: an `if-match` of its own would refuse every download", async () => {
    type Parameter = { name: string; required?: boolean; example?: unknown; schema: object };
    type Operation = { operationId: string; parameters?: readonly Parameter[] };
    const { paths } = parse((await read("/openapi.yaml")).text) as {
      paths: Record<string, Record<string, Operation>>;
    };
    const operations = Object.values(paths).flatMap((methods) => Object.values(methods));
    const filledIn = operations.flatMap(({ operationId, parameters = [] }) =>
      parameters
        .filter(({ required }) => required !== true)
        // Swagger UI puts both into the field, and sends it.
        .filter((each) => "example" in each || "example" in each.schema)
        .map(({ name }) => `${operationId} ${name}`),
    );
    expect(operations.length).toBeGreaterThan(30);
    expect(filledIn).toEqual([]);
  });

  test("suggests an upload for a batch that is kept as long as any other", async () => {
    type Form = { properties: Record<string, { example?: unknown; const?: unknown }> };
    const document = parse((await read("/openapi.yaml")).text) as {
      paths: {
        "/v1/files": {
          post: { requestBody: { content: { "multipart/form-data": { schema: Form } } } };
        };
      };
    };
    const { content } = document.paths["/v1/files"].post.requestBody;
    const { properties } = content["multipart/form-data"].schema;
    const form = new FormData();
    for (const [name, { example, const: only }] of Object.entries(properties)) {
      const suggested = example ?? only;
      if (suggested !== undefined) form.set(name, String(suggested));
    }
    form.set("file", new Blob([`${chatLine("a", "Hello")}\n`]), "a.jsonl");
    const uploaded = await api.fetch("/v1/files", {
      method: "POST",
      headers: { authorization: "Bearer sk-1" },
      body: form,
    });
    const file = (await uploaded.json()) as { created_at: number; expires_at: number };
    expect(file).toMatchObject({ purpose: "batch" });
    expect(file.expires_at - file.created_at).toBe(30 * 24 * 60 * 60);
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
