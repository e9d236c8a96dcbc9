/** Budgets of batches, and the quotas of tokens per day and cost per month, by the front door. */
import { describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import {
  ask,
  configWith,
  count,
  create,
  type ProjectServers,
  post,
  startProjectServers,
  together,
  upload,
} from "../support/projects.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("budgets and quotas of what answers take"));

/** Each answer costs 1, and each line is estimated so. */
const prices = [{ model: "test-*", per_request: "1", currency: "EUR" }];

/** They are enough for more than half of the lines that compete for them. */
const TOKENS = 120;

const linesOf = (lineCount: number, model = "test-model") =>
  `${chatLines(lineCount).join("\n")}\n`.replaceAll("test-model", model);

const batchAt = async (url: string, id: string) =>
  (await ask(url, `batches/${id}`)).body as unknown as BatchObject;

/** Resolves to the server that has logged the event first. */
const seenBy = (services: readonly TestService[], name: string, batch: string) =>
  Promise.race(services.map(({ events }) => events.reached(name, { batch })));

async function submit(url: string, content: string, x_batchd: object = {}): Promise<string> {
  const file = (await upload(url, content)).body.id as string;
  const created = await create(url, file, { x_batchd });
  expect(created.body.error).toBeUndefined();
  return created.body.id as string;
}

describe.each([
  ["one server with SQLite", null, true],
  ["two servers with PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  const start = (quotas: object = {}) =>
    startProjectServers(database, configWith({ quotas }, { prices }));

  test.skipIf(!canRun)(
    "a batch pauses before the line that would exceed its budget, and a higher one goes on",
    async () => {
      await using servers = await start();
      const { urls, services } = servers;
      const [url] = urls as [string];
      // Several chunks, so that both servers send lines.
      const batch = await submit(url, linesOf(700), { budget: "300.5" });
      await seenBy(services, "batch.paused", batch);
      const paused = await batchAt(url, batch);
      expect(paused.x_batchd).toMatchObject({
        paused: { reason: "budget" },
        budget: "300.5",
        cost: { currency: "EUR", so_far: "300" },
      });
      expect(paused.request_counts.completed).toBe(300);

      const raised = await post(url, `batches/${batch}`, { budget: "500" });
      expect(raised.status).toBe(200);
      expect((await batchAt(url, batch)).x_batchd.paused?.reason).toBe("budget");
      const pausedBefore = services.map(({ events }) => events.count("batch.paused"));
      await ask(url, `batches/${batch}/resume`, { method: "POST" });
      await Promise.race(
        services.map(({ events }, i) =>
          events.reached("batch.paused", { batch, count: (pausedBefore[i] ?? 0) + 1 }),
        ),
      );
      expect((await batchAt(url, batch)).x_batchd.cost?.so_far).toBe("500");

      await post(url, `batches/${batch}`, { budget: null });
      await ask(url, `batches/${batch}/resume`, { method: "POST" });
      await seenBy(services, "batch.completed", batch);
      const ended = await batchAt(url, batch);
      expect(ended.request_counts).toEqual({ total: 700, completed: 700, failed: 0 });
      expect(ended.x_batchd).toMatchObject({ paused: null, cost: { so_far: "700" } });
    },
  );

  test.skipIf(!canRun)(
    "a batch shows its cost in its first currency when another one is configured while it runs",
    async () => {
      await using servers = await start();
      const { urls, services, places } = servers;
      const [url] = urls as [string];
      const batch = await submit(url, linesOf(2), { sample: 1 });
      const isPaused = async () => (await batchAt(url, batch)).x_batchd.paused !== null;
      await expect.poll(isPaused, { timeout: 20_000 }).toBe(true);
      const changed = prices.map((price) => ({ ...price, currency: "AUD" }));
      for (const service of services) {
        service.reconfigure(configWith({}, { prices: changed, ...places }));
      }
      await ask(url, `batches/${batch}/resume`, { method: "POST" });
      await seenBy(services, "batch.completed", batch);
      const { request_counts, x_batchd } = await batchAt(url, batch);
      expect(request_counts.completed).toBe(2);
      expect(x_batchd.cost).toEqual({ currency: "EUR", so_far: "1", projected: "1" });
    },
  );

  test.skipIf(!canRun).each([
    ["cost_per_month", { cost_per_month: "15" }, { cost_per_month: "1000" }],
    ["tokens_per_day", { tokens_per_day: TOKENS }, { tokens_per_day: 1_000_000 }],
  ])(
    "of 24 batches at once exactly as many lines run as %s allows, the others wait, and none is lost",
    async (reason, quotas, raised) => {
      await using servers = await start(quotas);
      const { urls, services } = servers;
      const [url] = urls as [string];
      const line = chatLine("a", "Hello", { max_tokens: 4 });
      const file = (await upload(url, `${line}\n`)).body.id;
      const answers = await together(urls, (to) => create(to, file as string), 24);
      const ids = answers.flatMap(({ status, body }) =>
        status === 200 ? [body.id as string] : [],
      );
      const ends = await Promise.all(
        ids.map((id) =>
          Promise.race([
            seenBy(services, "batch.completed", id).then(() => "completed"),
            seenBy(services, "batch.paused", id).then(() => "paused"),
          ]),
        ),
      );
      const completed = ends.filter((end) => end === "completed").length;
      await expectUsedUp(servers, { reason, completed });
      const refused = answers.find(({ status }) => status === 429);
      if (refused !== undefined) expect(refused.body.error?.message).toContain(reason);
      const waiting = ids[ends.indexOf("paused")] as string;
      expect((await batchAt(url, waiting)).x_batchd.paused?.reason).toBe(reason);

      for (const service of services) {
        service.reconfigure(configWith({ quotas: raised }, { prices, ...servers.places }));
      }
      await Promise.all(ids.map((id) => seenBy(services, "batch.completed", id)));
      expect((await batchAt(url, waiting)).request_counts.completed).toBe(1);
    },
  );
});

/** The tokens or the cost are at the limit, or so near that not one line more would fit. */
async function expectUsedUp(
  { urls }: ProjectServers,
  { reason, completed }: { readonly reason: string; readonly completed: number },
): Promise<void> {
  const usage = (await ask(urls[0] as string, "usage?group_by=day")).body as unknown as {
    data: readonly { requests: number; input_tokens: number; output_tokens: number }[];
  };
  expect(usage.data[0]?.requests).toBe(completed);
  if (reason === "cost_per_month") {
    expect(completed).toBe(15);
    return;
  }
  const { input_tokens: input, output_tokens: output } = usage.data[0]!;
  expect(input + output).toBeLessThanOrEqual(TOKENS);
  expect(input + output).toBeGreaterThan(TOKENS - 60);
}

describe("a running batch", () => {
  test("that gets a budget holds it with the lines that have not gone out", async () => {
    await using servers = await startProjectServers(null, configWith({}, { prices }));
    const { services, upstream } = servers;
    const [url] = servers.urls as [string];
    upstream.hold();
    const batch = await submit(url, linesOf(600));
    await upstream.reached(1);
    await post(url, `batches/${batch}`, { budget: "550" });
    upstream.release();
    await seenBy(services, "batch.paused", batch);
    expect((await batchAt(url, batch)).x_batchd.cost?.so_far).toBe("550");
  });
});

test("a lower budget ends what was reserved under the higher one", async () => {
  await using servers = await startProjectServers(null, configWith({}, { prices }));
  const { services, upstream } = servers;
  const [url] = servers.urls as [string];
  upstream.hold();
  const batch = await submit(url, linesOf(600), { budget: "550" });
  await upstream.reached(1);
  // Fewer are in flight than the new budget allows, and more were reserved.
  await post(url, `batches/${batch}`, { budget: "100" });
  upstream.release();
  await seenBy(services, "batch.paused", batch);
  expect(upstream.total).toBe(100);
  expect((await batchAt(url, batch)).x_batchd).toMatchObject({
    budget: "100",
    paused: { reason: "budget" },
    cost: { so_far: "100" },
  });
});

test("answers that come slowly, each in a segment of its own, keep to the budget", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: configWith(
      {},
      {
        upstreams: [{ name: "only", base_url: upstream.url, models: ["*"], max_concurrency: 1 }],
        prices,
      },
    ),
  });
  const { events } = service;
  let flushedCount = 0;
  upstream.answers = async () => {
    // The answer before this one is durable.
    await events.reached("journal.flushed", { count: flushedCount++ });
    return { body: { choices: [] } };
  };
  const batch = await submit(service.url, linesOf(8), { budget: "3" });
  await Promise.race(
    ["batch.paused", "batch.completed"].map((event) => events.reached(event, { batch })),
  );
  expect(upstream.total).toBe(3);
  expect((await batchAt(service.url, batch)).x_batchd.cost?.so_far).toBe("3");
});

