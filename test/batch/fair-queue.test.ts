import { describe, expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import { FairQueue, type Flow, weightOf } from "../../src/batch/fair-queue.ts";
import { seededRandom } from "../support/seeded-random.ts";

const SEEDS = [1, 2, 3];

interface Job {
  readonly batchId: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly lineCount: number;
  readonly createdAtMs: number;
  readonly deadlineAtMs: number;
  readonly isAtRisk: boolean;
}

/** The weights of the projects that do not have 1. */
const WEIGHTS: Readonly<Record<string, number>> = { double: 2, triple: 3 };

let jobCount = 0;

function aJob(fields: Partial<Job> = {}): Job {
  return {
    batchId: `batch_${++jobCount}` as BatchId,
    project: "one",
    priority: 0,
    lineCount: Number.POSITIVE_INFINITY,
    createdAtMs: jobCount,
    deadlineAtMs: 1_000_000 + jobCount,
    isAtRisk: false,
    ...fields,
  };
}

/** A batch at a route: what it has had, and what it would have had if all were served at the same moment. */
class Contending {
  readonly job: Job;
  readonly flow: Flow;
  served = 0;
  ideal = 0;

  constructor(job: Job, flow: Flow) {
    this.job = job;
    this.flow = flow;
    flow.isAtRisk = job.isAtRisk;
  }

  get isDone(): boolean {
    return this.served >= this.job.lineCount;
  }
}

/** A route that serves one line after the other, each to the batch whose turn it is. Time is lines. */
class Simulation {
  readonly queue = new FairQueue();
  readonly contending = new Map<Flow, Contending>();
  readonly #inIdeal = new Set<Contending>();
  /** They are valid until a batch comes or is done. */
  #rates: [Contending, number][] | null = null;
  lineCount = 0;

  add(job: Job): Contending {
    const flow = this.queue.join(job);
    this.queue.reweigh(flow, {
      priority: job.priority,
      projectWeight: WEIGHTS[job.project] ?? 1,
    });
    const contending = new Contending(job, flow);
    this.contending.set(contending.flow, contending);
    this.#inIdeal.add(contending);
    this.#rates = null;
    return contending;
  }

  /** Serves one line; null when there is none. */
  step(): Contending | null {
    const flow = this.queue.next([...this.contending.keys()]);
    if (flow === null) return null;
    this.queue.take(flow);
    const contending = this.contending.get(flow)!;
    contending.served++;
    this.lineCount++;
    this.#stepIdeal();
    if (contending.isDone) {
      this.contending.delete(flow);
      this.queue.remove(flow);
    }
    return contending;
  }

  run(lineCount: number): void {
    for (let i = 0; i < lineCount; i++) this.step();
  }

  /** The furthest that anybody is behind what the ideal would have given it. */
  get maxLag(): number {
    let lag = 0;
    for (const { ideal, served } of this.contending.values()) lag = Math.max(lag, ideal - served);
    return lag;
  }

  /** One line's worth of service, split between all as generalized processor sharing does. */
  #stepIdeal(): void {
    let left = 1;
    while (left > 1e-9 && this.#inIdeal.size > 0) {
      this.#rates ??= this.#idealRates();
      let part = left;
      for (const [{ job, ideal }, rate] of this.#rates) {
        part = Math.min(part, (job.lineCount - ideal) / rate);
      }
      for (const [each, rate] of this.#rates) {
        each.ideal += part * rate;
        if (each.job.lineCount - each.ideal > 1e-6) continue;
        this.#inIdeal.delete(each);
        this.#rates = null;
      }
      left -= part;
    }
  }

  #idealRates(): [Contending, number][] {
    const projects = [...Map.groupBy(this.#inIdeal, ({ job }) => job.project).values()];
    const totalWeight = projects.reduce((sum, [one]) => sum + (WEIGHTS[one!.job.project] ?? 1), 0);
    return projects.flatMap((members) => {
      const weight = members.reduce((sum, { flow }) => sum + flow.weight, 0);
      const part = (WEIGHTS[members[0]!.job.project] ?? 1) / totalWeight;
      return members.map((each): [Contending, number] => [
        each,
        (each.flow.weight / weight) * part,
      ]);
    });
  }
}

const pick = <T>(random: () => number, choices: readonly T[]): T =>
  choices[Math.floor(random() * choices.length)] as T;

/** The size is mostly small, and now and then as large as a batch may be. */
const randomSize = (random: () => number) =>
  random() < 1 / 1_500 ? 50_000 : Math.floor(400 ** random());

describe("more than a thousand random arrivals", () => {
  /** Batches of all sizes arrive, at routes of several speeds: more than can be served at first, then nothing more. */
  async function arrive(seed: number, look: (route: Simulation) => void) {
    const random = seededRandom(seed);
    const routes = [1, 2, 5].map((linesPerTick) => ({ linesPerTick, route: new Simulation() }));
    const batches: Contending[] = [];
    for (let tick = 0; tick < 2_500; tick++) {
      // A busy machine takes long for it, and must not take it for a loop without an end.
      if (tick % 100 === 0) await new Promise(setImmediate);
      const burst = random() < 0.06 ? 1 : random() < 0.001 ? 20 : 0;
      for (const { linesPerTick, route } of routes) {
        for (let i = 0; i < burst * linesPerTick; i++) {
          const project = pick(random, ["one", "two", "double", "triple"]);
          const priority = Math.floor(random() * 21) - 10;
          batches.push(route.add(aJob({ project, priority, lineCount: randomSize(random) })));
        }
        route.run(linesPerTick);
        look(route);
      }
    }
    for (const { route } of routes) while (route.step() !== null);
    return batches;
  }

  test.each(SEEDS)(
    "no batch is starved: all stay close to the ideal, and end (seed %i)",
    async (seed) => {
      let worstLag = 0;
      let mostAtOnce = 0;
      const batches = await arrive(seed, (route) => {
        worstLag = Math.max(worstLag, route.maxLag);
        mostAtOnce = Math.max(mostAtOnce, route.contending.size);
      });
      expect(batches.length).toBeGreaterThan(1_000);
      expect(mostAtOnce).toBeGreaterThan(50);
      expect(worstLag).toBeLessThan(8);
      expect(batches.filter((batch) => !batch.isDone)).toEqual([]);
    },
  );
});

describe("projects", () => {
  test("share equally while both have work, however many batches each has", () => {
    const simulation = new Simulation();
    const alone = simulation.add(aJob({ project: "one" }));
    for (let i = 0; i < 40; i++) simulation.add(aJob({ project: "two", priority: 10 }));
    for (let line = 1; line <= 2_000; line++) {
      simulation.step();
      expect(Math.abs(2 * alone.served - line)).toBeLessThanOrEqual(2);
    }
  });

  test("share by weight, however many batches each has", () => {
    const simulation = new Simulation();
    const alone = simulation.add(aJob({ project: "one" }));
    for (let i = 0; i < 40; i++) simulation.add(aJob({ project: "double", priority: i % 10 }));
    for (let line = 1; line <= 2_000; line++) {
      simulation.step();
      expect(Math.abs(3 * alone.served - line)).toBeLessThanOrEqual(3);
    }
  });

  test("get another share from the next line on when their weight changes", () => {
    const simulation = new Simulation();
    const one = simulation.add(aJob({ project: "one" }));
    const two = simulation.add(aJob({ project: "two" }));
    simulation.run(1_000);
    simulation.queue.reweigh(two.flow, { priority: 0, projectWeight: 4 });
    const before = two.served;
    simulation.run(1_000);
    expect(Math.abs(two.served - before - 800)).toBeLessThanOrEqual(5);
    expect(one.served + two.served).toBe(2_000);
  });

  test("that come back get no credit for the time that they were away", () => {
    const simulation = new Simulation();
    simulation.add(aJob({ project: "one", lineCount: 10 }));
    const other = simulation.add(aJob({ project: "two" }));
    simulation.run(5_000);
    const back = simulation.add(aJob({ project: "one" }));
    const before = other.served;
    simulation.run(100);
    expect(back.served).toBeGreaterThanOrEqual(49);
    expect(other.served - before).toBeGreaterThanOrEqual(49);
  });

  test("cannot win by splitting their work into batches of one line", () => {
    const simulation = new Simulation();
    const whole = simulation.add(aJob({ project: "one" }));
    for (let line = 0; line < 2_000; line++) {
      if (![...simulation.contending.values()].some(({ job }) => job.project === "two")) {
        simulation.add(aJob({ project: "two", lineCount: 1 }));
      }
      simulation.step();
    }
    expect(whole.served).toBeGreaterThanOrEqual(999);
  });
});

describe("batches of a project", () => {
  test("a batch of 10 lines beside one of 50,000 is done after its share of lines", () => {
    const simulation = new Simulation();
    simulation.add(aJob({ lineCount: 50_000 }));
    simulation.run(20_000);
    const small = simulation.add(aJob({ lineCount: 10 }));
    simulation.run(21);
    expect(small.isDone).toBe(true);
  });

  test("the share of a batch follows its priority: sixteen to one from end to end", () => {
    const simulation = new Simulation();
    const [low, normal, high] = [-10, 0, 10].map((priority) => simulation.add(aJob({ priority })));
    simulation.run(21_000);
    expect([low!.served, normal!.served, high!.served]).toEqual([1_000, 4_000, 16_000]);
    expect(weightOf(10) / weightOf(-10)).toBe(16);
  });

  test("a stream of small batches leaves a large one its share", () => {
    const simulation = new Simulation();
    const large = simulation.add(aJob());
    for (let line = 0; line < 3_000; line++) {
      if (simulation.contending.size < 3) simulation.add(aJob({ lineCount: 1 }));
      simulation.step();
    }
    expect(large.served).toBeGreaterThan(900);
  });

  test("between equals the earlier deadline goes first, then the older batch", () => {
    const simulation = new Simulation();
    const [third, second, first] = [
      simulation.add(aJob({ deadlineAtMs: 9, createdAtMs: 7 })),
      simulation.add(aJob({ deadlineAtMs: 9, createdAtMs: 5 })),
      simulation.add(aJob({ deadlineAtMs: 8, createdAtMs: 9 })),
    ];
    const order = [simulation.step(), simulation.step(), simulation.step()];
    expect(order).toEqual([first, second, third]);
  });
});

describe("batches in danger", () => {
  test.each(SEEDS)(
    "make their deadlines where that can be done with three lines of four (seed %i)",
    (seed) => {
      const random = seededRandom(seed);
      for (let round = 0; round < 20; round++) {
        const simulation = new Simulation();
        const others = Array.from({ length: 10 }, () => simulation.add(aJob({ priority: 10 })));
        let dueLines = 0;
        const urgent = Array.from({ length: 12 }, () => {
          const lineCount = 1 + Math.floor(random() * 300);
          dueLines += lineCount;
          // The latest that the earliest-deadline order allows, and a turn more.
          return { lineCount, deadlineAtMs: Math.ceil((dueLines * 4) / 3) + 4 };
        });
        const batches = urgent
          .toSorted(() => random() - 0.5)
          .map((fields) => simulation.add(aJob({ ...fields, isAtRisk: true })));
        const late: Contending[] = [];
        while (batches.some((batch) => !batch.isDone)) {
          simulation.step();
          late.push(
            ...batches.filter(
              (batch) => !batch.isDone && batch.job.deadlineAtMs <= simulation.lineCount,
            ),
          );
        }
        expect(late).toEqual([]);
        const othersServed = others.reduce((sum, { served }) => sum + served, 0);
        expect(othersServed).toBeGreaterThan(simulation.lineCount / 5);
      }
    },
  );

  test("cost other projects nothing", () => {
    const simulation = new Simulation();
    simulation.add(aJob({ project: "one", isAtRisk: true }));
    const other = simulation.add(aJob({ project: "two" }));
    simulation.run(1_000);
    expect(other.served).toBe(500);
  });

  test("owe nothing once they are out of it", () => {
    const simulation = new Simulation();
    const saved = simulation.add(aJob({ isAtRisk: true }));
    const other = simulation.add(aJob());
    simulation.run(4_000);
    saved.flow.isAtRisk = false;
    const before = { saved: saved.served, other: other.served };
    simulation.run(1_000);
    expect(saved.served - before.saved).toBeGreaterThanOrEqual(499);
    expect(other.served - before.other).toBeGreaterThanOrEqual(499);
  });
});

describe("lines of a batch that has left", () => {
  test("are served in their turn, and take no more than one place of two", () => {
    const queue = new FairQueue();
    const former = queue.join(aJob({ lineCount: 1 }));
    queue.remove(former);
    const other = queue.join(aJob());
    for (let line = 0; line < 1_000; line++) queue.charge(other);
    queue.resume(former);
    const served = Array.from({ length: 100 }, () => {
      const flow = queue.next([former, other])!;
      queue.take(flow);
      return flow;
    });
    const ofFormer = served.filter((flow) => flow === former).length;
    expect(ofFormer).toBeGreaterThanOrEqual(45);
    expect(ofFormer).toBeLessThanOrEqual(55);
  });
});
