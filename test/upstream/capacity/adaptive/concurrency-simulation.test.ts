import { setImmediate } from "node:timers/promises";
import { afterEach, describe, expect, test } from "vitest";
import {
  AdaptiveConcurrency,
  type Sample,
} from "../../../../src/upstream/capacity/adaptive/concurrency.ts";
import {
  type Measured,
  Simulation,
  type SimulationOptions,
} from "../../../support/queueing-simulation.ts";
import { seededRandom } from "../../../support/seeded-random.ts";

const SECOND = 1_000;
const SERVICE_MS = SECOND;

const BOUNDS = { min: 1, max: 512 };
const SEEDS = [1, 2];

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

type Kind = Pick<SimulationOptions, "beyond" | "capacity"> &
  Partial<SimulationOptions> & { readonly seed?: number; readonly starts?: readonly number[] };

/** The clients, which begin at `starts`, share one upstream. */
function simulate(service: ServiceName, { seed = 1, starts = [0], ...options }: Kind): Simulation {
  return new Simulation({
    clients: starts.map((startsAtMs) => ({ policy: new AdaptiveConcurrency(BOUNDS), startsAtMs })),
    service: SERVICES[service](seededRandom(seed)),
    ...options,
  });
}

/** Makes so many errors, half of them refusals and half broken connections, whatever the load. */
function errors(share: number, seed = 1): () => Sample["signal"] {
  const random = seededRandom(seed + 1_000);
  return () => {
    const dice = random();
    if (dice < share / 2) return "overloaded";
    return dice < share ? "unclear" : "good";
  };
}

const meansOf = ({ clients }: Measured) => clients.map(({ mean }) => mean);
const sumOf = (numbers: readonly number[]) => numbers.reduce((sum, each) => sum + each, 0);

// A simulation never yields, and all of them together take longer than an event loop may stand still.
afterEach(() => setImmediate());

describe("from the first request to the last", () => {
  const ROWS = [
    { capacity: 40, serviceMs: 100, lines: 6_000, pauseMs: 1_000, busy: 0.9 },
    { capacity: 8, serviceMs: 300, lines: 6_000, pauseMs: 1_000, busy: 0.95 },
    { capacity: 40, serviceMs: 100, lines: 6_000, pauseMs: 0, busy: 0.9 },
    { capacity: 200, serviceMs: 200, lines: 20_000, pauseMs: 0, busy: 0.9 },
  ];

  test.each(ROWS)("keeps $capacity busy that refuse, pause $pauseMs ms", (row) => {
    const { capacity, serviceMs, lines, pauseMs, busy } = row;
    const service = () => ({ ms: serviceMs, work: 1 });
    const simulation = simulate("constant", {
      beyond: "is_refused",
      capacity: () => capacity,
      pauseMs,
      service,
    });
    const seen = simulation.measure((lines * serviceMs) / capacity / 0.95);
    expect(seen.utilisation).toBeGreaterThan(busy);
    expect(seen.refusedShare).toBeLessThan(0.01);
  });

  test.each(ROWS)("and $capacity, pause $pauseMs ms, seen from a busy machine", (row) => {
    const { capacity, serviceMs, lines, pauseMs } = row;
    const random = seededRandom(3);
    const slowdowns: number[] = [];
    // Answers of the same moment are late together, by up to 60 %.
    const service = (atMs: number) => {
      const moment = Math.floor(atMs / 700);
      while (slowdowns.length <= moment) slowdowns.push(1 + 0.6 * random());
      return { ms: serviceMs * slowdowns[moment]!, work: 1 };
    };
    const simulation = simulate("constant", {
      beyond: "is_refused",
      capacity: () => capacity,
      pauseMs,
      service,
    });
    const seen = simulation.measure((1.3 * lines * serviceMs) / capacity / 0.95);
    expect(seen.utilisation).toBeGreaterThan(0.9);
    expect(seen.refusedShare).toBeLessThan(0.01);
  });

  test.each([
    { capacity: 40, arrivalMs: 0.4 },
    { capacity: 40, arrivalMs: 1.5 },
    { capacity: 100, arrivalMs: 0.8 },
  ])("finds $capacity in one pause, $arrivalMs ms for a request to arrive", (row) => {
    const { capacity, arrivalMs } = row;
    const service = () => ({ ms: 100, work: 1 });
    const refusing = { beyond: "is_refused", capacity: () => capacity, pauseMs: SECOND } as const;
    const simulation = simulate("constant", { ...refusing, service, arrivalMs });
    expect(simulation.measure(1.6 * SECOND).refusedShare).toBeGreaterThan(0);
    // A second pause would fall into this time.
    const seen = simulation.measure(SECOND);
    expect(seen.refusedShare).toBe(0);
    expect(seen.utilisation).toBeGreaterThan(0.5);
  });

  test("keeps 40 busy that queue, where all answers are alike", () => {
    const service = () => ({ ms: 100, work: 1 });
    const simulation = simulate("constant", { beyond: "waits", capacity: () => 40, service });
    expect(simulation.measure(15 * SECOND).utilisation).toBeGreaterThan(0.95);
  });
});