test("a price that is raised while batches run counts for the lines that go out from then on", async () => {
  await using upstream = await startUpstream();
  const rules = { quotas: { cost_per_month: "1999" } };
  const costing = (per_request: string) =>
    configWith(rules, {
      upstreams: [{ name: "only", base_url: upstream.url, models: ["*"], max_concurrency: 8 }],
      prices: [{ model: "test-*", per_request, currency: "EUR" }],
    });
  await using service = await startTestService({ config: costing("0.001") });
  const later = Promise.withResolvers<void>();
  upstream.answers = async () => {
    if (upstream.total <= 3) await later.promise;
    return { body: { choices: [] } };
  };
  const early = await submit(service.url, linesOf(3));
  await upstream.reached(3);
  service.reconfigure(costing("10"));
  // The lines that went out at the lower price are under way until the others have used up what is left.
  const raised = await submit(service.url, linesOf(300));
  await seenBy([service], "batch.paused", raised);
  later.resolve();
  await seenBy([service], "batch.completed", early);
  const [first, second] = [await batchAt(service.url, early), await batchAt(service.url, raised)];
  expect(first.x_batchd.cost?.so_far).toBe("0.003");
  expect(second.x_batchd).toMatchObject({
    cost: { so_far: "1990" },
    paused: { reason: "cost_per_month" },
  });
});

