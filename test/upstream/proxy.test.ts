import { once } from "node:events";
import { text } from "node:stream/consumers";
import { expect, test } from "vitest";
import { type UpstreamConfig, UpstreamEntry } from "../../src/config/upstreams.ts";
import type { Proxied, ProxyResult } from "../../src/upstream/request.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { answerChat } from "../support/given.ts";
import { modelServer, never, openTargets, requestOf, targetAt } from "../support/targets.ts";
import { startUpstream } from "../support/upstream.ts";

function open(targets: UpstreamConfig[]) {
  const { upstreams } = openTargets(targets);
  const inFlight = (name: string) =>
    upstreams.listTargets().find((target) => target.name === name)?.inFlight;
  return { route: upstreams.findRoute("m")!, inFlight };
}

function proxied(result: ProxyResult): Proxied {
  expect(result.kind).toBe("proxied");
  return result as Proxied;
}

test("holds its slot until the last byte has come", async () => {
  const upstream = await modelServer();
  const { route, inFlight } = open([targetAt(upstream, "a")]);
  const answer = proxied(await route.proxy(requestOf("[[slow 4 5]]"), never));
  expect(inFlight("a")).toEqual({ interactive: 1, batch: 0 });
  expect(JSON.parse(await text(answer.body))).toMatchObject({ object: "chat.completion" });
  if (!answer.body.closed) await once(answer.body, "close");
  expect(inFlight("a")).toEqual({ interactive: 0, batch: 0 });
});

test("goes before lines that came earlier", async () => {
  const upstream = await modelServer();
  const { route } = open([targetAt(upstream, "a", { max_concurrency: 1 })]);
  upstream.hold();
  const signals = { stop: never, abort: never };
  const lines = ["first", "second"].map((prompt) => route.send(requestOf(prompt), signals));
  await upstream.reached(1);
  const answer = route.proxy(requestOf("urgent"), never);
  upstream.release();
  await text(proxied(await answer).body);
  await Promise.all(lines);
  expect([...upstream.received.keys()]).toEqual(["first", "urgent", "second"]);
});

test("that meets a full target is answered by another one", async () => {
  const [full, free] = [await modelServer(), await modelServer()];
  const { route } = open([
    targetAt(full, "a-full", { max_concurrency: 2 }),
    targetAt(free, "b", { priority: 1 }),
  ]);
  full.hold();
  const signals = { stop: never, abort: never };
  const lines = [1, 2].map((n) => route.send(requestOf(`line ${n}`), signals));
  await full.reached(2);
  await text(proxied(await route.proxy(requestOf("urgent"), never)).body);
  expect(free.total).toBe(1);
  full.release();
  await Promise.all(lines);
});

test("that is refused everywhere brings the last refusal back, as it came", async () => {
  const [a, b] = [await modelServer(), await modelServer()];
  const { route, inFlight } = open([targetAt(a, "a"), targetAt(b, "b")]);
  const answer = proxied(await route.proxy(requestOf("[[status 429]]"), never));
  expect(answer.status).toBe(429);
  await text(answer.body);
  expect([a.total, b.total]).toEqual([1, 1]);
  if (!answer.body.closed) await once(answer.body, "close");
  expect([inFlight("a"), inFlight("b")]).toEqual(Array(2).fill({ interactive: 0, batch: 0 }));
});

test("goes to another target when the first cannot be reached", async () => {
  const [dead, alive] = [await modelServer(), await modelServer()];
  const { route } = open([targetAt(dead, "a-dead"), targetAt(alive, "b", { priority: 1 })]);
  await dead.close();
  expect(proxied(await route.proxy(requestOf("hello"), never)).status).toBe(200);
});

test("does not wait for a target that asks to be left alone, and says for how long", async () => {
  const upstream = await modelServer();
  const { route } = open([targetAt(upstream, "a")]);
  await text(proxied(await route.proxy(requestOf("[[retry-after 60 status 429]]"), never)).body);
  const answer = await route.proxy(requestOf("next"), never);
  expect(answer).toEqual({ kind: "unavailable", retryAfterMs: expect.any(Number) });
  expect(upstream.total).toBe(1);
});

test("that is given up frees its slot at once, while it waits and while it is answered", async () => {
  const upstream = await modelServer();
  const { route, inFlight } = open([targetAt(upstream, "a", { max_concurrency: 1 })]);
  const answer = proxied(await route.proxy(requestOf("[[slow 1000 1000]]"), never));
  const waiting = new AbortController();
  const waits = route.proxy(requestOf("waits"), waiting.signal);
  waiting.abort();
  expect((await waits).kind).toBe("interrupted");
  answer.body.destroy();
  await once(answer.body, "close");
  await upstream.idle();
  expect(inFlight("a")).toEqual({ interactive: 0, batch: 0 });
});

test("that cannot be sent gives its slot back", async () => {
  const upstream = await modelServer();
  const { route, inFlight } = open([targetAt(upstream, "a", { extra_body: { seed: 1 } })]);
  const noObject = requestOf("no object", { body: Buffer.from("[]") });
  await expect(route.proxy(noObject, never)).rejects.toThrow("not a JSON object");
  expect(inFlight("a")).toEqual({ interactive: 0, batch: 0 });
});

