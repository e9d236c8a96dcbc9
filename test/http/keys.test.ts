/** Keys that are made at run time, by HTTP. */
import { describe, expect, test } from "vitest";
import { CREATE_KEY_EXAMPLE, CREATED_KEY_EXAMPLE } from "../../src/contract/openapi-examples.ts";
import { SCOPES, type Scope } from "../../src/contract/scope.ts";
import { idsOn, startTestApi, type TestApi, type Wire, wireOf } from "../support/test-http.ts";

const ADMIN = "key-of-the-operator";
const MINUTE_MS = 60_000;

const startApi = () =>
  startTestApi({
    keys: [{ name: "operator", key: ADMIN, project: "default", scopes: ["admin"] }],
  });

type CreatedKey = Wire & { readonly key: string; readonly last_used_at: number | null };

const as = (key: string) => ({ authorization: `Bearer ${key}` });
const statusWith = async (api: TestApi, key: string, path = "/v1/files") =>
  (await api.fetch(path, { headers: as(key) })).status;

const post = (api: TestApi, body: unknown, key = ADMIN) =>
  api.fetch("/v1/admin/keys", {
    method: "POST",
    headers: as(key),
    body: typeof body === "string" ? body : JSON.stringify(body),
  });

async function create(api: TestApi, body: object = {}): Promise<CreatedKey> {
  const answer = await post(api, { name: "nightly", ...body });
  expect(answer.status).toBe(200);
  return (await wireOf(answer)) as CreatedKey;
}

const revoke = (api: TestApi, id: string) =>
  api.fetch(`/v1/admin/keys/${id}`, { method: "DELETE", headers: as(ADMIN) });

const list = async (api: TestApi, query = "") =>
  wireOf(await api.fetch(`/v1/admin/keys${query}`, { headers: as(ADMIN) }));

test("the example of the documentation makes a key as it stands", async () => {
  await using api = await startApi();
  const shown = CREATED_KEY_EXAMPLE.expires_at;
  expect(await create(api, CREATE_KEY_EXAMPLE)).toMatchObject({ expires_at: shown });
});

test("a key works from its answer on, in its project and scopes, until it is revoked", async () => {
  await using api = await startApi();
  const created = await create(api, { project: "search", scopes: ["read"] });
  expect(created).toEqual({
    id: expect.stringMatching(/^key_[0-9a-f]{32}$/),
    object: "key",
    name: "nightly",
    project: "search",
    scopes: ["read"],
    created_at: expect.any(Number),
    expires_at: null,
    last_used_at: null,
    key: expect.stringMatching(/^sk-batchd-[0-9a-f]{32}-[A-Za-z0-9_-]{43}$/),
  });
  expect(await statusWith(api, created.key)).toBe(200);
  const upload = { method: "POST", headers: as(created.key), body: new FormData() };
  expect((await api.fetch("/v1/files", upload)).status).toBe(403);

  const revoked = await revoke(api, created.id);
  expect(await wireOf(revoked)).toEqual({ id: created.id, object: "key", deleted: true });
  expect(await statusWith(api, created.key)).toBe(401);
  expect((await revoke(api, created.id)).status).toBe(404);
});

test("a key without scopes has all but admin, and so makes no keys", async () => {
  await using api = await startApi();
  const { key, scopes, project } = (await create(api)) as CreatedKey & {
    scopes: Scope[];
    project: string;
  };
  expect(scopes).toEqual(SCOPES.filter((scope) => scope !== "admin"));
  expect(project).toBe("default");
  expect((await post(api, { name: "mine", scopes: ["admin"] }, key)).status).toBe(403);
  // Clients in typed languages send null for what is left out.
  expect(await create(api, { scopes: null, project: null })).toMatchObject({ scopes, project });
});

test("a key is refused from its expiry on", async () => {
  await using api = await startApi();
  const expires_at = Math.floor(Date.now() / 1000) + 3_600;
  const { key } = await create(api, { expires_at });
  expect(await statusWith(api, key)).toBe(200);
  api.advance(3_601_000);
  // The server reads the keys again by itself, within some seconds.
  await expect.poll(() => statusWith(api, key)).toBe(401);
  expect((await list(api)).data).toMatchObject([{ expires_at }]);
});

test("no answer but the first has the key, and neither has the log or the database", async () => {
  await using api = await startApi();
  const { id, key } = await create(api);
  await statusWith(api, key);
  await statusWith(api, `${key}x`);
  const secret = key.slice(`sk-batchd-${id.slice(4)}-`.length);
  expect(secret).toHaveLength(43);
  const stored = await api.store.findKeysInForce(null);
  const everything = [JSON.stringify(await list(api)), api.log.join(""), JSON.stringify(stored)];
  for (const text of everything) {
    expect(text).toContain(id);
    expect(text).not.toContain(secret);
  }
});

test("the keys are listed newest first and in pages", async () => {
  await using api = await startApi();
  const ids: string[] = [];
  for (let n = 0; n < 3; n++) ids.unshift((await create(api, { name: `key-${n}` })).id);
  const first = await list(api, "?limit=2");
  expect([idsOn(first), first.has_more]).toEqual([ids.slice(0, 2), true]);
  const rest = await list(api, `?limit=2&after=${first.last_id}`);
  expect([idsOn(rest), rest.has_more]).toEqual([ids.slice(2), false]);
  expect((await api.fetch("/v1/admin/keys?after=key_x", { headers: as(ADMIN) })).status).toBe(404);
});

