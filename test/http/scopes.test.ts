/** A key does what its scopes say: shown for each route of the app. */
import { describe, expect, test } from "vitest";
import { ROUTE_SCOPES, SCOPES, type Scope, scopesOf } from "../../src/contract/scope.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { routesOfApp } from "../support/routes.ts";
import { startTestApi, wireOf } from "../support/test-http.ts";

const keyWith = (scopes: readonly Scope[]) => `key-with-${scopes.join("-")}`;
const entry = (scopes: Scope[]) => ({
  name: scopes.join("-"),
  key: keyWith(scopes),
  project: "default",
  scopes,
});
const others = (scopes: readonly Scope[]) => SCOPES.filter((scope) => !scopes.includes(scope));
const routes = Object.keys(ROUTE_SCOPES).map((route) => {
  const [method = "", path = ""] = route.split(" ");
  return { route, method, path, scopes: scopesOf(method, path) };
});

const sets = new Map<string, Scope[]>();
for (const { scopes } of routes) {
  for (const set of [others(scopes), ...scopes.map((scope) => [scope])]) {
    sets.set(keyWith(set), set);
  }
}
sets.set(keyWith(["read", "write"]), ["read", "write"]);
const api = forAllTests(
  await startTestApi({
    keys: [...[...sets.values()].map(entry), { name: "plain", key: "key-plain", project: "a" }],
  }),
);

const ask = (method: string, path: string, key: string) =>
  api.fetch(path.replace(/:\w+(\{.*\})?/, "unknown"), {
    method,
    headers: { authorization: `Bearer ${key}` },
  });

test("every route under /v1 asks for a scope", () => {
  const asking = routesOfApp().filter((route) => route.includes(" /v1/"));
  expect(asking).toEqual(Object.keys(ROUTE_SCOPES).sort());
  expect(asking.length).toBeGreaterThan(20);
});

describe.each(routes)("$route", ({ method, path, scopes }) => {
  test("refuses a key with all scopes but those, and names them", async () => {
    const answer = await ask(method, path, keyWith(others(scopes)));
    expect(answer.status).toBe(403);
    expect(await wireOf(answer)).toEqual({
      error: {
        message: `You have insufficient permissions for this operation. Missing scopes: ${scopes.join(" or ")}. Ask the operator of this server for a key that has it.`,
        type: "invalid_request_error",
        param: null,
        code: "missing_scope",
      },
    });
  });

  test.each(scopes)("takes a key that has %s alone", async (scope) => {
    expect([401, 403]).not.toContain((await ask(method, path, keyWith([scope]))).status);
  });
});

test("the spellings of other clients ask for the same scope", async () => {
  const onlyInteractive = keyWith(["interactive"]);
  for (const path of [
    "/openai/v1/files",
    "/openai/files?api-version=2024-10-21",
    "//v1//files/",
    "/openai/deployments/gpt/batches",
  ]) {
    expect((await ask("GET", path, onlyInteractive)).status, path).toBe(403);
  }
  const head = await ask("HEAD", "/v1/files", onlyInteractive);
  expect(head.status).toBe(403);
});

test("a key without scopes in the file may do all that clients do", async () => {
  for (const { method, path, scopes } of routes) {
    const wanted = scopes.some((scope) => scope !== "admin");
    const { status } = await ask(method, path, "key-plain");
    expect(status !== 403, `${method} ${path}`).toBe(wanted);
  }
});

/** A bucket of the client, whose owner reads what comes there. */
const BUCKET = {
  ...{ kind: "s3", bucket: "mine", region: "eu-central-1" },
  ...{ access_key_id: "id", secret_access_key: "secret" },
};

test.each<[string, object]>([
  ["/v1/batches/batch_unknown/deliveries", BUCKET],
  ["/v1/batches", { x_batchd: { deliver: [{ location: "share" }, BUCKET] } }],
])("a key that may not read takes no results to a bucket of its own: %s", async (path, more) => {
  const input = { input_file_id: "file-unknown", endpoint: "/v1/embeddings" };
  const body = JSON.stringify(path === "/v1/batches" ? { ...input, ...more } : more);
  const send = (scopes: readonly Scope[]) => {
    const headers = { authorization: `Bearer ${keyWith(scopes)}` };
    return api.fetch(path, { method: "POST", headers, body });
  };
  const refused = await send(others(["read"]));
  expect(refused.status).toBe(403);
  expect((await wireOf(refused)).error.message).toContain("Missing scopes: read.");
  expect((await send(["read", "write"])).status).not.toBe(403);
});

test("an upload that its key does not allow is refused before it is read", async () => {
  const form = new FormData();
  form.set("purpose", "batch");
  form.set("file", new Blob([Buffer.alloc(5_000_000, "x")]), "a.jsonl");
  const headers = { authorization: `Bearer ${keyWith(["read"])}` };
  const answer = await api.fetch("/v1/files", { method: "POST", headers, body: form });
  expect(answer.status).toBe(403);
  expect(api.storedFiles()).toEqual([]);
});
