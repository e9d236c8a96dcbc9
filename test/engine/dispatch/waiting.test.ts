/** Why a batch waits stands in `x_batchd`, wherever the batch is shown. */
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { WEEKDAYS } from "../../../src/config/upstreams.ts";
import type { BatchObject } from "../../../src/contract/batch.ts";
import { GOOD, refusal } from "../../support/given.ts";
import { chatLines, startTestService, type TestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

const noGrace = { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 } };
const KEY = "sk-operator-0123456789abcdef";

const extensionOf = (batch: OpenAI.Batch) => (batch as unknown as BatchObject).x_batchd;

const configFor = (base_url: string, more: object = {}) => ({
  ...noGrace,
  upstreams: [{ name: "one", base_url, api_key: KEY, models: ["*"], ...more }],
});

/** Resolves once the batch waits for the reason, with such an error. Before the first refusal there is just no room. */
async function waitingFor(
  service: TestService,
  id: string,
  reason: string | null,
  upstreamError = "",
) {
  let seen: BatchObject["x_batchd"] | null = null;
  const look = async () => {
    seen = extensionOf(await service.openai.batches.retrieve(id));
    if (!(seen.waiting?.upstream_error ?? "").includes(upstreamError)) return "another error";
    return seen.waiting?.reason ?? null;
  };
  await expect.poll(look).toBe(reason);
  return seen as unknown as BatchObject["x_batchd"];
}

const REFUSALS = [
  [
    "refused_credentials",
    refusal(401, { message: `Incorrect API key provided: ${KEY}`, code: "invalid_api_key" }),
  ],
  [
    "out_of_quota",
    refusal(429, { message: "You exceeded your current quota", code: "insufficient_quota" }),
  ],
  ["wrong_address", { status: 404, body: { detail: "Not Found" } }],
  ["upstream_down", { status: 502, body: {} }],
  ["no_room", { status: 429, body: {} }],
] as const;

test.each(REFUSALS)(
  "%s, with what was wrong and since when, until it is over",
  async (reason, given) => {
    await using upstream = await startUpstream({ answers: () => given });
    await using service = await startTestService({ config: configFor(upstream.url) });
    const startedAt = Math.floor(Date.now() / 1000);
    const { id } = await service.submit(chatLines(60));

    const error = `status ${given.status}`;
    const { waiting, at_risk, eta } = await waitingFor(service, id, reason, error);

    expect(waiting?.upstream_error).toContain(error);
    expect(waiting?.upstream_error).not.toContain(KEY.slice(0, 8));
    expect(waiting?.since).toBeGreaterThanOrEqual(startedAt);
    expect(waiting?.since).toBeLessThanOrEqual(Date.now() / 1000);
    if (reason !== "no_room") expect([at_risk, eta]).toEqual([true, null]);
    // A probe may be on its way at one look; the next look tells again.
    const listed = async () => (await service.openai.batches.list()).data[0] as OpenAI.Batch;
    await expect.poll(async () => extensionOf(await listed()).waiting?.reason).toBe(reason);

    upstream.answers = () => GOOD;
    service.reconfigure(configFor(upstream.url));
    expect(extensionOf(await service.ended(id)).waiting).toBeNull();
  },
);

test("no_room of one that asked for a pause, also when a request fails otherwise that was under way", async () => {
  const second = Promise.withResolvers<void>();
  const paused = Promise.withResolvers<void>();
  await using upstream = await startUpstream({
    answers: async ({ body }) => {
      if (body.includes("Hello 1")) {
        await second.promise;
        return { status: 429, headers: { "retry-after": "3600" }, body: {} };
      }
      second.resolve();
      await paused.promise;
      return { body: {}, breaks: true };
    },
  });
  await using service = await startTestService({ config: configFor(upstream.url) });
  const { id } = await service.submit(chatLines(2));
  await service.events.reached("upstream.overloaded");
  paused.resolve();
  await upstream.idle();
  // The server has seen the end of the other request by then.
  const messages = [{ role: "user", content: "Hi" }] as const;
  const asked = service.openai.chat.completions.create({ model: "m", messages: [...messages] });
  await expect(asked).rejects.toThrow("503");
  const { waiting } = await waitingFor(service, id, "no_room");
  expect(waiting?.upstream_error).toBe("status 429");
});