const UPSTREAMS = SERVICE_NAMES.flatMap((service) =>
  [3, 8, 20, 50, 100, 200].map((capacity) => ({ service, capacity })),
);

describe("on an upstream that serves so many at once and lets the others wait", () => {
  test.each(UPSTREAMS)("keeps $capacity busy and no long queue, $service", (given) => {
    const { service, capacity } = given;
    const simulation = simulate(service, { beyond: "waits", capacity: () => capacity });
    simulation.measure(300 * SERVICE_MS);
    const seen = simulation.measure(400 * SERVICE_MS);
    expect(seen.utilisation).toBeGreaterThan(0.95);
    expect(meansOf(seen)[0]).toBeLessThan(1.5 * capacity + 20);
  });
});

describe("on an upstream that serves so many at once and refuses the others", () => {
  test.each(UPSTREAMS)("finds $capacity with few refusals, $service", ({ service, capacity }) => {
    const simulation = simulate(service, { beyond: "is_refused", capacity: () => capacity });
    simulation.measure(200 * SERVICE_MS);
    const seen = simulation.measure(400 * SERVICE_MS);
    expect(seen.utilisation).toBeGreaterThan(0.95);
    expect(seen.refusedShare).toBeLessThan(0.01);
  });
});

test("a server that breaks the connections of others gets at most twice what it takes", () => {
  const simulation = simulate("jittered", { beyond: "is_reset", capacity: () => 20 });
  simulation.measure(20 * SERVICE_MS);
  const seen = simulation.measure(20 * SERVICE_MS);
  expect(seen.utilisation).toBeGreaterThan(0.95);
  expect(seen.clients[0]?.max).toBeLessThan(40);
});

const BEYOND = ["waits", "is_refused"] as const;
const NOISES = BEYOND.flatMap((beyond) => [0.01, 0.019].map((share) => ({ beyond, share })));

describe("with errors that have nothing to do with how many there are", () => {
  test.each(NOISES)("keeps 64 busy: $share, $beyond", ({ beyond, share }) => {
    const kind = { beyond, capacity: () => 64 };
    const simulation = simulate("jittered", { ...kind, fate: errors(share) });
    simulation.measure(100 * SERVICE_MS);
    expect(simulation.measure(300 * SERVICE_MS).utilisation).toBeGreaterThan(0.95);
  });

  const STRAY = [0.02, 0.05].flatMap((part) =>
    [0, 200, SECOND].map((pauseMs) => ({ part, pauseMs })),
  );

  test.each(STRAY)("does not collapse: $part refused, each with a pause of $pauseMs ms", (row) => {
    const { part, pauseMs } = row;
    const [capacity, answerMs] = [64, 120];
    // The work of a moment, and the pause that each refusal costs.
    const bestPerMs = 1 / (answerMs / capacity + part * pauseMs);
    for (const seed of SEEDS) {
      const random = seededRandom(seed);
      const service = () => ({ ms: answerMs * (0.8 + 0.4 * random()), work: 1 });
      const fate = () => (random() < part ? "overloaded" : "good");
      const kind = { beyond: "waits", capacity: () => capacity, service, fate, pauseMs } as const;
      const simulation = simulate("constant", kind);
      simulation.measure(60 * SECOND);
      expect(simulation.measure(300 * SECOND).workPerMs).toBeGreaterThan(0.6 * bestPerMs);
    }
  });

  test.each(BEYOND)("does not collapse where latencies are mixed as well: %s", (beyond) => {
    const busy: number[] = [];
    for (const share of [0, 0.01]) {
      for (const seed of [...SEEDS, 3, 4]) {
        const random = seededRandom(seed);
        // Nothing tells the short ones from the long ones.
        const service = () => ({ ms: random() < 0.8 ? 50 : 500, work: 1 });
        const kind = { beyond, capacity: () => 64, service, fate: errors(share, seed) };
        const simulation = simulate("constant", kind);
        simulation.measure(20 * SECOND);
        busy.push(simulation.measure(60 * SECOND).utilisation);
      }
    }
    expect(Math.min(...busy)).toBeGreaterThan(0.8);
    expect(sumOf(busy) / busy.length).toBeGreaterThan(0.88);
  });
});

