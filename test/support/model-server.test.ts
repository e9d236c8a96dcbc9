import { expect, test } from "vitest";
import { sleep } from "../../src/clock.ts";
import { type ModelServer, type ModelServerOptions, startModelServer } from "./model-server.ts";
import { meanPresent, utilisation } from "./station.ts";
import { VirtualClock } from "./virtual-clock.ts";

/** Sends requests to the server, and lets time pass while the answers are on their way. */
class Caller {
  readonly clock: VirtualClock;
  readonly server: ModelServer;
  #inFlight = 0;

  constructor(clock: VirtualClock, server: ModelServer) {
    this.clock = clock;
    this.server = server;
  }

  async ask(line: string): Promise<{ status: number; headers: Headers; usage: unknown }> {
    this.#inFlight++;
    try {
      const body = JSON.stringify({ model: "m", user: line, messages: [{ content: "12345678" }] });
      const response = await fetch(`${this.server.url}/chat/completions`, { method: "POST", body });
      const { usage } = (await response.json()) as { usage?: unknown };
      return { status: response.status, headers: response.headers, usage };
    } finally {
      this.#inFlight--;
    }
  }

  async sleep(ms: number): Promise<void> {
    await sleep(this.clock, ms, new AbortController().signal);
  }

  run<T>(work: () => Promise<T>): Promise<T> {
    return this.clock.run(work(), () => this.server.inFlight === this.#inFlight);
  }
}

async function withServer(
  options: ModelServerOptions,
  work: (caller: Caller) => Promise<void>,
): Promise<void> {
  const clock = new VirtualClock();
  await using server = await startModelServer({ clock, ...options });
  const caller = new Caller(clock, server);
  await caller.run(() => work(caller));
}

const MANY = Array.from({ length: 40 }, (_, i) => `line-${i}`);

test("serves so many at a time and lets the others wait, and its books agree", () =>
  withServer({ capacity: 4, serviceMs: 100 }, async (caller) => {
    const { server } = caller;
    const before = server.stats();
    const answers = await Promise.all(MANY.map((line) => caller.ask(line)));
    const after = server.stats();
    expect(answers.every(({ status }) => status === 200)).toBe(true);
    expect(after).toMatchObject({ arrived: 40, fates: { served: 40 }, served: 40 });
    expect(after).toMatchObject({ maxQueue: 36, maxPresent: 40 });
    expect(after.atMs - before.atMs).toBe(1_000);
    expect(utilisation(before, after)).toBe(1);
    // There are 40 at first, and 4 fewer every 100 ms.
    expect(meanPresent(before, after)).toBe(22);
  }));

test("serves in the order of arrival, and turns away who finds the queue full", () =>
  withServer(
    { capacity: 2, queueLimit: 3, serviceMs: 100, overloadStatus: 529 },
    async (caller) => {
      const answers = await Promise.all(MANY.slice(0, 8).map((line) => caller.ask(line)));
      const { fates } = caller.server.stats();
      expect(fates).toEqual({ served: 5, overloaded: 3 });
      expect(answers.filter(({ status }) => status === 529)).toHaveLength(3);
      const fateOf = caller.server.arrivals.map(({ fate }) => fate);
      expect(fateOf).toEqual([...Array(5).fill("served"), ...Array(3).fill("overloaded")]);
    },
  ));

test("takes up what a higher capacity frees, and finishes what a lower one leaves over", () =>
  withServer({ capacity: 4, serviceMs: 100 }, async (caller) => {
    const { server } = caller;
    const all = Promise.all(MANY.map((line) => caller.ask(line)));
    await server.whenServed(4);
    server.setCapacity(2);
    const low = await server.whenServed(12);
    server.setCapacity(7);
    const high = await server.whenServed(40);
    await all;
    // Four are in service when the capacity falls. Then two are served at a time, and later seven.
    expect(high.atMs - low.atMs).toBe(400);
    expect(utilisation(low, high)).toBe(1);
  }));

test("becomes slower little by little", () =>
  withServer({ serviceMs: 100 }, async (caller) => {
    const tookMs = async () => {
      const startedAtMs = caller.clock.nowMs();
      await caller.ask("line");
      return caller.clock.nowMs() - startedAtMs;
    };
    expect(await tookMs()).toBe(100);
    caller.server.setServiceMs(300, { overMs: 10_000 });
    await caller.sleep(5_000);
    expect(await tookMs()).toBe(200);
    await caller.sleep(10_000);
    expect(await tookMs()).toBe(300);
  }));

test("takes as long as its answer has tokens, and reports them", () =>
  withServer({ serviceMs: 50, perTokenMs: 2, outputTokens: [100, 100] }, async (caller) => {
    const startedAtMs = caller.clock.nowMs();
    const { usage } = await caller.ask("line");
    expect(caller.clock.nowMs() - startedAtMs).toBe(250);
    expect(usage).toEqual({ prompt_tokens: 2, completion_tokens: 100, total_tokens: 102 });
  }));

test.for([
  // The bucket has gained two more after six seconds.
  { rule: "token_bucket", afterMs: 6_000, passed: 2, retryAfter: "3" },
  { rule: "fixed_window", afterMs: 30_000, passed: 20, retryAfter: "30" },
  { rule: "sliding_window", afterMs: 60_000, passed: 20, retryAfter: "60" },
] as const)("holds requests per minute by $rule", ({ rule, afterMs, passed, retryAfter }) =>
  withServer({ requests: { perMinute: 20, rule } }, async (caller) => {
    const startedInMinuteMs = 30_000;
    await caller.sleep(startedInMinuteMs);
    const first = await Promise.all(MANY.map((line) => caller.ask(line)));
    const refused = first.filter(({ status }) => status === 429);
    expect(refused).toHaveLength(20);
    expect(refused[0]?.headers.get("retry-after")).toBe(retryAfter);
    expect(refused[0]?.headers.get("x-ratelimit-limit-requests")).toBe("20");
    expect(refused[0]?.headers.get("x-ratelimit-remaining-requests")).toBe("0");
    await caller.sleep(afterMs);
    const second = await Promise.all(MANY.map((line) => caller.ask(line)));
    expect(second.filter(({ status }) => status === 200)).toHaveLength(passed);
  }),
);

test("holds tokens per minute beside them, and says what is left", () =>
  withServer(
    {
      outputTokens: [18, 18],
      requests: { perMinute: 100, rule: "token_bucket" },
      tokens: { perMinute: 60, rule: "token_bucket" },
      retryHint: "milliseconds",
    },
    async (caller) => {
      const { headers } = await caller.ask("line");
      expect(headers.get("x-ratelimit-remaining-requests")).toBe("99");
      expect(headers.get("x-ratelimit-remaining-tokens")).toBe("40");
      expect(headers.get("x-ratelimit-reset-tokens")).toBe("20s");
      const three = await Promise.all(["a", "b", "c"].map((line) => caller.ask(line)));
      expect(three.map(({ status }) => status).toSorted()).toEqual([200, 200, 429]);
      const refused = three.find(({ status }) => status === 429);
      expect(refused?.headers.get("retry-after-ms")).toBe("20000");
      await caller.sleep(20_000);
      expect((await caller.ask("d")).status).toBe(200);
      expect(caller.server.stats().minutes).toEqual([{ arrived: 5, rateLimited: 1 }]);
    },
  ));

test("asks everybody to stay away for a while", () =>
  withServer({}, async (caller) => {
    caller.server.pause(90_000);
    await caller.sleep(30_000);
    const refused = await caller.ask("early");
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "60"]);
    await caller.sleep(60_000);
    expect((await caller.ask("in time")).status).toBe(200);
    expect(caller.server.arrivals.map(({ fate }) => fate)).toEqual(["paused", "served"]);
  }));

