import { Hono } from "hono";
import supertest from "supertest";
import { describe, expect, test, vi } from "vitest";
import type { AppEnv } from "../../src/http/context.ts";
import { mountOps } from "../../src/http/ops.ts";
import { Metrics } from "../../src/telemetry/metrics.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { rawRequest } from "../support/raw-http.ts";
import {
  createBatchBody,
  startTestApi,
  uploadInput,
  type Wire,
  wireOf,
} from "../support/test-http.ts";

const api = forAllTests(
  await startTestApi({
    models: [
      { id: "gpt-4o-mini", ownedBy: "gpu-1" },
      { id: "meta/llama:8b", ownedBy: "gpu-2" },
    ],
  }),
);

interface Ask {
  readonly method?: string;
  readonly headers?: Record<string, string>;
  readonly body?: string;
}

async function get(path: string, { method = "GET", headers = {}, body }: Ask = {}) {
  const asked = new supertest.Test(api.url, method, path).set(headers).ok(() => true);
  const answer = await (body === undefined ? asked : asked.send(body));
  return {
    status: answer.status,
    headers: answer.headers as Record<string, string | undefined>,
    body: answer.body as Wire,
  };
}

describe("a path", () => {
  test("may begin with /openai, double its slashes and end with one", async () => {
    for (const path of [
      "/openai/v1/models",
      "/v1/models/",
      "//v1//models//",
      "/openai//v1/models/?api-version=1",
      "/v1/models?limit=1",
    ]) {
      expect((await get(path)).status, path).toBe(200);
    }
    const input = await uploadInput(api);
    const created = await get("/openai/v1/batches/", {
      method: "POST",
      body: createBatchBody(input),
    });
    const { id } = created.body;
    expect((await get(`/openai/v1/batches//${id}`)).body.id).toBe(id);
    const cancelled = await get(`/openai/v1/batches//${id}/cancel`, { method: "POST" });
    expect([cancelled.status, cancelled.body.status]).toEqual([200, "cancelling"]);
  });

  test("that is unknown is named as it was asked for", async () => {
    for (const path of [
      "/v1/foo",
      "/openai/v1/foo",
      "/",
      "/foo",
      "/v1",
      "/openai/foo",
      "/openai",
    ]) {
      const { status, body } = await get(`${path}?secret=1`);
      expect(status).toBe(404);
      expect(body.error).toEqual({
        message: `Invalid URL (GET ${path})`,
        type: "invalid_request_error",
        param: null,
        code: null,
      });
    }
  });

  test.each([
    ["/files", "/v1/files"],
    ["/batches/batch_x", "/v1/batches/batch_x"],
    ["/chat/completions", "/v1/chat/completions"],
    ["/v1/v1/files/file-x/content", "/v1/files/file-x/content"],
  ])("without its /v1, or with two, gets a hint: %s", async (path, meant) => {
    const { status, body } = await get(path);
    expect(status).toBe(404);
    expect(body.error).toMatchObject({
      message: `Invalid URL (GET ${path}) (HINT: The API is under /v1, so this is ${meant}. The base URL of a client ends with one /v1.)`,
      code: null,
    });
  });

  test.each([
    ["POST", "/v1/models", "GET, HEAD"],
    ["PUT", "/v1/models/gpt-4o-mini", "GET, HEAD, DELETE"],
    ["DELETE", "/v1/files", "POST, GET, HEAD"],
    ["POST", "/v1/files/file-x", "GET, HEAD, DELETE"],
    ["PATCH", "/v1/batches/batch_x", "GET, HEAD, POST, DELETE"],
    ["GET", "/v1/batches/batch_x/cancel", "POST"],
    ["DELETE", "/v1/batches/batch_x/deliveries", "POST, GET, HEAD"],
    ["POST", "/v1/batches/batch_x/deliveries/delivery_x", "GET, HEAD"],
    ["POST", "/health", "GET, HEAD"],
  ])("that is known refuses the wrong method: %s %s", async (method, path, allow) => {
    const { status, headers, body } = await get(path, { method });
    expect(status).toBe(405);
    expect(headers["allow"]).toBe(allow);
    expect(body.error).toEqual({
      message: `Not allowed to ${method} on ${path}. (HINT: Perhaps you meant to use a different HTTP method?)`,
      type: "invalid_request_error",
      param: null,
      code: null,
    });
  });

  test("that makes no sense is refused in JSON too", async () => {
    for (const [target, host] of [
      ["/v1/%zz", "x"],
      ["/v1/a\\b", "x"],
      ["/v1/files", "not a host"],
    ] as const) {
      const answer = await rawRequest(api.url, `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
      expect([400, 404], target).toContain(answer.status);
      expect(JSON.parse(answer.body).error.type).toBe("invalid_request_error");
      expect(answer.headers["x-request-id"]).toMatch(/^req_/);
    }
  });
});

describe("models", () => {
  test("that are served cannot be deleted", async () => {
    const { status, body } = await get("/v1/models/meta/llama:8b", { method: "DELETE" });
    expect(status).toBe(404);
    expect(body.error).toMatchObject({
      message: expect.stringContaining("is served by an upstream of this server"),
      code: "model_not_found",
    });
    expect((await get("/v1/models/meta/llama:8b")).status).toBe(200);
  });
});

describe("supervisors", () => {
  test("learn whether it lives, and whether it may have traffic", async () => {
    expect((await get("/health")).body).toEqual({ status: "ok" });
    expect((await get("/ready")).status).toBe(200);
    api.setReady(false);
    const { status, headers } = await get("/ready");
    expect([status, headers["content-type"]]).toEqual([503, "application/json"]);
    const reason = expect.objectContaining({ message: "not ready" });
    expect(api.log.map((line) => JSON.parse(line))).toContainEqual(
      expect.objectContaining({ path: "/ready", status: 503, err: reason }),
    );
    expect((await get("/health")).status).toBe(200);
    api.setReady(true);
  });
});

test("those who ask at once whether it may have traffic cost the storage one write", async () => {
  const app = new Hono<AppEnv>();
  const looked = Promise.withResolvers<void>();
  const assertReady = vi.fn(() => looked.promise);
  const takeSnapshot = async () => ({ targets: [], openWork: null, heldBytes: {}, nowMs: 0 });
  mountOps(app, { assertReady, takeSnapshot, metrics: new Metrics() });
  const asked = Array.from({ length: 20 }, () => app.request("/ready"));
  looked.resolve();
  const answers = await Promise.all(asked);
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
  expect(assertReady).toHaveBeenCalledTimes(1);
  assertReady.mockRejectedValue(new Error("away"));
  expect((await app.request("/ready")).status).toBe(503);
});

describe("a fault of the server", () => {
  test("is a 500 that tells the client only an id, under which the log has the cause", async () => {
    await using broken = await startTestApi();
    await broken.store.close();
    const response = await broken.fetch("/v1/files");
    const { error } = await wireOf(response);
    const id = response.headers.get("x-request-id");
    expect(response.status).toBe(500);
    expect(error).toEqual({
      message: expect.stringMatching(
        new RegExp(`^The server had an error processing your request\\..*${id}\\.$`),
      ),
      type: "server_error",
      param: null,
      code: null,
    });
    const entry = broken.log.map((line) => JSON.parse(line)).find((each) => each.level === "error");
    expect(entry).toMatchObject({
      event: "request.completed",
      method: "GET",
      path: "/v1/files",
      status: 500,
      request_id: id,
    });
    expect(entry.err.stack).toContain("database");
    expect(error.message).not.toContain("database");
  });
});

test("a request is one line in the log, without its query", async () => {
  const { headers } = await get("/v1/models?secret=1");
  const id = headers["x-request-id"];
  const entries = api.log.map((line) => JSON.parse(line)).filter((each) => each.request_id === id);
  expect(entries).toEqual([
    {
      level: "debug",
      time: expect.any(String),
      event: "request.completed",
      method: "GET",
      path: "/v1/models",
      status: 200,
      ms: expect.any(Number),
      request_id: id,
    },
  ]);
});