describe("when something changes", () => {
  const [HALVED_AT, BACK_AT] = [300 * SERVICE_MS, 450 * SERVICE_MS];
  const KINDS = BEYOND.flatMap((beyond) =>
    [0, SECOND].map((pauseMs) => ({ beyond, pauseMs })),
  ).filter(({ beyond, pauseMs }) => beyond === "is_refused" || pauseMs === 0);

  test.each(KINDS)("follows capacity down and up: $beyond, pause $pauseMs", (kind) => {
    for (const full of [20, 100]) {
      const isHalved = (nowMs: number) => nowMs >= HALVED_AT && nowMs < BACK_AT;
      const capacity = (nowMs: number) => (isHalved(nowMs) ? full / 2 : full);
      const simulation = simulate("jittered", { ...kind, capacity, seed: full });
      simulation.measure(HALVED_AT);
      expect(simulation.measure(BACK_AT - HALVED_AT).utilisation).toBeGreaterThan(0.95);
      simulation.measure(150 * SERVICE_MS);
      expect(simulation.measure(100 * SERVICE_MS).utilisation).toBeGreaterThan(0.9);
    }
  });

  test.each(BEYOND)(
    "stays busy while all answers take twice as long for a minute: %s",
    (beyond) => {
      for (const seed of SEEDS) {
        const usual = SERVICES.jittered(seededRandom(seed));
        const service = (nowMs: number) => {
          const { ms, work } = usual();
          return { ms: nowMs >= HALVED_AT && nowMs < HALVED_AT + 60 * SECOND ? 2 * ms : ms, work };
        };
        const simulation = simulate("constant", { beyond, capacity: () => 100, service });
        simulation.measure(HALVED_AT);
        expect(simulation.measure(120 * SECOND).utilisation).toBeGreaterThan(0.95);
        expect(simulation.measure(100 * SECOND).utilisation).toBeGreaterThan(0.95);
      }
    },
  );
});

describe("when answers take five times as long for good", () => {
  test.each(BEYOND)("stays busy, and follows capacity: %s", (beyond) => {
    const usual = SERVICES.jittered(seededRandom(1));
    const service = (nowMs: number) => {
      const { ms, work } = usual();
      return { ms: nowMs < 300 * SECOND ? ms : 5 * ms, work };
    };
    const capacity = (nowMs: number) => (nowMs < 1_000 * SECOND ? 50 : 100);
    const simulation = simulate("constant", { beyond, capacity, service });
    simulation.measure(400 * SECOND);
    expect(simulation.measure(600 * SECOND).utilisation).toBeGreaterThan(0.9);
    simulation.measure(500 * SECOND);
    expect(simulation.measure(500 * SECOND).utilisation).toBeGreaterThan(0.9);
  });
});

