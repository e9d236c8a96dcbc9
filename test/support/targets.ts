/** Opens upstreams in this process on real model servers, for tests of the parts below the engine. */
import { PassThrough } from "node:stream";
import { onTestFinished } from "vitest";
import type { Outcome } from "../../src/batch/outcome.ts";
import { type Clock, systemClock } from "../../src/clock.ts";
import { type UpstreamConfig, UpstreamEntry } from "../../src/config/upstreams.ts";
import { createLog } from "../../src/telemetry/log.ts";
import type { UpstreamRequest } from "../../src/upstream/request.ts";
import type { Route, Upstreams } from "../../src/upstream/upstream.ts";
import { openUpstreams } from "../../src/upstream/upstreams.ts";
import { unobserved } from "./unobserved.ts";
import { startUpstream, type TestUpstream } from "./upstream.ts";

export const never = new AbortController().signal;
const HOUR_MS = 3_600_000;

/** Starts a model server that ends with its test. */
export async function modelServer(): Promise<TestUpstream> {
  const upstream = await startUpstream();
  onTestFinished(() => upstream.close());
  return upstream;
}

/** Returns the configuration of an upstream that serves the model `m`. */
export const targetAt = (
  { url }: TestUpstream,
  name: string,
  changes: Partial<UpstreamConfig> = {},
): UpstreamConfig =>
  UpstreamEntry.parse({
    name,
    base_url: url,
    models: ["m"],
    max_concurrency: 8,
    timeout_seconds: 5,
    interactive_reserve: 0,
    ...changes,
  });

/** Retries come at once unless `random` says otherwise, because the dice are 0. */
export function openTargets(
  upstreams: readonly UpstreamConfig[],
  random = () => 0,
  clock: Clock = systemClock,
): { readonly upstreams: Upstreams; logged(): Record<string, unknown>[] } {
  const lines = new PassThrough();
  const opened = openUpstreams({
    upstreams,
    maxAnswerBytes: () => 1_000_000,
    clock,
    random,
    log: createLog("debug", lines),
    ...unobserved(),
  });
  onTestFinished(() => opened.close());
  const logged = () =>
    String(lines.read() ?? "")
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  return { upstreams: opened, logged };
}

/** Returns a chat request to the model `m`. The model server counts by `user`. */
export function requestOf(
  prompt: string,
  { user = prompt, ...changes }: Partial<UpstreamRequest> & { readonly user?: string } = {},
): UpstreamRequest {
  const messages = [{ role: "user", content: prompt }];
  const { body = Buffer.from(JSON.stringify({ model: "m", user, messages })) } = changes;
  return {
    project: "default",
    endpoint: "/v1/chat/completions",
    model: "m",
    isModelInBody: true,
    inputTokens: Math.ceil(body.length / 4),
    answerTokens: 256,
    deadlineAtMs: Date.now() + HOUR_MS,
    traceparent: null,
    ...changes,
    body,
  };
}

/** The route of the model `m` to these targets. */
export function openRoute(targets: UpstreamConfig[], random?: () => number, clock?: Clock) {
  const { upstreams, logged } = openTargets(targets, random, clock);
  return { route: upstreams.findRoute("m")!, logged };
}

export const send = (route: Route, prompt: string, changes: Partial<UpstreamRequest> = {}) =>
  route.send(requestOf(prompt, changes), { stop: never, abort: never });

export const statusOf = (outcome: Outcome) =>
  "status" in outcome && outcome.kind !== "refused" ? outcome.status : outcome.kind;
