import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { AdaptiveConcurrency, type Sample } from "../../../src/upstream/capacity/concurrency.ts";
import {
  type Measured,
  Simulation,
  type SimulationOptions,
} from "../../support/queueing-simulation.ts";
import { seededRandom } from "../../support/seeded-random.ts";

const SECOND = 1_000;
const SERVICE_MS = SECOND;
const UNBOUNDED = { min: 1, max: 10_000 };
const SEEDS = [1, 2, 3];
/** Large upstreams average out by themselves, and take long to simulate. */
const seedsFor = (capacity: number) => (capacity < 200 ? SEEDS : SEEDS.slice(0, 1));

type Random = () => number;

/** Log-normal: many short answers, and a few that are very long. */
function tokensFrom(random: Random): number {
  const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return Math.min(4_000, Math.max(1, Math.round(200 * Math.exp(normal - 0.5))));
}

const SERVICES = {
  constant: () => () => ({ ms: SERVICE_MS, work: 1 }),
  jittered: (random: Random) => () => ({ ms: SERVICE_MS * (0.8 + 0.4 * random()), work: 1 }),
  /** Answers of a model: the time goes with the size. */
  "heavy-tailed": (random: Random) => () => {
    const tokens = tokensFrom(random);
    return { ms: tokens * (SERVICE_MS / 200), work: tokens };
  },
} as const satisfies Record<string, (random: Random) => SimulationOptions["service"]>;

type ServiceName = keyof typeof SERVICES;
const SERVICE_NAMES = Object.keys(SERVICES) as ServiceName[];

interface Scenario {
  readonly service: ServiceName;
  readonly beyond: SimulationOptions["beyond"];
  readonly seed: number;
  readonly capacity: SimulationOptions["capacity"];
  readonly startsAtMs?: readonly number[];
}

const simulate = ({ service, seed, startsAtMs = [0], ...options }: Scenario) =>
  new Simulation({
    ...options,
    clients: startsAtMs.map((atMs) => ({
      policy: new AdaptiveConcurrency(UNBOUNDED),
      startsAtMs: atMs,
    })),
    service: SERVICES[service](seededRandom(seed)),
  });

const meansOf = ({ clients }: Measured) => clients.map(({ mean }) => mean);
const sumOf = (numbers: readonly number[]) => numbers.reduce((sum, each) => sum + each, 0);
const average = (numbers: readonly number[]) => sumOf(numbers) / numbers.length;

/** The nearest integer is within 20 %, or within one where that is more. */
function expectToBeNear(limit: number, best: number): void {
  expect(Math.abs(Math.round(limit) - best)).toBeLessThanOrEqual(Math.max(1, 0.2 * best));
}

const CAPACITIES = [1, 2, 3, 5, 8, 13, 20, 50, 100, 200, 500];
const UPSTREAMS = SERVICE_NAMES.flatMap((service) =>
  CAPACITIES.map((capacity) => ({ service, capacity })),
);

describe("on an upstream that serves so many at once and lets the others wait", () => {
  test.each(UPSTREAMS)("finds $capacity and keeps it busy, $service", ({ service, capacity }) => {
    for (const seed of seedsFor(capacity)) {
      const simulation = simulate({ service, seed, beyond: "waits", capacity: () => capacity });
      simulation.measure(300 * SERVICE_MS);
      const seen = simulation.measure(600 * SERVICE_MS);
      const [{ mean, max } = { mean: 0, max: 0 }] = seen.clients;
      expectToBeNear(mean, capacity);
      expect(max).toBeLessThanOrEqual(1.2 * capacity + 6);
      expect(seen.utilisation).toBeGreaterThan(capacity < 8 ? 0.85 : 0.92);
    }
  });

  test("finds any capacity", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 4, max: 300 }),
        fc.constantFrom(...SERVICE_NAMES),
        fc.integer(),
        (capacity, service, seed) => {
          const simulation = simulate({ service, seed, beyond: "waits", capacity: () => capacity });
          simulation.measure(200 * SERVICE_MS);
          const seen = simulation.measure(300 * SERVICE_MS);
          expect(meansOf(seen)[0]).toBeGreaterThan(0.8 * capacity - 1);
          expect(meansOf(seen)[0]).toBeLessThan(1.25 * capacity + 1);
          expect(seen.utilisation).toBeGreaterThan(0.8);
        },
      ),
      { numRuns: 30, seed: 1 },
    );
  });
});