test("upstream_down of one that cannot be reached", async () => {
  await using service = await startTestService({ config: configFor("http://127.0.0.1:9/v1") });
  const { id } = await service.submit(chatLines(3));
  const { waiting, at_risk, eta } = await waitingFor(service, id, "upstream_down");
  expect([waiting?.upstream_error, at_risk, eta]).toEqual(["connection refused", true, null]);
});

test("outside_hours of one that takes batch lines on another day", async () => {
  const days = [WEEKDAYS[(new Date().getUTCDay() + 2) % 7]];
  const schedule = { windows: [{ days, from: "00:00", to: "24:00" }] };
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: configFor(upstream.url, { schedule }) });
  const { id } = await service.submit(chatLines(3));
  const { waiting } = await waitingFor(service, id, "outside_hours");
  expect(waiting?.upstream_error).toBeNull();
});

test("journal_not_writable while answers cannot be kept", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: configFor(upstream.url) });
  const journal = join(service.dataDir, "blobs", "journal");
  await rm(journal, { recursive: true, force: true });
  await writeFile(journal, "");
  const { id } = await service.submit(chatLines(3));
  const { at_risk } = await waitingFor(service, id, "journal_not_writable");
  expect(at_risk).toBe(true);
  await rm(journal);
  await mkdir(journal);
  expect((await service.ended(id)).request_counts?.completed).toBe(3);
});

test("not_served while no upstream has its model any more", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  await using service = await startTestService({
    config: configFor(upstream.url, { max_concurrency: 1 }),
  });
  const { id } = await service.submit(chatLines(600));
  await upstream.reached(1);
  service.reconfigure({ ...noGrace, upstreams: [] });
  upstream.release();
  expect((await waitingFor(service, id, "not_served")).at_risk).toBe(true);
});

describe("a batch of which the first 50 lines fail alike", () => {
  const wrong = refusal(400, { message: "max_tokens is too large", code: "invalid_value" });

  test("is one line in the log, and says so itself", async () => {
    await using upstream = await startUpstream({ answers: () => wrong });
    await using service = await startTestService({ config: configFor(upstream.url) });
    const batch = await service.run(chatLines(200));
    expect(batch.request_counts?.failed).toBe(200);
    const events = service.events.all.filter(({ event }) => event === "batch.failing_alike");
    expect(events).toEqual([
      expect.objectContaining({ level: "error", batch: batch.id, lines: 50, status: 400 }),
    ]);
    expect(extensionOf(batch).common_failure).toEqual({
      lines: 50,
      status_code: 400,
      code: "invalid_value",
      message: "max_tokens is too large",
    });
  });

  test("names the code and the message of their rows where they have no answer", async () => {
    await using upstream = await startUpstream({
      answers: async ({ user }) => {
        if (user === "another") return GOOD;
        // An upstream that serves nothing else would be taken for down.
        await service.openai.chat.completions.create({
          model: "test-model",
          messages: [{ role: "user", content: "Hi" }],
          user: "another",
        });
        return { body: "no JSON" };
      },
    });
    await using service = await startTestService({ config: configFor(upstream.url) });
    const batch = await service.run(chatLines(50));
    const [row] = await service.rows(batch.error_file_id);
    expect(row?.error).toMatchObject({ code: "upstream_error" });
    expect(extensionOf(batch)).toMatchObject({
      common_failure: { lines: 50, status_code: null, ...row?.error },
      failures: [{ status_code: null, code: "upstream_error", lines: 50 }],
    });
  });
});

test.each([408, 502])(
  "a batch of few lines outlives a server that answers each five times with %i",
  async (status) => {
    const counts = new Map<string, number>();
    await using upstream = await startUpstream({
      answers: ({ user }) => {
        const count = (counts.get(user) ?? 0) + 1;
        counts.set(user, count);
        return count <= 5 ? { status, body: {} } : GOOD;
      },
    });
    await using service = await startTestService({ config: configFor(upstream.url) });
    const batch = await service.run(chatLines(2));
    expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
  },
);
