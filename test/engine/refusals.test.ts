/** An upstream that refuses the operator's own key, account or address is sick; the lines are not wrong. */
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { createBatch, uploadLines } from "../support/batches.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { type Given, GOOD, refusal } from "../support/given.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const noGrace = { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 } };
const KEY = "sk-operator-0123456789abcdef";
const LINES = 120;

const configFor = (upstream: TestUpstream, more: object = {}, config: object = {}) => ({
  ...noGrace,
  upstreams: [{ name: "one", base_url: upstream.url, api_key: KEY, models: ["*"], ...more }],
  ...config,
});

/** Everything a tenant can download of a batch. */
async function filesOf(service: TestService, batch: OpenAI.Batch): Promise<string> {
  const { output_file_id, error_file_id } = batch;
  return (await service.text(output_file_id)) + (await service.text(error_file_id));
}

const REFUSALS: readonly (readonly [name: string, given: Given])[] = [
  [
    "401 of a wrong key",
    refusal(401, {
      message: `Incorrect API key provided: ${KEY.slice(0, 8)}*****${KEY.slice(-4)}. You can find your API key at https://platform.openai.com/account/api-keys.`,
      type: "invalid_request_error",
      param: null,
      code: "invalid_api_key",
    }),
  ],
  ["401 of vLLM", { status: 401, body: { error: "Unauthorized" } }],
  [
    "402 without credit",
    refusal(402, { message: "Insufficient Balance", code: "invalid_request_error" }),
  ],
  [
    "403 from an address that is not allowed",
    refusal(403, {
      message: "Country, region, or territory not supported",
      code: "unsupported_country_region_territory",
    }),
  ],
  [
    "403 of a key without rights",
    refusal(403, {
      message:
        "You have insufficient permissions for this operation. Missing scopes: model.request.",
    }),
  ],
  ["404 of FastAPI for another path", { status: 404, body: { detail: "Not Found" } }],
  [
    "404 of OpenAI for another path",
    refusal(404, {
      message: "Invalid URL (POST /v1/v1/chat/completions)",
      type: "invalid_request_error",
    }),
  ],
  ["404 of Ollama for another path", { status: 404, body: "404 page not found" }],
  [
    "404 of llama.cpp for another path",
    refusal(404, { code: 404, message: "File Not Found", type: "not_found_error" }),
  ],
  [
    "404 page",
    {
      status: 404,
      headers: { "content-type": "text/html" },
      body: "<html><title>model hub</title></html>",
    },
  ],
  ["405", { status: 405, body: { detail: "Method Not Allowed" } }],
  ["301", { status: 301, headers: { location: "https://elsewhere/" }, body: "" }],
  [
    "200 page",
    {
      status: 200,
      headers: { "content-type": "text/html; charset=utf-8" },
      body: "<!doctype html><p>Open WebUI",
    },
  ],
  [
    "200 of LM Studio for another path",
    {
      status: 200,
      headers: { "content-type": "application/json; charset=utf-8", "content-length": "67" },
      body: { error: "Unexpected endpoint or method. (POST /chat/completions)" },
    },
  ],
  [
    "429 without quota",
    refusal(429, {
      message: "You exceeded your current quota, please check your plan and billing details.",
      type: "insufficient_quota",
      param: null,
      code: "insufficient_quota",
    }),
  ],
  [
    "429 over the budget of a gateway",
    refusal(429, {
      message: "Budget has been exceeded! Current cost: 5.0",
      type: "budget_exceeded",
      code: "429",
    }),
  ],
  [
    "400 of a hard limit",
    refusal(400, {
      message: "Billing hard limit has been reached",
      code: "billing_hard_limit_reached",
    }),
  ],
];

describe.each(REFUSALS)("an upstream that answers every line with %s", (_name, given) => {
  test("ends no line, is probed only, and answers all once it is mended and the configuration is loaded again", async () => {
    await using upstream = await startUpstream({ answers: () => given });
    await using service = await startTestService({ config: configFor(upstream) });

    const { id } = await service.submit(chatLines(LINES));
    await service.events.reached("upstream.refused");
    const requestsUntilHeld = upstream.seen.length;
    expect(requestsUntilHeld).toBeLessThan(100);
    expect((await service.openai.batches.retrieve(id)).request_counts?.failed).toBe(0);
    expect(service.events.count("upstream.refused")).toBe(1);
    const [event] = service.events.all.filter((each) => each.event === "upstream.refused");
    expect(event).toMatchObject({ level: "error", target: "one", todo: expect.any(String) });
    expect(JSON.stringify(service.events.all)).not.toContain(KEY.slice(0, 8));

    upstream.answers = () => GOOD;
    service.reconfigure(configFor(upstream));
    const batch = await service.ended(id);

    expect(batch.request_counts).toEqual({ total: LINES, completed: LINES, failed: 0 });
    expect(await filesOf(service, batch)).not.toContain(KEY.slice(0, 8));
  });
});