describe("on an upstream that serves so many at once and refuses the others", () => {
  test.each(UPSTREAMS)("finds $capacity with few refusals, $service", ({ service, capacity }) => {
    for (const seed of seedsFor(capacity)) {
      const simulation = simulate({
        service,
        seed,
        beyond: "is_refused",
        capacity: () => capacity,
      });
      simulation.measure(200 * SERVICE_MS);
      const seen = simulation.measure(400 * SERVICE_MS);
      expectToBeNear(meansOf(seen)[0] ?? 0, capacity);
      expect(seen.refusedShare).toBeLessThan(0.02);
      expect(seen.utilisation).toBeGreaterThan(0.88);
    }
  });
});

const KINDS = (["waits", "is_refused"] as const).flatMap((beyond) =>
  SERVICE_NAMES.map((service) => ({ beyond, service })),
);

describe("when capacity changes", () => {
  const HALVED_AT = 300 * SERVICE_MS;
  const BACK_AT = 450 * SERVICE_MS;

  test.each(KINDS)("follows it down at once and up again: $beyond, $service", (kind) => {
    for (const full of [10, 50, 100, 500]) {
      const isHalved = (nowMs: number) => nowMs >= HALVED_AT && nowMs < BACK_AT;
      const capacity = (nowMs: number) => (isHalved(nowMs) ? full / 2 : full);
      const simulation = simulate({ ...kind, seed: full, capacity });
      simulation.measure(150 * SERVICE_MS);
      const before = simulation.measure(150 * SERVICE_MS);
      // The first answers that waited come after one latency; a round later it must have reacted.
      const change = simulation.measure(12 * SERVICE_MS);
      expect(change.clients[0]?.min).toBeLessThanOrEqual(0.6 * full);
      simulation.measure(28 * SERVICE_MS);
      const halved = simulation.measure(110 * SERVICE_MS);
      const recovery = simulation.measure(60 * SERVICE_MS);
      const after = simulation.measure(100 * SERVICE_MS);
      expectToBeNear(meansOf(halved)[0] ?? 0, full / 2);
      expectToBeNear(meansOf(after)[0] ?? 0, full);
      const parts = [before, change, halved, recovery, after];
      expect(average(parts.map(({ utilisation }) => utilisation))).toBeGreaterThan(0.85);
    }
  });

  test.each(SERVICE_NAMES)(
    "answers that take twice as long are not held against it: %s",
    (name) => {
      for (const seed of SEEDS) {
        const usual = SERVICES[name](seededRandom(seed));
        const simulation = new Simulation({
          clients: [{ policy: new AdaptiveConcurrency(UNBOUNDED) }],
          beyond: "waits",
          capacity: () => 100,
          service: (nowMs) => {
            const { ms, work } = usual();
            return { ms: nowMs < HALVED_AT ? ms : 2 * ms, work };
          },
        });
        simulation.measure(HALVED_AT);
        expect(simulation.measure(200 * SERVICE_MS).utilisation).toBeGreaterThan(0.8);
        expectToBeNear(meansOf(simulation.measure(200 * SERVICE_MS))[0] ?? 0, 100);
      }
    },
  );
});

interface Batching {
  /** A token takes `a + b × active` milliseconds, for up to `most` at once. */
  readonly a: number;
  readonly b: number;
  readonly most: number;
  readonly clients?: number;
  /** How far from what an answer says about its size the truth may be. */
  readonly noise?: number;
  readonly seed?: number;
}

/** Its mean limits once settled, the highest of them, and its throughput as a share of the best. */
function batchContinuously({ a, b, most, clients = 1, noise = 0, seed = 1 }: Batching) {
  const random = seededRandom(seed);
  const simulation = new Simulation({
    clients: Array.from({ length: clients }, () => ({
      policy: new AdaptiveConcurrency({ min: 1, max: 512 }),
    })),
    beyond: "waits",
    capacity: () => most,
    service: () => {
      const work = tokensFrom(random);
      return { ms: 0, work, trueWork: work * (1 - noise + 2 * noise * random()) };
    },
    unitMs: (active) => a + b * active,
  });
  simulation.measure(600 * SECOND);
  const { workPerMs, clients: seen } = simulation.measure(1_200 * SECOND);
  const share = workPerMs / (most / (a + b * most));
  return { share, means: seen.map(({ mean }) => mean), max: Math.max(...seen.map((s) => s.max)) };
}

