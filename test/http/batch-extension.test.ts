import { describe, expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import type { Forecast } from "../../src/batch/forecast.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { aBatch } from "../support/store-builders.ts";
import {
  createBatchBody,
  startTestApi,
  uploadInput,
  type Wire,
  wireOf,
} from "../support/test-http.ts";

/** What the forecast of every batch says. */
let forecast: Forecast | null = null;
const NOTHING_ELSE = { waiting: null, commonFailure: null };
const api = forAllTests(await startTestApi({ forecast: () => forecast }));
const input = await uploadInput(api);

type Extended = Wire & { readonly x_batchd: unknown; readonly data: readonly Extended[] };

async function send(method: string, path: string, init: { body?: string; key?: string } = {}) {
  const headers = init.key === undefined ? {} : { "idempotency-key": init.key };
  const response = await api.fetch(path, { method, headers, body: init.body ?? null });
  return { status: response.status, body: (await wireOf(response)) as Extended };
}

const create = (x_batchd: unknown, key?: string) =>
  send("POST", "/v1/batches", {
    body: createBatchBody(input, { x_batchd }),
    ...(key === undefined ? {} : { key }),
  });

const read = async (id: string) => (await send("GET", `/v1/batches/${id}`)).body;

describe("x_batchd of a request", () => {
  test("sets priority and default model, which the batch then shows", async () => {
    const { status, body } = await create({ priority: -3, default_model: "größe" });
    expect(status).toBe(200);
    expect(body.x_batchd).toMatchObject({ priority: -3, default_model: "größe" });
    expect((await read(body.id)).x_batchd).toEqual(body.x_batchd);
    expect(await api.store.findBatch({ project: "default", id: body.id as BatchId })).toMatchObject(
      {
        priority: -3,
        defaultModel: "größe",
      },
    );
  });

  test("shows a name that no database stores as it shows it later: in readable characters", async () => {
    const { body } = await create({ default_model: "a\0b\ud800" });
    expect(body.x_batchd).toMatchObject({ default_model: "a\ufffdb\ufffd" });
    expect((await read(body.id)).x_batchd).toEqual(body.x_batchd);
  });

  test.each([
    [undefined],
    [null],
    [{}],
    [{ priority: null, default_model: null }],
    [{ priority: 0 }],
  ])("says nothing with %j", async (x_batchd) => {
    const { status, body } = await create(x_batchd);
    expect(status).toBe(200);
    expect(body.x_batchd).toMatchObject({ priority: 0, default_model: null });
  });

  test("takes priorities and names up to their limits", async () => {
    for (const priority of [-10, 10]) expect((await create({ priority })).status).toBe(200);
    expect((await create({ default_model: "m".repeat(1_024) })).status).toBe(200);
  });

  const refused: [code: string, param: string, given: unknown, message: string][] = [
    ["unknown_parameter", "x_batchd.foo", { foo: 1 }, "Unknown parameter: 'x_batchd.foo'."],
    [
      "invalid_type",
      "x_batchd",
      "high",
      "Invalid type for 'x_batchd': expected an object, but got a string instead.",
    ],
    [
      "invalid_type",
      "x_batchd.priority",
      { priority: 1.5 },
      "Invalid type for 'x_batchd.priority': expected an integer, but got a decimal instead.",
    ],
    [
      "integer_above_max_value",
      "x_batchd.priority",
      { priority: 11 },
      "Invalid 'x_batchd.priority': integer above maximum value. Expected a value <= 10, but got 11 instead.",
    ],
    [
      "integer_below_min_value",
      "x_batchd.priority",
      { priority: -1e20 },
      "Invalid 'x_batchd.priority': integer below minimum value. Expected a value >= -10, but got -100000000000000000000 instead.",
    ],
    [
      "missing_required_parameter",
      "x_batchd.from.batch",
      { from: { lines: "all" } },
      "Missing required parameter: 'x_batchd.from.batch'.",
    ],
    [
      "invalid_value",
      "x_batchd.from.lines",
      { from: { batch: "batch_a", lines: "bad" } },
      "Invalid value: 'bad'. Supported values are: 'failed', 'succeeded', and 'all'.",
    ],
    [
      "invalid_type",
      "x_batchd.from.merge",
      { from: { batch: "batch_a", merge: "yes" } },
      "Invalid type for 'x_batchd.from.merge': expected a boolean, but got a string instead.",
    ],
    [
      "integer_below_min_value",
      "x_batchd.sample",
      { sample: 0 },
      "Invalid 'x_batchd.sample': integer below minimum value. Expected a value >= 1, but got 0 instead.",
    ],
    [
      "integer_above_max_value",
      "x_batchd.sample",
      { sample: 1_001 },
      "Invalid 'x_batchd.sample': integer above maximum value. Expected a value <= 1000, but got 1001 instead.",
    ],
    [
      "empty_string",
      "x_batchd.default_model",
      { default_model: "" },
      "Invalid 'x_batchd.default_model': empty string. Expected a string with minimum length 1, but got an empty string instead.",
    ],
    [
      "string_above_max_length",
      "x_batchd.default_model",
      { default_model: "m".repeat(1_025) },
      "Invalid 'x_batchd.default_model': string too long. Expected a string with maximum length 1024, but got a string with length 1025 instead.",
    ],
  ];
  test.each(refused)("is refused as %s: %s", async (code, param, given, message) => {
    const { status, body } = await create(given);
    expect(status).toBe(400);
    expect(body.error).toEqual({ message, type: "invalid_request_error", param, code });
  });

  test("is part of what an Idempotency-Key stands for", async () => {
    const first = await create({ priority: 1, default_model: "m" }, "key");
    const again = await create({ default_model: "m", priority: 1 }, "key");
    expect([again.status, again.body]).toEqual([200, first.body]);
    for (const other of [{ priority: 2, default_model: "m" }, { priority: 1 }, undefined]) {
      const { status, body } = await create(other, "key");
      expect([status, body.error.code]).toEqual([422, "idempotency_key_reused"]);
    }
    const plain = await create(undefined, "plain key");
    expect((await create({ priority: 0 }, "plain key")).body).toEqual(plain.body);
  });
});

describe("x_batchd of a batch", () => {
  const PLAIN = {
    priority: 0,
    default_model: null,
    eta: null,
    at_risk: false,
    queue_position: null,
    waiting: null,
    common_failure: null,
    failures: [],
    paused: null,
    from: null,
    retried_by: [],
    sample: null,
    budget: null,
    deduplicated: null,
    cost: null,
  };

  test("stands after everything of OpenAI's, with all its keys", async () => {
    forecast = null;
    const { body } = await create(undefined);
    expect(Object.keys(body).at(-1)).toBe("x_batchd");
    expect(body.x_batchd).toEqual(PLAIN);
  });

  test("tells the forecast, in whole seconds, wherever the batch is shown", async () => {
    forecast = { etaAtMs: 1_800_000_001_999, isAtRisk: true, queuePosition: 4, ...NOTHING_ELSE };
    const told = { ...PLAIN, eta: 1_800_000_001, at_risk: true, queue_position: 4 };
    const { body } = await create(undefined);
    // Nothing is known of a batch that has just been created.
    expect(body.x_batchd).toMatchObject({ eta: null, queue_position: null });
    expect((await read(body.id)).x_batchd).toEqual(told);
    const listed = (await send("GET", "/v1/batches?limit=1")).body.data[0];
    expect([listed?.id, listed?.x_batchd]).toEqual([body.id, told]);
    expect((await send("POST", `/v1/batches/${body.id}/cancel`)).body.x_batchd).toEqual(told);
  });

  test("forecasts nothing once the batch is final", async () => {
    forecast = { etaAtMs: 1_800_000_000_000, isAtRisk: true, queuePosition: 0, ...NOTHING_ELSE };
    const done = aBatch({
      status: "completed",
      model: "m",
      priority: 7,
      inProgressAtMs: 2_000,
      finalizingAtMs: 3_000,
      completedAtMs: 4_000,
    });
    await api.store.insertBatch(done);
    expect((await read(done.id)).x_batchd).toEqual({ ...PLAIN, priority: 7 });
  });

  test("is repeated under an Idempotency-Key as it was, not as it has become", async () => {
    let position = 0;
    await using moving = await startTestApi({
      forecast: () => ({
        etaAtMs: null,
        isAtRisk: false,
        queuePosition: position++,
        ...NOTHING_ELSE,
      }),
    });
    const ask = async () =>
      (
        await moving.fetch("/v1/batches", {
          method: "POST",
          headers: { "idempotency-key": "k" },
          body: createBatchBody("file-x"),
        })
      ).text();
    expect(await ask()).toBe(await ask());
  });
});
