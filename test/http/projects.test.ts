/** Projects that are made at run time. */
import { expect, test } from "vitest";
import { ask, configWith, post, upload } from "../support/projects.ts";
import { startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const admin = "key-admin";
const put = (url: string, body: object) => post(url, "admin/projects", body, admin);
const remove = (url: string, name: string) =>
  ask(url, `admin/projects/${name}`, { method: "DELETE" }, admin);

test("a project that is made at run time is held to its rules, and the configuration's stay its own", async () => {
  await using upstream = await startUpstream();
  const upstreams = [{ name: "only", base_url: upstream.url, models: ["*"] }];
  const { auth } = configWith({});
  await using service = await startTestService({
    config: { auth, upstreams, projects: [{ name: "other", quotas: { files: 1 } }] },
  });
  const { url } = service;
  const made = await put(url, { name: "search", weight: 3, quotas: { files: 2 } });
  expect(made.status).toBe(200);
  expect(made.body).toMatchObject({
    id: "search",
    object: "project",
    weight: 3,
    models: ["*"],
    deleted_at: null,
    quotas: { files: 2 },
  });
  const statuses = [];
  for (let n = 0; n < 3; n++) statuses.push((await upload(url)).status);
  expect(statuses).toEqual([200, 200, 429]);
  await put(url, { name: "search", weight: null, models: null, quotas: null });
  expect((await upload(url)).status).toBe(200);
  const listed = await ask(url, "admin/projects", {}, admin);
  expect(listed.body.data).toMatchObject([{ id: "search", weight: 1, quotas: {} }]);
  const found = await ask(url, "admin/projects/search", {}, admin);
  expect(found).toMatchObject({ status: 200, body: listed.body.data![0]! });
  for (const [unknown, words] of [
    ["other", "The project other is in the configuration of the server."],
    ["none", "No such project: none"],
  ]) {
    const { status, body } = await ask(url, `admin/projects/${unknown}`, {}, admin);
    expect([status, body.error?.message]).toEqual([404, expect.stringContaining(words!)]);
  }
  for (const refused of [await put(url, { name: "other" }), await remove(url, "other")]) {
    expect([refused.status, refused.body.error?.message]).toEqual([
      409,
      expect.stringContaining("in the configuration"),
    ]);
  }
  expect((await remove(url, "search")).status).toBe(409);
  for (const body of [
    { name: "a b" },
    { name: "a", weight: 0 },
    { name: "a", quotas: { lines: 1 } },
    { name: "a", quotas: { cost_per_month: 5 } },
    { name: "a", color: "red" },
    {},
  ]) {
    expect([body, (await put(url, body)).status]).toEqual([body, 400]);
  }
  expect((await put(url, { name: "a", models: [] })).body.error).toEqual({
    message:
      "Invalid 'models': empty array. Expected an array with minimum length 1, but got an empty array instead.",
    type: "invalid_request_error",
    param: "models",
    code: "empty_array",
  });
  expect((await post(url, "admin/projects", { name: "a" })).status).toBe(403);
});