describe("on a server that batches continuously", () => {
  const SERVERS = [
    { a: 10, b: 0.06, most: 64 },
    { a: 10, b: 0.06, most: 128 },
    { a: 10, b: 0.06, most: 256 },
    { a: 10, b: 0.02, most: 256 },
    { a: 10, b: 0.2, most: 256 },
    { a: 20, b: 0.3, most: 128 },
    { a: 30, b: 0.6, most: 256 },
    { a: 30, b: 0.05, most: 64 },
    { a: 10, b: 0, most: 100 },
  ];

  test.each(SERVERS)("gets most of what it can do: $a ms + $b ms, $most at once", (server) => {
    const { share, max } = batchContinuously(server);
    expect(share).toBeGreaterThan(0.85);
    expect(max).toBeLessThanOrEqual(1.3 * server.most);
  });

  test.each(SERVERS.slice(2, 6))(
    "also where time goes with size only roughly: $a ms + $b ms, $most at once",
    (server) => {
      expect(batchContinuously({ ...server, noise: 0.3 }).share).toBeGreaterThan(0.8);
    },
  );

  test.each([2, 3])("%i clients use it up together, and none goes without", (clients) => {
    const seen = batchContinuously({ a: 10, b: 0.06, most: 256, clients });
    expect(seen.share).toBeGreaterThan(0.95);
    expect(sumOf(seen.means)).toBeLessThan(1.2 * 256);
    expect(Math.min(...seen.means)).toBeGreaterThan((0.5 * 256) / clients);
  });

  test.each([50, 100])("stops where more at once gain nothing, at %i", (cores) => {
    const random = seededRandom(cores);
    const simulation = new Simulation({
      clients: [{ policy: new AdaptiveConcurrency(UNBOUNDED) }],
      beyond: "waits",
      capacity: () => 10_000,
      service: () => ({ ms: 0, work: tokensFrom(random) }),
      unitMs: (active) => 10 * Math.max(1, active / cores),
    });
    simulation.measure(600 * SECOND);
    const seen = simulation.measure(1_200 * SECOND);
    expect(seen.workPerMs).toBeGreaterThan((0.95 * cores) / 10);
    expect(meansOf(seen)[0]).toBeLessThan(2.5 * cores);
  });
});

describe("sharing an upstream", () => {
  const ARRIVALS = [
    [0, 0],
    [0, 200],
    [0, 0, 0],
    [0, 100, 300],
  ].map((starts) => starts.map((each) => each * SERVICE_MS));
  const SHARED = KINDS.filter(({ service }) => service !== "constant").flatMap((kind) =>
    ARRIVALS.map((startsAtMs) => ({ ...kind, startsAtMs })),
  );

  test.each(SHARED)("gives all the same: $beyond, $service, from $startsAtMs", (scenario) => {
    const ratios: number[] = [];
    for (const capacity of [50, 100]) {
      for (const seed of SEEDS) {
        const simulation = simulate({
          ...scenario,
          seed: seed + capacity,
          capacity: () => capacity,
        });
        simulation.measure(1_000 * SERVICE_MS);
        const seen = simulation.measure(1_000 * SERVICE_MS);
        const means = meansOf(seen);
        ratios.push(Math.max(...means) / Math.min(...means));
        expectToBeNear(sumOf(means), capacity);
        expect(seen.utilisation).toBeGreaterThan(0.93);
        expect(seen.refusedShare).toBeLessThan(0.02);
      }
    }
    // Waiting is a weaker sign than a refusal: the same few who may wait are told apart by it less sharply.
    const isSharp = scenario.beyond === "is_refused";
    expect(average(ratios)).toBeLessThan(isSharp ? 1.3 : 1.5);
    expect(Math.max(...ratios)).toBeLessThan(isSharp ? 1.5 : 2);
  });
});

const START_MS = 1_000_000;

/** Samples one by one, each an answer after `latencyMs`, with all of the limit in flight. */
function answers(policy: AdaptiveConcurrency, count: number, change: Partial<Sample> = {}): void {
  const sample: Sample = {
    startedAtMs: START_MS,
    endedAtMs: START_MS + 100,
    signal: "good",
    work: 1,
    inFlight: policy.limit,
  };
  for (let i = 0; i < count; i++) {
    policy.note({ ...sample, inFlight: policy.limit, ...change });
  }
}

/** So many requests of a round, all in flight together. */
function refuse(policy: AdaptiveConcurrency, startedAtMs: number, count: number): void {
  const signal = "overloaded";
  answers(policy, count, { startedAtMs, endedAtMs: startedAtMs + 5, signal });
}