test("one key is as in the list, and is asked for by an administrator alone", async () => {
  await using api = await startApi();
  const { id, key } = await create(api, { name: "nightly" });
  const get = (of: string, by: string) => api.fetch(`/v1/admin/keys/${of}`, { headers: as(by) });
  const found = await get(id, ADMIN);
  expect(found.status).toBe(200);
  expect(await found.json()).toEqual((await list(api)).data[0]);
  expect((await get("key_x", ADMIN)).status).toBe(404);
  expect((await get(id, key)).status).toBe(403);
});

test("the last use of a key is known within a minute or two", async () => {
  await using api = await startApi();
  const { key } = await create(api);
  expect((await list(api)).data).toMatchObject([{ last_used_at: null }]);
  await statusWith(api, key);
  api.passTime(MINUTE_MS);
  await expect
    .poll(async () => (await list(api)).data[0])
    .toMatchObject({ last_used_at: expect.any(Number) });
});

describe("a server without keys in its configuration", () => {
  test("asks for none, and lets no one make the first over HTTP", async () => {
    await using api = await startTestApi();
    expect((await api.fetch("/v1/files")).status).toBe(200);
    const answer = await api.fetch("/v1/admin/keys", { method: "POST", body: '{"name":"a"}' });
    expect(answer.status).toBe(403);
    const { message } = (await wireOf(answer)).error;
    expect(message).toContain("Missing scopes: admin. This server has no keys yet.");
    expect(message).toContain("batchd keys create --name");
  });

  test("asks for one as soon as a key was made, and goes on to when all are revoked", async () => {
    await using api = await startTestApi();
    const { key, text } = await api.keys.create({
      name: "first",
      project: "default",
      scopes: ["read"],
      expiresAtMs: null,
    });
    await expect.poll(async () => (await api.fetch("/v1/files")).status).toBe(401);
    expect(await statusWith(api, text)).toBe(200);
    await api.keys.revoke(key.id);
    await expect.poll(() => statusWith(api, text)).toBe(401);
    expect((await api.fetch("/v1/files")).status).toBe(401);
  });
});

describe("bad input", () => {
  test.each([
    ["no name", {}, 400, "name"],
    ["an empty name", { name: "" }, 400, "name"],
    ["a huge name", { name: "x".repeat(65) }, 400, "name"],
    ["a name with a line break", { name: "a\r\nx-admin: 1" }, 400, "name"],
    ["a name with terminal codes", { name: "a\u001b[31m" }, 400, "name"],
    ["a number for a name", { name: 5 }, 400, "name"],
    ["a path for a project", { name: "a", project: "../b" }, 400, "project"],
    ["a huge project", { name: "a", project: "x".repeat(65) }, 400, "project"],
    ["no scopes", { name: "a", scopes: [] }, 400, "scopes"],
    ["a scope twice", { name: "a", scopes: ["read", "read"] }, 400, "scopes"],
    ["an unknown scope", { name: "a", scopes: ["root"] }, 400, "scopes.0"],
    ["scopes in a text", { name: "a", scopes: "read" }, 400, "scopes"],
    ["ten thousand scopes", { name: "a", scopes: Array(10_001).fill("read") }, 400, "scopes"],
    ["an expiry in the past", { name: "a", expires_at: 1 }, 400, "expires_at"],
    ["an expiry beyond all years", { name: "a", expires_at: 1e15 }, 400, "expires_at"],
    ["an expiry as text", { name: "a", expires_at: "tomorrow" }, 400, "expires_at"],
    ["an unknown field", { name: "a", key: "mine" }, 400, "key"],
    ["no object", "[]", 400, null],
    ["no JSON", "{", 400, null],
  ])("%s is refused", async (_, body, status, param) => {
    await using api = await startApi();
    const answer = await post(api, body);
    expect(answer.status).toBe(status);
    expect((await wireOf(answer)).error).toMatchObject({ param, type: "invalid_request_error" });
    expect((await list(api)).data).toEqual([]);
  });

  test.each([
    ["POST", "admin/keys"],
    ["GET", "admin/keys"],
    ["DELETE", `admin/keys/key_${"0".repeat(32)}`],
    ["POST", "admin/projects"],
    ["GET", "admin/projects"],
    ["DELETE", "admin/projects/unknown"],
    ["POST", "batches/batch_unknown"],
  ])("an unknown parameter in the query of %s %s is refused", async (method, path) => {
    await using api = await startApi();
    const { key } = await create(api, { scopes: ["admin", "write"] });
    const body = method === "POST" ? JSON.stringify({ name: "a" }) : null;
    const answer = await api.fetch(`/v1/${path}?scope=read`, { method, headers: as(key), body });
    expect(answer.status).toBe(400);
    expect((await wireOf(answer)).error).toMatchObject({
      param: "scope",
      code: "unknown_parameter",
    });
  });

  test("keys that nearly are one are refused alike, and a flood of them is answered", async () => {
    await using api = await startApi();
    const [{ key }, other] = [await create(api), await create(api)];
    const id = key.split("-")[2];
    const wrong = [
      `sk-batchd-${id}-${"A".repeat(43)}`,
      `sk-batchd-${id}-${other.key.slice(-43)}`,
      `sk-batchd-${"0".repeat(32)}-${key.slice(-43)}`,
      key.slice(0, -1),
      `${key}A`,
      key.toUpperCase(),
      `sk-batchd-${id}-`,
      "x".repeat(8_000),
    ];
    const floods = Array.from({ length: 200 }, (_, n) => wrong[n % wrong.length] as string);
    const answers = await Promise.all(
      floods.map(async (each) => wireOf(await api.fetch("/v1/files", { headers: as(each) }))),
    );
    for (const { error } of answers) expect(error).toMatchObject({ code: "invalid_api_key" });
    expect(await statusWith(api, key)).toBe(200);
  });
});
