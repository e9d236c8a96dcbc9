import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { idsOn, startTestApi, uploadInput, wireOf } from "../support/test-http.ts";

const api = forAllTests(await startTestApi());

async function get(path: string) {
  const response = await api.fetch(path);
  return { status: response.status, body: await wireOf(response) };
}

describe("a list of files", () => {
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