test("that waits for a slot is sent away when the target asks to be left alone", async () => {
  const upstream = await modelServer();
  const { route } = open([targetAt(upstream, "a", { max_concurrency: 1 })]);
  upstream.hold();
  const stop = new AbortController();
  const line = route.send(requestOf("[[retry-after 60 status 429]]"), {
    stop: stop.signal,
    abort: never,
  });
  await upstream.reached(1);
  const waiting = route.proxy(requestOf("waits"), never);
  upstream.release();
  expect(await waiting).toEqual({ kind: "unavailable", retryAfterMs: expect.any(Number) });
  stop.abort();
  await line;
});

test("is not kept from a target by lines at which alone it fails", async () => {
  const upstream = await modelServer();
  const { upstreams } = openTargets([targetAt(upstream, "a")], undefined, new FakeClock());
  const route = upstreams.findRoute("m")!;
  const stop = new AbortController();
  const signals = { stop: stop.signal, abort: never };
  const lines = Array.from({ length: 20 }, () => route.send(requestOf("[[reset]]"), signals));
  await expect.poll(() => upstreams.listTargets()[0]?.circuit).toBe("open");
  expect(proxied(await route.proxy(requestOf("hello"), never)).status).toBe(200);
  expect(upstreams.listTargets()[0]?.circuit).toBe("closed");
  stop.abort();
  await Promise.all(lines);
});

test("takes no probe from the lines, also where it fails again and again", async () => {
  const upstream = await modelServer();
  const clock = new FakeClock();
  const { upstreams } = openTargets([targetAt(upstream, "a")], undefined, clock);
  const route = upstreams.findRoute("m")!;
  const stop = new AbortController();
  const signals = { stop: stop.signal, abort: never };
  const deadlineAtMs = clock.nowMs() + 86_400_000;
  const send = (text: string) => route.send(requestOf(text, { deadlineAtMs }), signals);
  const lines = Array.from({ length: 20 }, () => send("[[reset]]"));
  await expect.poll(() => upstreams.listTargets()[0]?.circuit).toBe("open");
  await upstream.idle();
  const lineCount = upstream.received.get("[[reset]]") ?? 0;
  for (let i = 0; i < 2; i++) {
    expect((await route.proxy(requestOf("[[reset]] too"), never)).kind).toBe("broken");
    clock.advance(250);
  }
  await expect.poll(() => upstream.received.get("[[reset]]")).toBeGreaterThan(lineCount);
  stop.abort();
  await Promise.all(lines);
});

test("does not wait for a target at which lines fail once it cannot be reached", async () => {
  const upstream = await modelServer();
  const config = targetAt(upstream, "a", { max_concurrency: 1 });
  const { upstreams } = openTargets([config], undefined, new FakeClock());
  const route = upstreams.findRoute("m")!;
  const stop = new AbortController();
  const signals = { stop: stop.signal, abort: never };
  const lines = Array.from({ length: 20 }, () => route.send(requestOf("[[reset]]"), signals));
  await expect.poll(() => upstreams.listTargets()[0]?.circuit).toBe("open");
  await upstream.close();
  const answers = ["first", "second"].map((prompt) => route.proxy(requestOf(prompt), never));
  expect((await Promise.all(answers)).map(({ kind }) => kind)).toEqual([
    "unreachable",
    "unavailable",
  ]);
  stop.abort();
  await Promise.all(lines);
});

test("goes to a target that is well rather than to one at which lines fail", async () => {
  await using failing = await startUpstream({ answers: () => ({ status: 502, body: {} }) });
  const well = await modelServer();
  const targets = [targetAt(failing, "a"), targetAt(well, "b", { priority: 1 })];
  const { upstreams } = openTargets(targets, undefined, new FakeClock());
  const route = upstreams.findRoute("m")!;
  const signals = { stop: never, abort: never };
  while (upstreams.listTargets()[0]?.circuit === "closed") {
    await route.send(requestOf("line"), signals);
  }
  const before = failing.total;
  expect(proxied(await route.proxy(requestOf("hello"), never)).status).toBe(200);
  expect(failing.total).toBe(before);
});

test("that finds a target well again lets the lines go, before its own answer is complete", async () => {
  await using upstream = await startUpstream({ answers: () => ({ status: 502, body: {} }) });
  const clock = new FakeClock();
  const config = UpstreamEntry.parse({ name: "a", base_url: upstream.url, models: ["m"] });
  const { upstreams } = openTargets([config], undefined, clock);
  const route = upstreams.findRoute("m")!;
  const deadlineAtMs = clock.nowMs() + 86_400_000;
  const request = requestOf("hello", { deadlineAtMs });
  const lines = Array.from({ length: 10 }, () =>
    route.send(request, { stop: never, abort: never }),
  );
  const isOpen = { circuit: "open", inFlight: { interactive: 0, batch: 0 } };
  await expect.poll(() => upstreams.listTargets()).toMatchObject([isOpen]);
  upstream.answers = "by_hand";
  await clock.asleep(1, clock.nowMs() + 500);

  clock.advance(500);
  const result = route.proxy(request, never);
  const { response } = await upstream.next();
  response.writeHead(200, { "content-type": "text/event-stream" }).write("data: 1");
  const answer = proxied(await result);
  for (let i = 0; i < 10; i++) answerChat(await upstream.next());
  await Promise.all(lines);
  answer.body.destroy();
});