const OF_THE_LINE: readonly (readonly [name: string, given: Given])[] = [
  [
    "OpenAI's 404",
    refusal(404, {
      message: "The model `x` does not exist or you do not have access to it.",
      type: "invalid_request_error",
      param: null,
      code: "model_not_found",
    }),
  ],
  [
    "OpenAI's 404 of an item",
    refusal(404, { message: "Item with id 'rs_1' not found.", param: "input", code: null }),
  ],
  [
    "OpenAI's 403",
    refusal(403, {
      message: "Project `proj_1` does not have access to model `x`",
      type: "invalid_request_error",
      param: null,
      code: "model_not_found",
    }),
  ],
  [
    "vLLM's 404",
    {
      status: 404,
      body: {
        object: "error",
        message: "The model `x` does not exist.",
        type: "NotFoundError",
        param: null,
        code: 404,
      },
    },
  ],
  ["Ollama's 404", refusal(404, { message: 'model "x" not found, try pulling it first' })],
  [
    "llama.cpp's 404",
    refusal(404, { code: 404, message: "model not found", type: "not_found_error" }),
  ],
  [
    "LiteLLM's 400",
    refusal(400, {
      message:
        "/chat/completions: Invalid model name passed in model=x. Call `/v1/models` to view available models for your key.",
      type: "invalid_request_error",
      param: "None",
      code: "400",
    }),
  ],
  [
    "LiteLLM's 401",
    refusal(401, {
      message:
        "key not allowed to access model. This key can only access models=['y']. Tried to access x",
      type: "key_model_access_denied",
      param: "model",
      code: "401",
    }),
  ],
  [
    "LiteLLM's 403",
    refusal(403, {
      message:
        "key not allowed to access model. This key can only access models=['y']. Tried to access x",
      type: "key_model_access_denied",
      param: "model",
      code: "403",
    }),
  ],
  [
    "Azure's 404",
    refusal(404, {
      code: "DeploymentNotFound",
      message: "The API deployment for this resource does not exist.",
    }),
  ],
  ["OpenRouter's 404", refusal(404, { code: 404, message: "No endpoints found for x." })],
  [
    "OpenRouter's 403",
    refusal(403, {
      code: 403,
      message: "Your chosen model requires moderation and your input was flagged",
      metadata: { reasons: ["violence"] },
    }),
  ],
  [
    "a 403 for a policy",
    refusal(403, {
      message: "Your request was rejected as a result of our safety system.",
      code: "content_policy_violation",
    }),
  ],
  ["a plain 400", refusal(400, { message: "max_tokens is too large", code: null })],
  [
    "a 413 page",
    {
      status: 413,
      headers: { "content-type": "text/html" },
      body: "<html>413 Request Entity Too Large</html>",
    },
  ],
];

test.each(OF_THE_LINE)(
  "%s is about the line and ends it at the first attempt",
  async (_name, given) => {
    await using upstream = await startUpstream({ answers: () => given });
    await using service = await startTestService({ config: configFor(upstream) });

    const batch = await service.run(chatLines(3));

    expect(batch.request_counts).toEqual({ total: 3, completed: 0, failed: 3 });
    expect(upstream.seen).toHaveLength(3);
    const [row] = await service.rows(batch.error_file_id);
    expect(row?.response?.status_code).toBe(given.status);
  },
);

test("lines go to a healthy target of the route while another one refuses the key", async () => {
  await using bad = await startUpstream({
    answers: () => ({
      status: 401,
      body: { error: "Unauthorized" },
    }),
  });
  await using good = await startUpstream({ answers: () => GOOD });
  const at = ({ url }: TestUpstream, name: string) => ({ name, base_url: url, models: ["*"] });
  await using service = await startTestService({
    config: { ...noGrace, upstreams: [at(bad, "bad"), at(good, "good")] },
  });

  const batch = await service.run(chatLines(200));

  expect(batch.request_counts).toEqual({ total: 200, completed: 200, failed: 0 });
  expect(good.seen).toHaveLength(200);
  expect(bad.seen.length).toBeLessThan(50);
});