test.for(["refuse", "reset", 502, 503] as const)("goes down (%s) and comes up", (outage) =>
  withServer({ capacity: 1, serviceMs: 100 }, async (caller) => {
    const { server } = caller;
    const before = server.stats();
    const isDown = async (asked: Promise<{ status: number }>) => {
      const status = await asked.then(
        (answer) => answer.status,
        () => "no answer",
      );
      return status === (typeof outage === "number" ? outage : "no answer");
    };
    const there = ["served", "waiting"].map((line) => isDown(caller.ask(line)));
    await caller.sleep(50);
    await server.goDown(outage);
    expect(await Promise.all([...there, isDown(caller.ask("late"))])).toEqual([true, true, true]);
    await caller.sleep(1_000);
    await server.comeUp();
    expect((await caller.ask("back")).status).toBe(200);
    const after = server.stats();
    expect(after.fates).toEqual({ down: outage === "refuse" ? 2 : 3, served: 1 });
    // The capacity of the outage does not count.
    expect(after.capacityMs - before.capacityMs).toBe(150);
  }),
);

test("serves no request whose client has left", () =>
  withServer({ capacity: 1, serviceMs: 1_000 }, async (caller) => {
    const { server } = caller;
    const body = JSON.stringify({ model: "m", user: "leaver", messages: [] });
    const leave = new AbortController();
    const url = `${server.url}/chat/completions`;
    const left = fetch(url, { method: "POST", body, signal: leave.signal }).catch(() => "left");
    while (server.inFlight === 0) await new Promise(setImmediate);
    leave.abort();
    expect(await left).toBe("left");
    while (server.inFlight > 0) await new Promise(setImmediate);
    const startedAtMs = caller.clock.nowMs();
    await caller.ask("stayer");
    expect(caller.clock.nowMs() - startedAtMs).toBe(1_000);
    expect(server.stats().fates).toEqual({ gone: 1, served: 1 });
  }));
