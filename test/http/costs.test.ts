/** What batches cost, by the front door: on the batch itself, and summed up by `GET /v1/usage`. */
import { describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const key = (name: string, project: string, scopes = ["read", "write"]) => ({
  name,
  key: `key-${name}`,
  project,
  scopes,
});
const auth = {
  keys: [key("alpha", "alpha"), key("beta", "beta"), key("admin", "operators", ["admin"])],
};
// The test upstream counts a token for each word and one more, answers two more than that, and has 1 cached.
const prices = [
  { model: "dear-*", input: "0.10", cached_input: "0.05", output: "2.5", per: 1, currency: "EUR" },
  {
    model: "test-*",
    input: "3",
    cached_input: "1",
    output: "7",
    per_request: "0.01",
    currency: "EUR",
  },
];
/** Two lines of two words each: 2 × (2 × 3 + 1 × 1 + 5 × 7) ÷ 1,000,000 + 2 × 0.01. */
const COST_OF_TWO = "0.020084";
const twoLines = (model = "test-model") =>
  chatLines(2, (n) => `line ${n}`).map((line) => line.replace("test-model", model));

const upstream = forAllTests(await startUpstream());
const upstreams = [{ name: "only", base_url: upstream.url, models: ["*"] }];
const service = forAllTests(
  await startTestService({
    config: { upstreams, auth, prices, limits: { allow_mixed_models: true } },
  }),
);

const ask = (name: string, path: string, init: RequestInit = {}) =>
  fetch(service.url + path, {
    ...init,
    headers: { authorization: `Bearer key-${name}`, "content-type": "application/json" },
  });
const json = async (name: string, path: string, init: RequestInit = {}) =>
  (await ask(name, path, init)).json();

async function submit(name: string, lines: readonly string[], fields = {}): Promise<string> {
  const form = new FormData();
  form.set("purpose", "batch");
  form.set("file", new Blob([`${lines.join("\n")}\n`]), "input.jsonl");
  const headers = { authorization: `Bearer key-${name}` };
  const uploaded = await fetch(`${service.url}/v1/files`, { method: "POST", headers, body: form });
  const { id } = (await uploaded.json()) as { id: string };
  const body = JSON.stringify({
    input_file_id: id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    ...fields,
  });
  return ((await json(name, "/v1/batches", { method: "POST", body })) as BatchObject).id;
}

async function run(name: string, lines: readonly string[]): Promise<BatchObject> {
  const id = await submit(name, lines);
  await service.events.reached("batch.completed", { batch: id });
  return (await json(name, `/v1/batches/${id}`)) as BatchObject;
}

interface Row {
  readonly project: string | null;
  readonly model: string | null;
  readonly day: string | null;
  readonly requests: number;
  readonly cost: { readonly currency: string; readonly amount: string } | null;
}
const usage = async (name: string, query = ""): Promise<Row[]> =>
  ((await json(name, `/v1/usage${query}`)) as { data: Row[] }).data;

describe("a batch", () => {
  test("shows what its answers cost, and nothing for those that failed", async () => {
    const batch = await run("alpha", [
      ...twoLines(),
      ...chatLines(3, () => "[[status 400]]").slice(2),
    ]);
    expect(batch.request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
    expect(batch.x_batchd.cost).toEqual({
      currency: "EUR",
      so_far: COST_OF_TWO,
      projected: COST_OF_TWO,
    });
  });

  test.each([
    [
      "a gateway adds zeros under the names of another endpoint",
      {
        prompt_tokens: 3,
        completion_tokens: 5,
        input_tokens: 0,
        output_tokens: 0,
        input_tokens_details: null,
      },
    ],
    [
      "only the total counts the reasoning",
      {
        prompt_tokens: 3,
        completion_tokens: 2,
        completion_tokens_details: { reasoning_tokens: 3 },
      },
    ],
    [
      "cached tokens have a name of the service",
      { prompt_tokens: 3, completion_tokens: 5, prompt_tokens_details: null, cached_tokens: 1 },
    ],
  ])("costs what its answers took where %s", async (_, counts) => {
    const usage = { total_tokens: 8, prompt_tokens_details: { cached_tokens: 1 }, ...counts };
    upstream.answers = () => ({ body: { object: "chat.completion", choices: [], usage } });
    try {
      expect((await run("alpha", twoLines())).x_batchd.cost?.so_far).toBe(COST_OF_TWO);
    } finally {
      upstream.answers = null;
    }
  });

  test("without a price has no cost", async () => {
    expect((await run("alpha", twoLines("free"))).x_batchd.cost).toBeNull();
  });

  test("projects its cost from the lines that are done", async () => {
    const id = await submit("alpha", [...twoLines(), ...chatLines(4, () => "[[hang]]").slice(2)]);
    const costNow = async () =>
      ((await json("alpha", `/v1/batches/${id}`)) as BatchObject).x_batchd.cost;
    await expect
      .poll(costNow)
      .toEqual({ currency: "EUR", so_far: COST_OF_TWO, projected: "0.040168" });
    await ask("alpha", `/v1/batches/${id}/cancel`, { method: "POST" });
  });

  test("projects nothing for lines that are answered with those of others", async () => {
    const [one, two] = twoLines() as [string, string];
    const again = ["again-1", "again-2"].map((id) => one.replace('"line-1"', `"${id}"`));
    const hanging = chatLines(3, () => "[[hang]]").slice(2);
    const id = await submit("alpha", [one, two, ...again, ...hanging], {
      x_batchd: { dedupe: true },
    });
    const costNow = async () =>
      ((await json("alpha", `/v1/batches/${id}`)) as BatchObject).x_batchd.cost;
    await expect
      .poll(costNow)
      .toEqual({ currency: "EUR", so_far: COST_OF_TWO, projected: "0.030126" });
    await ask("alpha", `/v1/batches/${id}/cancel`, { method: "POST" });
  });

  test("of several models costs what each of them does", async () => {
    const batch = await run("alpha", [...twoLines().slice(0, 1), ...twoLines("dear-1").slice(1)]);
    // 2 × 0.10 + 0.05 + 5 × 2.5, and half of the two lines.
    expect(batch.x_batchd.cost?.so_far).toBe("12.760042");
  });
});

describe("GET /v1/usage", () => {
  test("sums up by model, and by project for the administrator", async () => {
    await run("beta", twoLines());
    const cost = { currency: "EUR", amount: COST_OF_TWO };
    expect(await usage("beta", "?group_by=model")).toMatchObject([
      { project: null, model: "test-model", day: null, requests: 2, input_tokens: 6, cost },
    ]);
    const projects = await usage("admin", "?group_by=project,day");
    expect(new Set(projects.map(({ project }) => project))).toEqual(new Set(["alpha", "beta"]));
    expect(await usage("admin", "?group_by=project&project=beta")).toMatchObject([{ cost }]);
  });

  test("shows a project no other one", async () => {
    expect(await usage("beta", "?project=alpha")).toEqual([]);
    expect(await usage("beta", "?group_by=project")).toMatchObject([{ project: "beta" }]);
  });

  test("stays when the batch is deleted", async () => {
    const batch = await run("beta", twoLines("dear-2"));
    const before = await usage("beta", "?group_by=model");
    expect(before).toContainEqual(expect.objectContaining({ model: "dear-2", requests: 2 }));
    await ask("beta", `/v1/batches/${batch.id}`, { method: "DELETE" });
    expect(await usage("beta", "?group_by=model")).toEqual(before);
  });

  test("is a table for a spreadsheet, in which no name of a model is a formula", async () => {
    await run("beta", twoLines('=cmd|\\"x\\"'));
    const answer = await ask("beta", "/v1/usage?group_by=model&format=csv");
    expect(answer.headers.get("content-type")).toBe("text/csv; charset=utf-8");
    const lines = (await answer.text()).split("\r\n");
    expect(lines[0]).toBe(
      '"project","model","day","requests","input_tokens","cached_input_tokens","output_tokens","currency","cost"',
    );
    expect(lines).toContain(`,"'=cmd|""x""",,2,6,2,10,,`);
    expect(lines).toContain(`,"test-model",,2,6,2,10,"EUR","${COST_OF_TWO}"`);
  });

  test.each([
    ["?group_by=", 200, null],
    ["?group_by=key", 400, "group_by"],
    ["?from=2026-02-30", 400, "from"],
    ["?from=yesterday", 400, "from"],
    ["?from=2026-01-02&to=2026-01-01", 400, "from"],
    ["?from=2020-01-01&to=2026-01-01", 400, "from"],
    ["?format=xml", 400, "format"],
    ["?limit=3", 400, "limit"],
  ])("with %s answers %i", async (query, status, param) => {
    const answer = await ask("beta", `/v1/usage${query}`);
    expect(answer.status).toBe(status);
    const body = (await answer.json()) as { error?: { param: string } };
    expect(body.error?.param ?? null).toBe(param);
  });
});

test("counts of tokens that no model answers with are none: the sums stay exact, and the batch ends", async () => {
  const absurd = Number.MAX_SAFE_INTEGER;
  await using broken = await startUpstream({
    answers: async () => ({
      body: {
        object: "chat.completion",
        choices: [],
        usage: { prompt_tokens: absurd, completion_tokens: 2, total_tokens: absurd },
      },
    }),
  });
  await using other = await startTestService({ upstreamUrl: broken.url, config: { prices } });
  const { usage } = await other.run(chatLines(3));
  expect(usage).toMatchObject({ input_tokens: 0, output_tokens: 6, total_tokens: 6 });
  const sums = await (await fetch(`${other.url}/v1/usage`)).json();
  // 3 × (2 × 7 ÷ 1,000,000 + 0.01).
  expect(sums).toMatchObject({
    data: [{ output_tokens: 6, cost: { currency: "EUR", amount: "0.030042" } }],
  });
});

test("no more tokens are cached than sent, or reasoned than answered, and the total is their sum, whatever an upstream says", async () => {
  const usage = {
    prompt_tokens: 10,
    completion_tokens: 4,
    total_tokens: 5,
    prompt_tokens_details: { cached_tokens: 700 },
    completion_tokens_details: { reasoning_tokens: 900 },
  };
  const body = { object: "chat.completion", choices: [], usage };
  await using broken = await startUpstream({ answers: async () => ({ body }) });
  await using other = await startTestService({ upstreamUrl: broken.url, config: { prices } });
  const batch = await other.run(chatLines(2));
  expect(batch.usage).toEqual({
    input_tokens: 20,
    input_tokens_details: { cached_tokens: 20 },
    output_tokens: 8,
    output_tokens_details: { reasoning_tokens: 8 },
    total_tokens: 28,
  });
  const { data } = (await (await fetch(`${other.url}/v1/usage`)).json()) as { data: object[] };
  expect(data).toMatchObject([{ input_tokens: 20, cached_input_tokens: 20, output_tokens: 8 }]);
  const scrape = await (await fetch(`${other.url}/metrics`)).text();
  expect(scrape).toMatch(/batchd_tokens_total\{kind="cached",[^}]*\} 20\n/);
  expect(scrape).toMatch(/batchd_tokens_total\{kind="reasoning",[^}]*\} 8\n/);
});

test("each group that is asked for has to be known, however many there are", async () => {
  const asked = await ask("alpha", "/v1/usage?group_by=day,day,model,project,nonsense");
  expect([asked.status, await asked.text()]).toEqual([400, expect.stringContaining("nonsense")]);
});