describe("a tenant whose lines make a healthy server refuse in odd words", () => {
  const keys = ["a", "b"].map((name) => ({ name, key: `key-of-${name}`, project: name }));
  const odd = (status: number): Given => ({ status, body: { oops: "computer says no" } });
  const clientOf = (service: TestService, name: string) =>
    new OpenAI({ baseURL: `${service.url}/v1`, apiKey: `key-of-${name}`, maxRetries: 0 });

  async function submitAs(client: OpenAI, lines: readonly string[]): Promise<OpenAI.Batch> {
    const input_file_id = await uploadLines(client, lines);
    const endpoint = "/v1/chat/completions";
    return createBatch(client, input_file_id, { endpoint });
  }

  test.each([401, 403, 404])("by %i holds up no other one, and its lines end", async (status) => {
    await using upstream = await startUpstream({
      answers: ({ model }) => (model === "odd" ? odd(status) : GOOD),
    });
    const clock = new FakeClock();
    await using service = await startTestService({
      clock,
      config: configFor(upstream, { max_concurrency: 4 }, { auth: { keys } }),
    });
    const [attacker, other] = [clientOf(service, "a"), clientOf(service, "b")];
    const oddLines = Array.from({ length: 40 }, (_, i) =>
      chatLine(`odd-${i}`, "x", { model: "odd" }),
    );

    const attack = await submitAs(attacker, oddLines);
    await service.events.reached("upstream.refused");
    // Nothing of the others waits for the target.
    const chat = { model: "fine", messages: [{ role: "user" as const, content: "Hi" }] };
    expect((await other.chat.completions.create(chat)).object).toBe("chat.completion");
    const { id } = await submitAs(other, chatLines(100));
    while (service.events.count("batch.completed", { batch: id }) === 0) {
      await other.chat.completions.create(chat);
      clock.advance(100);
    }
    expect((await other.batches.retrieve(id)).request_counts?.completed).toBe(100);

    // As long as the server serves others, it is known to be well: the odd lines are at fault.
    while (service.events.count("batch.completed", { batch: attack.id }) === 0) {
      await other.chat.completions.create(chat);
      clock.advance(500);
    }
    const ended = await attacker.batches.retrieve(attack.id);
    expect(ended.request_counts).toEqual({ total: 40, completed: 0, failed: 40 });
    const text = await (await attacker.files.content(ended.error_file_id as string)).text();
    const row = JSON.parse(text.split("\n")[0] as string);
    if (status === 404)
      expect(row.response).toMatchObject({
        status_code: 404,
        body: { oops: expect.any(String) },
      });
    else expect(row).toMatchObject({ response: null, error: { code: "upstream_refused" } });
  });
});

test("a line that is refused for good ends, although no other line is served any more by then", async () => {
  await using upstream = await startUpstream({
    answers: ({ user }) => (user === "line-1" ? { status: 403, body: { oops: "no" } } : GOOD),
  });
  await using service = await startTestService({ config: configFor(upstream) });

  const batch = await service.run(chatLines(500));

  expect(batch.request_counts).toEqual({ total: 500, completed: 499, failed: 1 });
  const [row] = await service.rows(batch.error_file_id);
  expect(row).toMatchObject({
    custom_id: "line-1",
    response: null,
    error: { code: "upstream_refused" },
  });
});

describe("interactive requests", () => {
  const ask = (service: TestService) => {
    const body = JSON.stringify({ model: "m", messages: [] });
    return fetch(`${service.url}/v1/chat/completions`, { method: "POST", body });
  };

  test.each(REFUSALS)("get a 502 of ours for %s", async (_name, given) => {
    await using upstream = await startUpstream({ answers: () => given });
    await using service = await startTestService({ config: configFor(upstream) });
    for (let i = 0; i < 8; i++) {
      const answer = await ask(service);
      const text = await answer.text();
      expect([answer.status, JSON.parse(text).error.code]).toEqual([502, "upstream_refused"]);
      expect(text).not.toContain(KEY.slice(0, 8));
    }
    // Held as lines are.
    expect(upstream.seen.length).toBeLessThan(8);
  });

  test("get no 401 about a model, which would blame their own key", async () => {
    const [, given] = OF_THE_LINE.find(([, { status }]) => status === 401)!;
    await using upstream = await startUpstream({ answers: () => given });
    const config = configFor(upstream, { max_concurrency: 1 });
    await using service = await startTestService({ config });
    expect((await ask(service)).status).toBe(502);
    // The slot is free again, and other requests are not held up.
    upstream.answers = () => GOOD;
    expect((await ask(service)).status).toBe(200);
  });

  const others = OF_THE_LINE.filter(([, { status }]) => status !== 401);
  test.each(others)("get %s byte for byte", async (_name, given) => {
    await using upstream = await startUpstream({ answers: () => given });
    await using service = await startTestService({ config: configFor(upstream) });
    const answer = await ask(service);
    expect(answer.status).toBe(given.status);
    const sent = typeof given.body === "string" ? given.body : JSON.stringify(given.body);
    expect(await answer.text()).toBe(sent);
  });
});
