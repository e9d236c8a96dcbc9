/** The upstreams with their limits, hours and figures, as operators see them. */
import { describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import type { UpstreamList, UpstreamObject } from "../../src/contract/upstream.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

/** A Monday evening. */
const STARTED_AT_MS = Date.parse("2026-01-05T21:00:00Z");
const elsewhere = systemClock.elapsedMs();
const clock = {
  ...systemClock,
  nowMs: () => STARTED_AT_MS + systemClock.elapsedMs() - elsewhere,
};
const SIX_O_CLOCK = Date.parse("2026-01-06T06:00:00Z") / 1000;

const SECRETS = ["sk-of-the-upstream", "value-of-a-header", "name-in-url", "word-in-url"];
const KEYS = [
  { name: "operator", key: "key-of-operator", scopes: ["admin"] },
  { name: "tenant", key: "key-of-tenant", project: "search" },
];

const hours = (from: string, to: string) => ({
  schedule: { time_zone: "UTC", windows: [{ from, to }], concurrency_outside: 0 },
});

const upstream = forAllTests(await startUpstream());
const [, , , password] = SECRETS;
const proxy = `http://name-in-url:${password}@127.0.0.1:9`;
const upstreams = [
  {
    name: "gpu",
    base_url: upstream.url,
    models: ["m"],
    max_concurrency: 16,
    api_key: SECRETS[0],
    headers: { "x-team": SECRETS[1] },
    requests_per_minute: 6_000,
    tokens_per_minute: 1_000_000,
  },
  { name: "nightly", base_url: upstream.url, models: ["n"], ...hours("20:00", "06:00") },
  { name: "daily", base_url: upstream.url, models: ["d"], proxy, ...hours("06:00", "20:00") },
  { name: "down", base_url: "http://127.0.0.1:9/v1", models: ["gone"] },
];
const service = forAllTests(await startTestService({ config: { upstreams }, clock }));

const ask = (path: string, headers: Record<string, string> = {}, init: RequestInit = {}) =>
  fetch(service.url + path, { headers, ...init });

async function read(): Promise<Map<string, UpstreamObject>> {
  const answer = await ask("/v1/admin/upstreams");
  const { data } = (await answer.json()) as UpstreamList;
  return new Map(data.map((each) => [each.name, each]));
}

const chat = (model: string, content: string) =>
  ask(
    "/v1/chat/completions",
    {},
    {
      method: "POST",
      body: JSON.stringify({ model, messages: [{ role: "user", content }] }),
    },
  ).then((answer) => answer.text());

describe("an upstream", () => {
  test("has its limits, and what of them is used", async () => {
    for (const prompt of ["Hello", "Hello again", "[[status 429]]", "[[reset]]"]) {
      await chat("m", prompt);
    }
    const gpu = (await read()).get("gpu");
    expect(gpu).toMatchObject({
      object: "upstream",
      models: ["m"],
      servers: 1,
      max_concurrency: 16,
      schedule: null,
      requests_per_minute: { limit: 6_000, used: expect.any(Number) },
      tokens_per_minute: { limit: 1_000_000, used: expect.any(Number) },
      latency_seconds: { p50: expect.any(Number) },
      in_flight: { batch: 0, interactive: 0 },
    });
    expect(gpu?.requests_per_minute?.used).toBeGreaterThanOrEqual(2);
    expect(gpu?.tokens_per_minute?.used).toBeGreaterThan(0);
    expect(gpu?.attempts.answered).toBe(2);
    expect(gpu?.attempts.rate_limited).toBeGreaterThanOrEqual(1);
    expect(gpu?.attempts.failed).toBeGreaterThanOrEqual(1);
  });

  test("says whether it is open now, and when that changes", async () => {
    const all = await read();
    expect(all.get("nightly")).toMatchObject({
      unavailable: null,
      schedule: {
        time_zone: "UTC",
        windows: [{ days: null, from: "20:00", to: "06:00" }],
        open: true,
        next: { at: SIX_O_CLOCK, concurrency: 0 },
      },
    });
    expect(all.get("daily")).toMatchObject({
      unavailable: { reason: "outside_hours", message: null },
      schedule: { open: false, concurrency: 0, next: { at: SIX_O_CLOCK } },
    });
  });

  test("that is down says so", async () => {
    await expect
      .poll(async () => {
        await chat("gone", "Hello");
        return (await read()).get("down");
      })
      .toMatchObject({ circuit: "open", unavailable: { reason: "upstream_down" } });
  });

  test("shows no address, key or header", async () => {
    const text = await (await ask("/v1/admin/upstreams")).text();
    for (const secret of [...SECRETS, "127.0.0.1", new URL(upstream.url).port]) {
      expect(text).not.toContain(`${secret}`);
    }
    const page = await (await ask("/upstreams", { accept: "text/html" })).text();
    for (const secret of [...SECRETS, upstream.url]) expect(page).not.toContain(secret);
    expect(page).toContain("20:00–06:00, UTC");
    expect(page).toMatch(/of 6,000 in the last minute/);
  });

  test("is for keys with the scope admin, where there are keys", async () => {
    service.reconfigure({ upstreams, auth: { keys: KEYS } });
    const as = (key: string) => ({ authorization: `Bearer ${key}` });
    expect((await ask("/v1/admin/upstreams")).status).toBe(401);
    const refused = await ask("/v1/admin/upstreams", as("key-of-tenant"));
    expect([refused.status, await refused.text()]).toEqual([
      403,
      expect.stringContaining("Missing scopes: admin"),
    ]);
    expect((await ask("/v1/admin/upstreams", as("key-of-operator"))).status).toBe(200);
    service.reconfigure({ upstreams });
  });
});

test("a server without upstreams has none", async () => {
  await using empty = await startTestService();
  const answer = await fetch(`${empty.url}/v1/admin/upstreams`);
  expect(await answer.json()).toEqual({ object: "list", data: [] });
});