describe("the limit", () => {
  test("starts at 16 and is above 5,000 after ten rounds", () => {
    const policy = new AdaptiveConcurrency({ min: 1, max: 100_000 });
    const limits = new Set([policy.limit]);
    for (let i = 0; i < 40_000 && policy.limit <= 5_000; i++) {
      answers(policy, 1);
      limits.add(policy.limit);
    }
    expect([...limits].slice(0, 3)).toEqual([16, 32, 64]);
    expect(limits.size).toBeLessThanOrEqual(11);
    expect(policy.limit).toBeGreaterThan(5_000);
  });

  test.each(["overloaded", "timed_out"] as const)("shrinks at once when %s", (signal) => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    answers(policy, 1_000);
    const before = policy.limit;
    answers(policy, 1, { signal });
    expect(policy.limit).toBeLessThan(before);
    expect(policy.limit).toBeGreaterThan(before / 2);
  });

  test("shrinks once for all that was in flight together", () => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    answers(policy, 1_000);
    refuse(policy, START_MS + 1_000, 1);
    const once = policy.limit;
    refuse(policy, START_MS + 1_000, 100);
    expect(policy.limit).toBe(once);
    refuse(policy, START_MS + 2_000, 1);
    expect(policy.limit).toBeLessThan(once);
  });

  test("does not grow while it is not used", () => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    while (policy.limit < 500) answers(policy, 1);
    const before = policy.limit;
    answers(policy, 10_000, { inFlight: Math.floor(before / 2) });
    expect(policy.limit).toBe(before);
  });

  test("does not grow while connections break", () => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    for (let i = 0; i < 1_000; i++)
      answers(policy, 1, { signal: i % 5 === 0 ? "unclear" : "good" });
    expect(policy.limit).toBe(16);
  });

  test("never leaves its bounds, whatever happens", () => {
    const bounds = fc
      .tuple(fc.integer({ min: 1, max: 50 }), fc.integer({ min: 0, max: 500 }))
      .map(([min, more]) => ({ min, max: min + more }));
    const sample = fc.record({
      startedAtMs: fc.nat(1_000),
      endedAtMs: fc.nat(2_000),
      signal: fc.constantFrom("good", "good", "good", "overloaded", "timed_out", "unclear"),
      work: fc.constantFrom(1, 0.5, 700),
      inFlight: fc.integer({ min: 1, max: 600 }),
    }) as fc.Arbitrary<Sample>;
    fc.assert(
      fc.property(
        bounds,
        bounds,
        fc.array(sample, { maxLength: 500 }),
        (first, second, samples) => {
          const policy = new AdaptiveConcurrency(first);
          samples.forEach((each, i) => {
            if (i === 200) policy.setBounds(second);
            if (i === 400) policy.restart();
            policy.note(each);
            const { min, max } = i < 200 ? first : second;
            expect(Number.isInteger(policy.limit)).toBe(true);
            expect(policy.limit).toBeGreaterThanOrEqual(min);
            expect(policy.limit).toBeLessThanOrEqual(max);
          });
        },
      ),
      { seed: 1 },
    );
  });

  test("is fixed where both bounds are the same", () => {
    const policy = new AdaptiveConcurrency({ min: 7, max: 7 });
    answers(policy, 100);
    refuse(policy, START_MS + 1_000, 3);
    expect(policy.limit).toBe(7);
  });

  test("keeps what was learned when the bounds change, and starts small after an outage", () => {
    const policy = new AdaptiveConcurrency(UNBOUNDED);
    answers(policy, 1_000);
    const learned = policy.limit;
    policy.setBounds({ min: 2, max: 2 * learned });
    expect(policy.limit).toBe(learned);
    policy.setBounds({ min: 2, max: 20 });
    expect(policy.limit).toBe(20);
    policy.restart();
    expect(policy.limit).toBe(16);
  });

  test("is not troubled by the milliseconds of its own event loop", () => {
    const random = seededRandom(1);
    const policy = new AdaptiveConcurrency({ min: 1, max: 256 });
    const simulation = new Simulation({
      clients: [{ policy }],
      beyond: "waits",
      capacity: () => 1_000,
      service: () => ({ ms: 0.5 + 12 * random() ** 2, work: 1 }),
    });
    simulation.measure(5 * SECOND);
    expect(simulation.measure(5 * SECOND).clients[0]?.mean).toBeGreaterThan(240);
  });

  test("lets a single fast server have enough", () => {
    const policy = new AdaptiveConcurrency({ min: 1, max: 256 });
    const simulation = new Simulation({
      clients: [{ policy }],
      beyond: "waits",
      capacity: () => 1,
      service: () => ({ ms: 0.2, work: 1 }),
    });
    simulation.measure(5 * SECOND);
    const seen = simulation.measure(5 * SECOND);
    expect(seen.utilisation).toBeGreaterThan(0.99);
    expect(seen.clients[0]?.mean).toBeGreaterThan(16);
  });
});