test("long prompts count the answer that they allow", async () => {
  const perToken = [{ model: "test-*", output: "1", per: 1, currency: "EUR" }];
  await using servers = await startProjectServers(null, configWith({}, { prices: perToken }));
  const [url] = servers.urls as [string];
  const usage = { prompt_tokens: 1, completion_tokens: 1_000, total_tokens: 1_001 };
  servers.upstream.answers = () => ({ body: { choices: [], usage } });
  const prompt = "x".repeat(300_000);
  const lines = [1, 2, 3, 4, 5].map((n) => chatLine(`line-${n}`, prompt, { max_tokens: 1_000 }));
  const batch = await submit(url, `${lines.join("\n")}\n`, { budget: "2500" });
  const ends = ["batch.paused", "batch.completed"];
  await Promise.race(ends.map((name) => seenBy(servers.services, name, batch)));
  expect((await batchAt(url, batch)).x_batchd.cost?.so_far).toBe("2000");
});

test("the length that an operator sets for all answers of an upstream counts, whatever the lines say", async () => {
  const usage = { prompt_tokens: 1, completion_tokens: 1_000, total_tokens: 1_001 };
  await using upstream = await startUpstream({
    answers: () => ({ body: { choices: [], usage } }),
  });
  const setting = (model: string, fields: object) => ({
    name: model,
    base_url: upstream.url,
    models: [model],
    ...fields,
  });
  const upstreams = [
    setting("forced", { extra_body: { max_tokens: 1_000 } }),
    setting("default", { defaults: { max_completion_tokens: 1_000 } }),
  ];
  const perToken = [{ model: "*", output: "1", per: 1, currency: "EUR" }];
  const config = configWith({}, { upstreams, prices: perToken });
  await using service = await startTestService({ config });
  const costOf = async (model: string, body: object) => {
    const lines = [1, 2, 3, 4, 5].map((n) => chatLine(`line-${n}`, "Hello", { ...body, model }));
    const batch = await submit(service.url, `${lines.join("\n")}\n`, { budget: "2500" });
    const ends = ["batch.paused", "batch.completed"];
    await Promise.race(ends.map((name) => service.events.reached(name, { batch })));
    return (await batchAt(service.url, batch)).x_batchd.cost?.so_far;
  };
  expect(await costOf("forced", { max_tokens: 5 })).toBe("2000");
  expect(await costOf("default", {})).toBe("2000");
});

