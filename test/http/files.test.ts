import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { idsOn, startTestApi, type TestApi, uploadInput, wireOf } from "../support/test-http.ts";

let api: TestApi;
beforeAll(async () => {
  api = await startTestApi();
});
afterAll(() => api[Symbol.asyncDispose]());

async function get(path: string) {
  const response = await api.fetch(path);
  return { status: response.status, body: await wireOf(response) };
}

async function uploadFor(purpose: string): Promise<string> {
  const form = new FormData();
  form.set("file", new Blob(["{}\n"]), "f.jsonl");
  form.set("purpose", purpose);
  const response = await api.fetch("/v1/files", { method: "POST", body: form });
  return (await wireOf(response)).id;
}

describe("a list of files", () => {
  test("is empty, with every key, before the first upload", async () => {
    await using fresh = await startTestApi();
    const response = await fresh.fetch("/v1/files");
    expect(await response.json()).toEqual({
      object: "list",
      data: [],
      first_id: null,
      last_id: null,
      has_more: false,
    });
  });

  test("is newest first, or oldest first, in pages by cursor", async () => {
    await using fresh = await startTestApi();
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) ids.push(await uploadInput(fresh));
    const pages = async (order: string) => {
      const seen: string[][] = [];
      for (let after = ""; ; ) {
        const response = await fresh.fetch(`/v1/files?limit=2&order=${order}&after=${after}`);
        const page = await wireOf(response);
        const onPage = idsOn(page);
        expect([page.first_id, page.last_id]).toEqual([onPage[0], onPage.at(-1)]);
        seen.push(onPage);
        if (!page.has_more) return seen;
        after = onPage.at(-1) ?? "";
      }
    };
    const [a, b, c, d, e] = ids;
    expect(await pages("asc")).toEqual([[a, b], [c, d], [e]]);
    expect(await pages("desc")).toEqual([[e, d], [c, b], [a]]);
    expect(await pages("")).toEqual([[e, d], [c, b], [a]]);
  });

  test("can be of one purpose", async () => {
    const id = await uploadFor("fine-tune");
    await uploadFor("batch");
    const { body } = await get("/v1/files?purpose=fine-tune");
    expect(idsOn(body)).toEqual([id]);
    expect((await get("/v1/files?purpose=batch_output")).body.data).toEqual([]);
  });

  test.each([
    [
      "limit=many",
      "Invalid type for 'limit': expected an integer, but got a string instead.",
      "limit",
    ],
    ["order=up", "Invalid value: 'up'. Supported values are: 'asc' and 'desc'.", "order"],
    [
      "purpose=xyz",
      "'xyz' is not one of ['fine-tune', 'assistants', 'batch', 'user_data', 'vision', 'evals', 'assistants_output', 'batch_output', 'fine-tune-results'] - 'purpose'",
      "purpose",
    ],
  ])("refuses ?%s", async (query, message, param) => {
    const { status, body } = await get(`/v1/files?${query}`);
    expect(status).toBe(400);
    expect(body.error).toMatchObject({ message, param, type: "invalid_request_error" });
  });
});

describe("a file", () => {
  test("is gone at once when it is deleted, and the engine is told", async () => {
    const id = await uploadInput(api);
    const nudges = api.nudges();
    const response = await api.fetch(`/v1/files/${id}`, {
      method: "DELETE",
      headers: { "content-type": "application/json" },
    });
    expect(response.status).toBe(200);
    expect(await response.json()).toEqual({ object: "file", id, deleted: true });
    expect(api.nudges()).toBe(nudges + 1);
    expect((await get(`/v1/files/${id}`)).status).toBe(404);
    expect((await get(`/v1/files/${id}/content`)).status).toBe(404);
    expect((await api.fetch(`/v1/files/${id}`, { method: "DELETE" })).status).toBe(404);
    expect(idsOn((await get("/v1/files")).body)).not.toContain(id);
  });
});
