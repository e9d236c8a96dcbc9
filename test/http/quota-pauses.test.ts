/**
 * Batches that a quota of their project has paused go on by themselves: in the next period, and when the quota changes. A batch
 * that only waits for others of its project goes on, too.
 */
import { expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { type Given, GOOD, refusal } from "../support/given.ts";
import { ask, configWith, create, post, upload } from "../support/projects.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

/** It is two hours before the end of a day, of a month and of a year. */
const LATE = Date.UTC(2026, 11, 31, 22);
const HOUR_MS = 60 * 60 * 1000;
const LINES = 6;

const prices = [{ model: "*", per_request: "1", currency: "EUR" }];
/** They are some forty tokens, with the answer that repeats them. */
const WORDS = "a ".repeat(20);
const CONTENT = `${Array.from({ length: LINES }, (_, n) => chatLine(`${n}`, WORDS, { max_tokens: 4 })).join("\n")}\n`;

async function start(
  upstream: { readonly url: string },
  { quotas, clock }: { readonly quotas: object | null; readonly clock: FakeClock },
) {
  const { auth, projects } = configWith({ quotas });
  const upstreams = [
    // One line at a time, so that no estimate stands in the way of another line.
    {
      name: "only",
      base_url: upstream.url,
      models: ["*"],
      max_concurrency: 1,
      timeout_seconds: 86_400,
    },
  ];
  const rules = quotas === null ? {} : { projects };
  return startTestService({ clock, config: { auth, upstreams, prices, ...rules } });
}

/** Lets time pass, much faster than it does, until the event comes. */
async function passUntil(clock: FakeClock, event: Promise<void>): Promise<void> {
  let isOver = false;
  void event.finally(() => {
    isOver = true;
  });
  while (!isOver) {
    clock.advance(50);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return event;
}

const batchAt = async (url: string, id: string) =>
  (await ask(url, `batches/${id}`)).body as unknown as BatchObject;

test.each([
  ["cost_per_month", { cost_per_month: "4" }],
  ["tokens_per_day", { tokens_per_day: 150 }],
])(
  "a batch that %s has paused goes on at midnight, and sends each line once",
  async (reason, quotas) => {
    const clock = new FakeClock(LATE);
    await using upstream = await startUpstream();
    await using service = await start(upstream, { quotas, clock });
    const { url, events } = service;
    const file = (await upload(url, CONTENT)).body.id as string;
    const batch = (await create(url, file)).body.id as string;
    await passUntil(clock, events.reached("batch.paused", { batch, reason }));
    const paused = await batchAt(url, batch);
    expect(paused.x_batchd.paused).toEqual({ reason, since: expect.any(Number) });
    const { completed } = paused.request_counts;
    expect(completed).toBeGreaterThan(0);
    expect(completed).toBeLessThan(LINES);
    // An hour later it is still the same day.
    clock.advance(HOUR_MS);
    expect((await batchAt(url, batch)).x_batchd.paused?.reason).toBe(reason);

    clock.advance(HOUR_MS);
    await passUntil(clock, events.reached("batch.completed", { batch }));
    const ended = await batchAt(url, batch);
    expect(ended.request_counts).toEqual({ total: LINES, completed: LINES, failed: 0 });
    expect(ended.x_batchd.paused).toBeNull();
  },
);

test("a batch that a quota has paused goes on when the quota of the project is raised at run time", async () => {
  const clock = new FakeClock(LATE);
  await using upstream = await startUpstream();
  await using service = await start(upstream, { quotas: null, clock });
  const { url, events } = service;
  const put = (quotas: object) =>
    post(url, "admin/projects", { name: "search", quotas }, "key-admin");
  expect((await put({ cost_per_month: "2" })).status).toBe(200);
  const file = (await upload(url, CONTENT)).body.id as string;
  const batch = (await create(url, file)).body.id as string;
  await passUntil(clock, events.reached("batch.paused", { batch, reason: "cost_per_month" }));
  expect((await batchAt(url, batch)).request_counts.completed).toBe(2);
  expect((await put({ cost_per_month: "100" })).status).toBe(200);
  await passUntil(clock, events.reached("batch.completed", { batch }));
  expect((await batchAt(url, batch)).request_counts.completed).toBe(LINES);
});

test.each([
  ["comes", undefined],
  ["is lowered", { tokens_per_day: 1_000_000 }],
  ["comes beside another one", { cost_per_month: "1000000" }],
])("a quota that %s while a batch runs holds from its next line on", async (_, before) => {
  await using upstream = await startUpstream();
  const upstreams = [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 4 }];
  const configWithQuotas = (quotas: object = {}) => ({
    upstreams,
    projects: [{ name: "default", quotas }],
  });
  await using service = await startTestService({ config: configWithQuotas(before) });
  upstream.hold();
  const { id } = await service.submit(chatLines(600));
  await upstream.reached(4);
  service.reconfigure(configWithQuotas({ ...before, tokens_per_day: 1 }));
  upstream.release();
  const ends = ["batch.paused", "batch.completed"];
  await Promise.race(ends.map((name) => service.events.reached(name, { batch: id })));
  // Each chunk may have had a line in the queue for a slot.
  expect(upstream.total).toBeLessThanOrEqual(8);
  expect((await batchAt(service.url, id)).x_batchd.paused?.reason).toBe("tokens_per_day");
  service.reconfigure({ upstreams });
  expect((await service.ended(id)).request_counts?.completed).toBe(600);
});

test("batches at a model server that does not answer leave what they do not use to others of the project", async () => {
  await using slow = await startUpstream();
  await using fast = await startUpstream();
  slow.hold();
  const upstreams = [
    { name: "slow", base_url: slow.url, models: ["slow"], max_concurrency: 4 },
    { name: "fast", base_url: fast.url, models: ["fast"] },
  ];
  const config = configWith({ quotas: { cost_per_month: "100" } }, { upstreams, prices });
  await using service = await startTestService({ config });
  const { url, events } = service;
  const linesFor = (model: string, lineCount: number) =>
    `${chatLines(lineCount).join("\n")}\n`.replaceAll("test-model", model);
  const file = (await upload(url, linesFor("slow", 2_000))).body.id as string;
  const held = await Promise.all([1, 2, 3, 4, 5, 6].map(() => create(url, file)));
  const ids = held.map(({ body }) => body.id as string);
  await Promise.all(ids.map((batch) => events.reached("batch.started", { batch })));
  await slow.reached(4);
  const others = (await upload(url, linesFor("fast", 70))).body.id as string;
  const batch = (await create(url, others)).body.id as string;
  await events.reached("batch.completed", { batch });
  for (const id of ids) await ask(url, `batches/${id}/cancel`, { method: "POST" });
  slow.release();
});

test("a batch whose next line waits for what others of its project hold of a quota says that there is no room", async () => {
  await using upstream = await startUpstream();
  const upstreams = [{ name: "one", base_url: upstream.url, models: ["*"] }];
  const engine = { stop_grace_seconds: 0 };
  const config = configWith({ quotas: { cost_per_month: "4" } }, { engine, upstreams, prices });
  await using service = await startTestService({ config });
  const { url, events } = service;
  upstream.hold();
  const file = (await upload(url, `${chatLines(2).join("\n")}\n`)).body.id as string;
  const submit = async () => (await create(url, file)).body.id as string;
  const waits = async (id: string) => (await batchAt(url, id)).x_batchd;
  const holders = [await submit(), await submit()];
  await upstream.reached(4);
  const waiting = await submit();
  await events.reached("batch.started", { batch: waiting });
  await expect
    .poll(() => waits(waiting))
    .toMatchObject({ waiting: { reason: "no_room", upstream_error: null }, queue_position: 1 });
  for (const id of holders) expect((await waits(id)).waiting).toBeNull();
  await ask(url, `batches/${holders[0]}/cancel`, { method: "POST" });
  await expect.poll(async () => (await waits(waiting)).waiting).toBeNull();
  await upstream.reached(6);
  upstream.release();
});

const WAITS: [reason: string, given: Given | null][] = [
  ["upstream_down", null],
  ["no_room", { status: 429, headers: { "retry-after": "7200" }, body: {} }],
  ["refused_credentials", refusal(401, { message: "no", code: "invalid_api_key" })],
];

test.each(WAITS)(
  "lines that wait because of %s (%o) leave the quota to others of the project, and go out once they can",
  async (reason, given) => {
    await using failing = await startUpstream({ answers: () => given ?? GOOD });
    await using good = await startUpstream();
    const configFor = (url: string, cost_per_month: string) => {
      const upstreams = [
        { name: "failing", base_url: url, models: ["failing"] },
        { name: "good", base_url: good.url, models: ["good"] },
      ];
      return configWith({ quotas: { cost_per_month } }, { upstreams, prices });
    };
    const config = configFor(given === null ? "http://127.0.0.1:9/v1" : failing.url, "6");
    await using service = await startTestService({ config });
    const { url, events } = service;
    const submit = async (model: string, lineCount: number) => {
      const content = `${chatLines(lineCount).join("\n")}\n`.replaceAll("test-model", model);
      const file = (await upload(url, content)).body.id as string;
      return (await create(url, file)).body.id as string;
    };
    const waiting = await submit("failing", 50);
    const reasonNow = async () => (await batchAt(url, waiting)).x_batchd.waiting?.reason;
    await expect.poll(reasonNow).toBe(reason);
    const other = await submit("good", 6);
    await events.reached("batch.completed", { batch: other });
    // A line that tries the upstream now finds the quota used up, and its batch is paused.
    failing.answers = () => GOOD;
    service.reconfigure(configFor(failing.url, "100"));
    await events.reached("batch.completed", { batch: waiting });
    expect((await batchAt(url, waiting)).request_counts.completed).toBe(50);
  },
);

test("a line with an image of a megabyte fits where its bytes as text would not", async () => {
  await using upstream = await startUpstream();
  const rate = { tokens_per_minute: 20_000 };
  const upstreams = [{ name: "one", base_url: upstream.url, models: ["*"], ...rate }];
  const quotas = { tokens_per_day: 20_000, enqueued_tokens: 20_000 };
  await using service = await startTestService({ config: configWith({ quotas }, { upstreams }) });
  const { url, events } = service;
  const image = `data:image/png;base64,${"iVBORw0K".repeat(131_072)}`;
  const body = {
    model: "m",
    messages: [{ role: "user", content: [{ image_url: { url: image } }] }],
  };
  const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body };
  const file = (await upload(url, `${JSON.stringify(line)}\n`)).body.id as string;
  const batch = (await create(url, file)).body.id as string;
  await events.reached("batch.completed", { batch });
  expect((await batchAt(url, batch)).request_counts.completed).toBe(1);
});
