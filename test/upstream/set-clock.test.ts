import { PassThrough } from "node:stream";
import { expect, onTestFinished, test } from "vitest";
import { UpstreamEntry } from "../../src/config/upstreams.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { openUpstreams } from "../../src/upstream/upstreams.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { answerChat, GOOD } from "../support/given.ts";
import { never, requestOf } from "../support/targets.ts";
import { unobserved } from "../support/unobserved.ts";
import { startUpstream } from "../support/upstream.ts";

const HOUR_MS = 3_600_000;

test("a clock that is set back an hour keeps no line waiting for that hour", async () => {
  await using upstream = await startUpstream({ answers: "by_hand" });
  const clock = new FakeClock();
  const config = UpstreamEntry.parse({
    ...{ name: "a", base_url: upstream.url, models: ["m"], requests_per_minute: 1 },
  });
  const upstreams = openUpstreams({
    ...{ upstreams: [config], maxAnswerBytes: () => 1_000_000, clock, random: () => 0 },
    ...{ log: createLog("silent", new PassThrough()), ...unobserved() },
  });
  onTestFinished(() => upstreams.close());
  const route = upstreams.findRoute("m")!;
  const stop = new AbortController();
  const signals = { stop: stop.signal, abort: never };
  const request = requestOf("hello", { deadlineAtMs: clock.nowMs() + HOUR_MS });
  const paused = route.send(request, signals);
  const { response } = await upstream.next();
  response.writeHead(429, { "retry-after": "30" }).end("{}");
  await clock.asleep(1, clock.nowMs() + 30_000);

  clock.advance(-HOUR_MS);
  expect(route.opensAtMs).toBeLessThanOrEqual(clock.nowMs());
  const next = route.send(request, signals);
  answerChat(await upstream.next());
  expect((await next).kind).toBe("answered");
  stop.abort();
  await paused;
});

test("nor does it prolong a hold by that hour, or charge a line for what was served before", async () => {
  await using upstream = await startUpstream({ answers: () => GOOD });
  const clock = new FakeClock();
  const config = UpstreamEntry.parse({ name: "a", base_url: upstream.url, models: ["m"] });
  const upstreams = openUpstreams({
    ...{ upstreams: [config], maxAnswerBytes: () => 1_000_000, clock, random: () => 0 },
    ...{ log: createLog("silent", new PassThrough()), ...unobserved() },
  });
  onTestFinished(() => upstreams.close());
  const route = upstreams.findRoute("m")!;
  const request = requestOf("hello", { deadlineAtMs: clock.nowMs() + 24 * HOUR_MS });
  const send = () => route.send(request, { stop: never, abort: never });
  expect((await send()).kind).toBe("answered");
  upstream.answers = () => ({ status: 401, body: {} });
  clock.advance(-HOUR_MS);
  const held = send();
  await clock.asleep(1, clock.nowMs() + 500);
  expect(route.held(request, never)).not.toBeNull();

  clock.advance(-HOUR_MS);
  upstream.answers = () => GOOD;
  expect(route.held(request, never)).toBeNull();
  expect((await held).kind).toBe("answered");
});
