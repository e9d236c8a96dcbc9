import { describe, expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import { BatchObject } from "../../src/contract/batch.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { insertBatchWith } from "../support/store-builders.ts";
import { createBatchBody, startTestApi, uploadInput, wireOf } from "../support/test-http.ts";

const api = forAllTests(await startTestApi());
const input = await uploadInput(api);

async function call(method: string, path: string, body: string | null = null) {
  const response = await api.fetch(path, { method, body });
  return {
    status: response.status,
    headers: response.headers,
    body: await wireOf(response),
  };
}

const create = (more: Record<string, unknown> = {}) =>
  call("POST", "/v1/batches", createBatchBody(input, more));

async function newBatch(): Promise<BatchId> {
  return (await create()).body.id as BatchId;
}

describe("a new batch", () => {
  test("is what the API document says, and the engine is told", async () => {
    const nudges = api.nudges();
    const { body } = await create();
    expect(BatchObject.strict().safeParse(body).success).toBe(true);
    expect(api.nudges()).toBe(nudges + 1);
  });

  test("metadata keep each key, whatever its name", async () => {
    const metadata = JSON.parse('{"__proto__":"a","constructor":"b"}') as object;
    const { status, body } = await create({ metadata });
    expect([status, JSON.stringify(body.metadata)]).toEqual([200, JSON.stringify(metadata)]);
  });

  test("takes null for what is optional", async () => {
    const nulls = { metadata: null, output_expires_after: null, completion_window: null };
    const { status, body } = await create(nulls);
    expect(status).toBe(200);
    expect(body).toMatchObject({ metadata: null, completion_window: "24h" });
    const from = { batch: body.id, lines: null, merge: null, template: null };
    const again = await create({ input_file_id: null, x_batchd: { from, input: null } });
    expect([again.status, again.body]).toMatchObject([
      200,
      { x_batchd: { from: { lines: "failed" } } },
    ]);
  });
});

describe("a batch is not made", () => {
  test.each<[string, Record<string, unknown>, string, string, string]>([
    [
      "with a window that is a number",
      { completion_window: 24 },
      "Invalid type for 'completion_window': expected a string, but got an integer instead.",
      "completion_window",
      "invalid_type",
    ],
    [
      "with an input file that is null",
      { input_file_id: null },
      "Invalid type for 'input_file_id': expected a string, but got null instead.",
      "input_file_id",
      "invalid_type",
    ],
    [
      "with metadata that is a list",
      { metadata: ["a"] },
      "Invalid type for 'metadata': expected an object, but got an array instead.",
      "metadata",
      "invalid_type",
    ],
    [
      "with output that expires after part of a second",
      { output_expires_after: { anchor: "created_at", seconds: 3_600.5 } },
      "Invalid type for 'output_expires_after.seconds': expected an integer, but got a decimal instead.",
      "output_expires_after.seconds",
      "invalid_type",
    ],
    [
      "with output that expires after a text",
      { output_expires_after: { anchor: "created_at", seconds: "3600" } },
      "Invalid type for 'output_expires_after.seconds': expected an integer, but got a string instead.",
      "output_expires_after.seconds",
      "invalid_type",
    ],
    [
      "with output whose expiry has an unknown field",
      { output_expires_after: { anchor: "created_at", seconds: 3_600, days: 1 } },
      "Unknown parameter: 'output_expires_after.days'.",
      "output_expires_after.days",
      "unknown_parameter",
    ],
  ])("%s", async (_case, more, message, param, code) => {
    const { status, body } = await create(more);
    expect(status).toBe(400);
    expect(body).toEqual({ error: { message, type: "invalid_request_error", param, code } });
  });

  test("from bytes that are not UTF-8", async () => {
    const bytes = Buffer.from(createBatchBody("file-\xff"), "latin1");
    const response = await api.fetch("/v1/batches", { method: "POST", body: bytes });
    expect(response.status).toBe(400);
    await response.text();
  });

  test.each([
    ["[]", "an array"],
    ["null", "null"],
    ['"text"', "a string"],
    ["5", "an integer"],
    ["true", "a boolean"],
  ])("from the JSON %s, which is no object", async (text, got) => {
    const { status, body } = await call("POST", "/v1/batches", text);
    expect(status).toBe(400);
    expect(body.error.message).toBe(`Invalid body: expected an object, but got ${got} instead.`);
  });
});

describe("batches are listed", () => {
  test.each([
    [
      "ten",
      "Invalid type for 'limit': expected an integer, but got a string instead.",
      "invalid_type",
    ],
    [
      String(2n ** 63n - 1n),
      `Invalid 'limit': integer above maximum value. Expected a value <= 100, but got ${2 ** 63} instead.`,
      "integer_above_max_value",
    ],
  ])("but not with the limit %s", async (limit, message, code) => {
    const { status, body } = await call("GET", `/v1/batches?limit=${limit}`);
    expect(status).toBe(400);
    expect(body.error).toEqual({ message, type: "invalid_request_error", param: "limit", code });
  });

  test("but not after a batch that does not exist", async () => {
    const { status, body } = await call("GET", "/v1/batches?after=batch_x");
    expect(status).toBe(404);
    expect(body.error).toMatchObject({
      message: "No batch found with id 'batch_x'.",
      param: "after",
    });
  });
});

describe("cancelling", () => {
  test.each([
    ["without a body", null],
    ["with an empty body", ""],
    ["with an empty object", "{}"],
    ["with nonsense", "{"],
  ])("%s is a 200 that shows it at once", async (_case, body) => {
    const id = await newBatch();
    const nudges = api.nudges();
    const response = await api.fetch(`/v1/batches/${id}/cancel`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body,
    });
    expect(response.status).toBe(200);
    const batch = await wireOf(response);
    expect([batch.status, batch.in_progress_at]).toEqual(["cancelling", null]);
    expect(batch.cancelling_at).toEqual(expect.any(Number));
    expect(api.nudges()).toBe(nudges + 1);
  });

  test.each(["completed", "expired", "cancelled"] as const)("a batch that is %s", async (final) => {
    const { id } = await insertBatchWith(api.store, final);
    const cancelled = final === "cancelled";
    const { status, body } = await call("POST", `/v1/batches/${id}/cancel`);
    if (cancelled) expect([status, body.status, body.cancelled_at]).toEqual([200, "cancelled", 4]);
    else expect(body.error?.message).toBe(`Cannot cancel a batch with status '${final}'.`);
    expect(status).toBe(cancelled ? 200 : 409);
  });
});