describe("a budget that cannot be held", () => {
  test("is refused, with the reason", async () => {
    await using servers = await startProjectServers(null, configWith({}, { prices }));
    const [url] = servers.urls as [string];
    const file = (await upload(url, linesOf(2, "dear-model"))).body.id as string;
    const refused = await create(url, file, { x_batchd: { budget: "5" } });
    expect(refused.status).toBe(400);
    expect(refused.body.error).toMatchObject({ code: "invalid_value" });
    expect(refused.body.error?.message).toContain("The model 'dear-model' has no price");
    const without = (await create(url, file)).body.id as string;
    expect((await post(url, `batches/${without}`, { budget: "5" })).status).toBe(400);

    await using unpriced = await startProjectServers(null, configWith({}));
    const [other] = unpriced.urls as [string];
    const free = (await upload(other)).body.id as string;
    const answer = await create(other, free, { x_batchd: { budget: "5" } });
    expect(answer.body.error?.message).toContain("The server has no prices");
    expect(count([answer], 400)).toBe(1);
  });

  test("fails the batch when a line further down asks for a model without a price", async () => {
    const config = configWith({}, { prices, limits: { allow_mixed_models: true } });
    await using servers = await startProjectServers(null, config);
    const [url] = servers.urls as [string];
    const batch = await submit(url, linesOf(1) + linesOf(1, "dear-model").replace("line-1", "b"), {
      budget: "5",
    });
    await seenBy(servers.services, "batch.failed", batch);
    expect((await batchAt(url, batch)).errors?.data).toMatchObject([
      { code: "budget_without_price", line: 2 },
    ]);
  });
});

describe("POST /v1/batches/{id}", () => {
  test("changes the three fields, refuses all others, and says which state forbids a change", async () => {
    await using servers = await startProjectServers(null, configWith({}, { prices }));
    const [url] = servers.urls as [string];
    servers.upstream.hold();
    const batch = await submit(url, linesOf(1));
    await servers.upstream.reached(1);
    const change = { budget: "3", priority: -4, metadata: { team: "search" } };
    expect((await post(url, `batches/${batch}`, change)).body).toMatchObject({
      metadata: { team: "search" },
      x_batchd: { budget: "3", priority: -4 },
    });
    expect((await post(url, `batches/${batch}`, {})).status).toBe(200);
    const nothing = { budget: null, priority: null, metadata: null };
    expect((await post(url, `batches/${batch}`, nothing)).body).toMatchObject({
      metadata: null,
      x_batchd: { budget: null, priority: 0 },
    });
    const faulty: readonly [object, string | null][] = [
      [{ status: "completed" }, "unknown_parameter"],
      [{ x_batchd: { budget: "1" } }, "unknown_parameter"],
      [{ budget: 5 }, "invalid_type"],
      [{ budget: "-1" }, "invalid_value"],
      [{ budget: "1e3" }, "invalid_value"],
      [{ priority: 11 }, "integer_above_max_value"],
      [{ priority: "high" }, "invalid_type"],
      [{ metadata: { a: 1 } }, "invalid_type"],
      [{ metadata: { a: "x".repeat(513) } }, "string_above_max_length"],
      [
        { metadata: Object.fromEntries(Array.from({ length: 17 }, (_, n) => [`k${n}`, "v"])) },
        "object_above_max_properties",
      ],
    ];
    for (const [body, code] of faulty) {
      const answer = await post(url, `batches/${batch}`, body);
      expect([body, answer.status, answer.body.error?.code]).toEqual([body, 400, code]);
    }
    expect((await post(url, `batches/${batch}`, { priority: 1 }, "key-b")).status).toBe(404);
    servers.upstream.release();
    await seenBy(servers.services, "batch.completed", batch);
    const late = await post(url, `batches/${batch}`, { budget: "9", metadata: {} });
    expect(late.status).toBe(409);
    expect(late.body.error?.message).toBe(
      "Cannot change the budget of a batch with status 'completed'.",
    );
    expect((await post(url, `batches/${batch}`, { metadata: null })).body).toMatchObject({
      metadata: null,
    });
  });
});
