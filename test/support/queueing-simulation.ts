/**
 * Simulates an upstream and its clients in virtual time: a discrete-event simulation, exact and reproducible.
 *
 * The upstream serves a number of requests at once. Each takes its own time, or all of them form a batch that is slower
 * when it is larger. Further requests wait in a queue or are refused. Each client keeps as many requests in flight as
 * its policy says, and reports every ending to it.
 */
import type {
  AdaptiveConcurrency,
  Sample,
} from "../../src/upstream/capacity/adaptive/concurrency.ts";

interface Service {
  readonly ms: number;
  /** The work that the answer reports. */
  readonly work: number;
  /** The real work; the reported one when it is left out. */
  readonly trueWork?: number;
}

interface SimulatedClient {
  readonly policy: AdaptiveConcurrency;
  /** The time of its first request. */
  readonly startsAtMs?: number;
  /** The most requests that it has at once. */
  readonly demand?: number;
}

export interface SimulationOptions {
  readonly clients: readonly SimulatedClient[];
  /** Returns the number of requests that are served at an instant. */
  readonly capacity: (nowMs: number) => number;
  readonly beyond: "waits" | "is_refused" | "is_reset";
  readonly service: (nowMs: number) => Service;
  /**
   * Returns the time for a unit of work while `serving` requests are served, for continuous batching. It overrides
   * `ms`.
   */
  readonly unitMs?: (serving: number) => number;
  /** The pause that a refusal asks for; none when it is left out. */
  readonly pauseMs?: number;
  /** The time in which one request reaches the server; others wait for it. Requests arrive at once when left out. */
  readonly arrivalMs?: number;
  /** Returns the ending of a request that is not too many; success when it is left out. */
  readonly fate?: () => Sample["signal"];
}

interface InFlight {
  readonly client: Client;
  readonly startedAtMs: number;
  readonly service: Service;
}

interface Ending {
  readonly atMs: number;
  readonly order: number;
  readonly request: InFlight;
  readonly signal: Sample["signal"];
  /** It is true when it takes a place at the server until then. */
  readonly isServed: boolean;
  readonly wasRefused?: boolean;
  /** It is true when the request reaches the server. */
  readonly isArrival?: boolean;
}

/** The measurements between two calls of {@link Simulation.measure}. */
export interface Measured {
  /** The time spent on service ÷ the time available for it. */
  readonly utilisation: number;
  readonly refusedShare: number;
  readonly workPerMs: number;
  readonly clients: readonly {
    readonly mean: number;
    readonly min: number;
    readonly max: number;
  }[];
}

const REFUSAL_MS = 5;
/** The time from the end of a request at the server until its client can send the next one. */
const TURNAROUND_MS = 2;

const trueWorkOf = ({ work, trueWork = work }: Service) => trueWork;

class Client {
  readonly policy: AdaptiveConcurrency;
  readonly startsAtMs: number;
  readonly demand: number;
  pausedUntilMs = 0;
  readonly started = new Set<InFlight>();
  limitMs = 0;
  min = Number.POSITIVE_INFINITY;
  max = 0;

  constructor({ policy, startsAtMs = 0, demand = Number.POSITIVE_INFINITY }: SimulatedClient) {
    this.policy = policy;
    this.startsAtMs = startsAtMs;
    this.demand = demand;
  }

  mayStart(nowMs: number): boolean {
    const sendsFromMs = Math.max(this.startsAtMs, this.pausedUntilMs);
    return nowMs >= sendsFromMs && this.started.size < Math.min(this.policy.limit, this.demand);
  }
}

export class Simulation {
  readonly #options: SimulationOptions;
  readonly #clients: readonly Client[];
  readonly #waiting: InFlight[] = [];
  #firstWaiting = 0;
  readonly #endings = new Endings();
  /** The served requests with continuous batching. Their time is the time of `#batchWork`. */
  readonly #batch = new Endings();
  /** The work that a request would have received if it had been served from the start. */
  #batchWork = 0;
  #nowMs = 0;
  #serving = 0;
  #order = 0;
  #arrivesAtMs = 0;
  #usedMs = 0;
  #usableMs = 0;
  #ended = 0;
  #refused = 0;
  #work = 0;

  constructor(options: SimulationOptions) {
    this.#options = options;
    this.#clients = options.clients.map((client) => new Client(client));
  }

  /** Runs for a time and returns the measurements. */
  measure(forMs: number): Measured {
    this.#forget();
    const untilMs = this.#nowMs + forMs;
    this.#startAll();
    for (;;) {
      const endsAtMs = this.#endings.first?.atMs ?? Number.POSITIVE_INFINITY;
      const batchEndsAtMs = this.#nextOfBatchMs();
      const nextMs = Math.min(endsAtMs, batchEndsAtMs, this.#nextStartMs());
      this.#passTo(Math.min(nextMs, untilMs));
      if (nextMs >= untilMs) break;
      if (endsAtMs === nextMs) this.#end(this.#endings.takeFirst());
      else if (batchEndsAtMs === nextMs) this.#end(this.#batch.takeFirst());
      this.#startAll();
    }
    return {
      utilisation: this.#usedMs / this.#usableMs,
      refusedShare: this.#refused / Math.max(1, this.#ended),
      workPerMs: this.#work / forMs,
      clients: this.#clients.map(({ limitMs, min, max }) => ({ mean: limitMs / forMs, min, max })),
    };
  }

  #forget(): void {
    this.#usedMs = 0;
    this.#usableMs = 0;
    this.#ended = 0;
    this.#refused = 0;
    this.#work = 0;
    for (const client of this.#clients) {
      client.limitMs = 0;
      client.min = Number.POSITIVE_INFINITY;
      client.max = 0;
    }
  }

