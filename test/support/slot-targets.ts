/** Targets that are nothing but a limiter, and the queue of a route of them. */
import { FairQueue, type Flow } from "../../src/batch/fair-queue.ts";
import { TurnBudget } from "../../src/resources/turn-budget.ts";
import { type Gate, type Lane, Limiter } from "../../src/upstream/capacity/limiter.ts";
import type { Eligible } from "../../src/upstream/load-balancer.ts";
import type { UpstreamRequest } from "../../src/upstream/request.ts";
import { type Slot, SlotRequest } from "../../src/upstream/slot.ts";
import { SlotQueue } from "../../src/upstream/slot-queue.ts";
import { FakeClock } from "./fake-clock.ts";

export const clock = new FakeClock();
/** All targets share the time of a turn, as those of a server do. */
const turn = new TurnBudget(clock);
const never = new AbortController().signal;

export const OPEN: Gate = {
  openAtMs: () => 0,
  readyAtMs: () => 0,
  pass: () => null,
  costOf: () => 1,
};

export class SlotTarget implements Eligible {
  readonly limiter: Limiter;
  readonly name: string;
  readonly priority: number;
  readonly weight: number;
  /** Takes no interactive request to wait for it. */
  isPaused = false;

  constructor(
    name: string,
    limit: number,
    { gate = OPEN, batchLimit = limit, priority = 0, weight = 1, share = 0 } = {},
  ) {
    this.name = name;
    this.priority = priority;
    this.weight = weight;
    this.limiter = new Limiter({ gate, clock, turn });
    this.limiter.setBatchShare(share);
    this.limiter.setLimits(limit, batchLimit);
  }

  get taken(): number {
    return this.limiter.totalInFlight;
  }

  get free(): number {
    return this.limiter.limit - this.taken;
  }
}

export type TestSlot = Slot<SlotTarget>;
export type Acquired = TestSlot | null | Promise<TestSlot | null>;

interface Asking {
  readonly signal?: AbortSignal;
  readonly lane?: Lane;
  readonly flow?: Flow | null;
  readonly rank?: number;
  /** The only targets that it may go to; left out: all. */
  readonly only?: readonly SlotTarget[];
}

/** A route whose targets are not told apart by their condition. The dice are 0. */
export class SlotRoute<Targets extends readonly SlotTarget[]> {
  readonly targets: Targets;
  readonly flows = new FairQueue();
  readonly queue: SlotQueue<SlotTarget>;
  holdsNewLinesBack = false;

  constructor(...targets: Targets) {
    this.targets = targets;
    this.queue = new SlotQueue<SlotTarget>({
      targets,
      flows: this.flows,
      clock,
      random: () => 0,
      holdsNewLinesBack: () => this.holdsNewLinesBack,
      choices: ({ lane, avoided }) =>
        targets.filter(
          (target) =>
            !avoided.includes(target) &&
            !target.limiter.isClosed &&
            (lane === "batch" || !target.isPaused),
        ),
    });
  }

  /** A slot, at once or later. */
  acquire({ signal = never, lane = "batch", flow = null, rank = 0, only }: Asking = {}): Acquired {
    const body = Buffer.from("{}");
    const request = new SlotRequest<SlotTarget>(
      lane,
      { body } as UpstreamRequest,
      flow && { flow, rank },
    );
    if (only !== undefined) {
      request.avoided = this.targets.filter((target) => !only.includes(target));
    }
    return this.queue.acquire(request, signal);
  }
}

const routes = new WeakMap<SlotTarget, SlotRoute<readonly SlotTarget[]>>();

/** The targets of one route. */
export function together<Targets extends readonly SlotTarget[]>(...targets: Targets): Targets {
  const route = new SlotRoute<readonly SlotTarget[]>(...targets);
  for (const target of targets) routes.set(target, route);
  return targets;
}

/** A slot of one of these, at once or later. A target without a route gets one with the others. */
export function acquire(
  only: readonly SlotTarget[],
  asking: Pick<Asking, "signal" | "lane"> = {},
): Acquired {
  if (!routes.has(only[0]!)) together(...only);
  const route = routes.get(only[0]!)!;
  return route.acquire({ ...asking, only });
}

/** Resolves in the next turn of the event loop, when the queue has given out what it could. */
export const settle = () => new Promise<void>((resolve) => setImmediate(resolve));