describe("beside interactive requests, whose endings are not reported", () => {
  class HalfReported extends AdaptiveConcurrency {
    #count = 0;
    override note(sample: Sample): void {
      if (++this.#count % 2 === 0) super.note(sample);
    }
  }

  test("follows capacity where requests wait", () => {
    const simulation = new Simulation({
      clients: [{ policy: new HalfReported(BOUNDS) }],
      beyond: "waits",
      capacity: (nowMs) => (nowMs < 300 * SECOND ? 50 : 100),
      service: SERVICES.jittered(seededRandom(1)),
    });
    simulation.measure(100 * SECOND);
    expect(simulation.measure(200 * SECOND).utilisation).toBeGreaterThan(0.95);
    simulation.measure(200 * SECOND);
    expect(simulation.measure(200 * SECOND).utilisation).toBeGreaterThan(0.95);
  });
});

interface Batching {
  /** A token takes `a + b × active` milliseconds, for up to `most` at once. */
  readonly a: number;
  readonly b: number;
  readonly most: number;
}

/** Its throughput as a share of the best. */
function batchContinuously({ a, b, most }: Batching, tokens: (random: Random) => number): number {
  const random = seededRandom(1);
  const simulation = simulate("constant", {
    beyond: "waits",
    capacity: () => most,
    unitMs: (active: number) => a + b * active,
    service: () => ({ ms: 0, work: tokens(random) }),
  });
  simulation.measure(600 * SECOND);
  return simulation.measure(1_200 * SECOND).workPerMs / (most / (a + b * most));
}

describe("on a server that batches continuously", () => {
  const SERVERS = [
    { a: 10, b: 0.06, most: 64, share: 0.95 },
    { a: 10, b: 0.06, most: 256, share: 0.95 },
    { a: 10, b: 0.02, most: 256, share: 0.95 },
    { a: 30, b: 0.05, most: 64, share: 0.95 },
    { a: 20, b: 0.3, most: 128, share: 0.95 },
    // It slows down sixfold: more is had only for answers that take more than twice as long.
    { a: 10, b: 0.2, most: 256, share: 0.75 },
    { a: 30, b: 0.6, most: 256, share: 0.75 },
  ];

  test.each(SERVERS)("gets most of it where answers differ: $a + $b ms, $most", (server) => {
    expect(batchContinuously(server, tokensFrom)).toBeGreaterThan(server.share);
  });

  test.each(SERVERS)("and where all have one size: $a + $b ms, $most", (server) => {
    expect(batchContinuously(server, () => 200)).toBeGreaterThan(server.share);
  });
});

describe("two that share an upstream", () => {
  const ARRIVALS = [
    [0, 0],
    [0, 200 * SERVICE_MS],
  ];

  test.each(ARRIVALS)("use it together, and equally, where requests wait: %i, %i", (...starts) => {
    const ratios: number[] = [];
    for (const capacity of [50, 100]) {
      for (const seed of SEEDS) {
        const kind = { capacity: () => capacity, seed: seed + capacity, starts };
        const simulation = simulate("jittered", { ...kind, beyond: "waits" });
        simulation.measure(1_000 * SERVICE_MS);
        const seen = simulation.measure(1_000 * SERVICE_MS);
        const means = meansOf(seen);
        ratios.push(Math.max(...means) / Math.min(...means));
        expect(seen.utilisation).toBeGreaterThan(0.9);
        // Neither can tell the other from a server that slows down gently.
        expect(sumOf(means)).toBeLessThan(3.3 * capacity);
      }
    }
    // A client that comes later takes the latency that it meets for normal.
    const isTogether = starts[0] === starts[1];
    expect(sumOf(ratios) / ratios.length).toBeLessThan(isTogether ? 1.7 : 3);
  });

  test.each(ARRIVALS)("and none starves where they are refused: %i, %i", (...starts) => {
    const ratios: number[] = [];
    for (const seed of SEEDS) {
      const kind = { capacity: () => 100, seed: seed + 100, starts };
      const simulation = simulate("jittered", { ...kind, beyond: "is_refused" });
      simulation.measure(1_000 * SERVICE_MS);
      const seen = simulation.measure(1_000 * SERVICE_MS);
      const means = meansOf(seen);
      ratios.push(Math.max(...means) / Math.min(...means));
      expect(seen.utilisation).toBeGreaterThan(0.9);
      expect(seen.refusedShare).toBeLessThan(0.01);
    }
    expect(sumOf(ratios) / ratios.length).toBeLessThan(4);
  });
});