  /** Makes no list, because it runs for every ending. */
  #nextStartMs(): number {
    let nextMs = Number.POSITIVE_INFINITY;
    for (const { startsAtMs, pausedUntilMs } of this.#clients) {
      if (startsAtMs > this.#nowMs && startsAtMs < nextMs) nextMs = startsAtMs;
      if (pausedUntilMs > this.#nowMs && pausedUntilMs < nextMs) nextMs = pausedUntilMs;
    }
    return nextMs;
  }

  #nextOfBatchMs(): number {
    const { first } = this.#batch;
    if (first === undefined) return Number.POSITIVE_INFINITY;
    return this.#nowMs + (first.atMs - this.#batchWork) * this.#batchUnitMs;
  }

  get #batchUnitMs(): number {
    return this.#options.unitMs?.(this.#serving) ?? Number.POSITIVE_INFINITY;
  }

  #passTo(atMs: number): void {
    const passedMs = atMs - this.#nowMs;
    this.#batchWork += passedMs / this.#batchUnitMs;
    const capacity = this.#options.capacity(this.#nowMs);
    this.#usedMs += passedMs * Math.min(this.#serving, capacity);
    this.#usableMs += passedMs * capacity;
    for (const client of this.#clients) {
      const { limit } = client.policy;
      client.limitMs += passedMs * limit;
      client.min = Math.min(client.min, limit);
      client.max = Math.max(client.max, limit);
    }
    this.#nowMs = atMs;
  }

  /** Starts requests in turns, so that no client always gets the last place. */
  #startAll(): void {
    for (let started = true; started; ) {
      started = false;
      for (let i = 0; i < this.#clients.length; i++) {
        const client = this.#clients[(this.#order + i) % this.#clients.length]!;
        if (!client.mayStart(this.#nowMs)) continue;
        this.#start(client);
        started = true;
      }
    }
  }

  #start(client: Client): void {
    const service = this.#options.service(this.#nowMs);
    const request = { client, startedAtMs: this.#nowMs, service };
    client.started.add(request);
    const { arrivalMs } = this.#options;
    if (arrivalMs === undefined) {
      this.#arrive(request);
      return;
    }
    this.#arrivesAtMs = Math.max(this.#arrivesAtMs, this.#nowMs) + arrivalMs;
    const [atMs, order] = [this.#arrivesAtMs, this.#order++];
    this.#endings.add({ atMs, order, request, signal: "good", isServed: false, isArrival: true });
  }

  #arrive(request: InFlight): void {
    if (this.#serving < this.#options.capacity(this.#nowMs)) this.#serve(request);
    else if (this.#options.beyond === "waits") this.#waiting.push(request);
    else {
      const atMs = this.#nowMs + REFUSAL_MS;
      const order = this.#order++;
      const signal = this.#options.beyond === "is_refused" ? "overloaded" : "unclear";
      this.#endings.add({ atMs, order, request, signal, isServed: false });
    }
  }

  #serve(request: InFlight): void {
    this.#serving++;
    const signal = this.#options.fate?.() ?? "good";
    if (this.#options.unitMs === undefined) {
      this.#endLater(request, signal, signal === "good" ? request.service.ms : REFUSAL_MS);
      return;
    }
    const atMs = this.#batchWork + trueWorkOf(request.service);
    this.#batch.add({ atMs, order: this.#order++, request, signal, isServed: true });
  }

  #endLater(request: InFlight, signal: Sample["signal"], afterMs: number): void {
    const atMs = this.#nowMs + afterMs;
    this.#endings.add({ atMs, order: this.#order++, request, signal, isServed: true });
  }

  #end({ request, signal, isServed, wasRefused = !isServed, isArrival = false }: Ending): void {
    if (isArrival) {
      this.#arrive(request);
      return;
    }
    if (isServed) {
      this.#serving--;
      const atMs = this.#nowMs + TURNAROUND_MS;
      const order = this.#order++;
      this.#endings.add({ atMs, order, request, signal, isServed: false, wasRefused: false });
      this.#serveWaiting();
      return;
    }
    const { client, startedAtMs, service } = request;
    const inFlight = client.started.size;
    const ahead = signal === "overloaded" ? [...client.started].indexOf(request) : 0;
    client.started.delete(request);
    this.#ended++;
    if (wasRefused) this.#refused++;
    if (signal === "good") this.#work += trueWorkOf(service);
    const pauseMs = signal === "overloaded" ? (this.#options.pauseMs ?? 0) : 0;
    if (pauseMs > 0) client.pausedUntilMs = this.#nowMs + pauseMs;
    client.policy.note({
      startedAtMs,
      endedAtMs: this.#nowMs,
      signal,
      work: service.work,
      inFlight,
      ahead,
      pauseMs,
    });
  }

  #serveWaiting(): void {
    while (this.#serving < this.#options.capacity(this.#nowMs)) {
      const request = this.#waiting[this.#firstWaiting];
      if (request === undefined) return;
      this.#firstWaiting++;
      if (this.#firstWaiting > 10_000) {
        this.#waiting.splice(0, this.#firstWaiting);
        this.#firstWaiting = 0;
      }
      this.#serve(request);
    }
  }
}

/** A binary heap, the earliest ending first. Endings at the same instant keep the order of their addition. */
class Endings {
  readonly #heap: Ending[] = [];

  get first(): Ending | undefined {
    return this.#heap[0];
  }

  add(ending: Ending): void {
    const heap = this.#heap;
    let at = heap.push(ending) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(ending, heap[parent]!)) break;
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = ending;
  }

  takeFirst(): Ending {
    const heap = this.#heap;
    const first = heap[0]!;
    const last = heap.pop()!;
    if (heap.length === 0) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!isBefore(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return first;
  }
}

const isBefore = (a: Ending, b: Ending) =>
  a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
