/**
 * A histogram for tens of thousands of observations a second.
 *
 * prom-client checks the labels, hashes them and finds the bucket by name for each value, which takes five times as
 * long. Here the caller keeps the buckets of its labels, and only a scrape makes text.
 */
import type { MetricObjectWithValues, MetricType, MetricValueWithName } from "prom-client";

interface Described {
  readonly name: string;
  readonly help: string;
  readonly labelNames: readonly string[];
  /** The upper bounds, ascending. */
  readonly buckets: readonly number[];
}

/** The observed values of one set of labels. */
export class Observations {
  readonly labels: Readonly<Record<string, string>>;
  readonly #bounds: readonly number[];
  /** The counts of the buckets, not cumulative. The last bucket lies beyond all bounds. */
  readonly #counts: number[];
  #count = 0;
  #sum = 0;

  constructor(labels: Readonly<Record<string, string>>, bounds: readonly number[]) {
    this.labels = labels;
    this.#bounds = bounds;
    this.#counts = new Array<number>(bounds.length + 1).fill(0);
  }

  observe(value: number): void {
    const bounds = this.#bounds;
    let bucket = 0;
    while (bucket < bounds.length && value > (bounds[bucket] as number)) bucket++;
    this.#counts[bucket] = (this.#counts[bucket] as number) + 1;
    this.#count++;
    this.#sum += value;
  }

  /** The counts of the buckets that have any, by upper bound; null stands for the bucket beyond all bounds. */
  get buckets(): (readonly [upToSeconds: number | null, count: number])[] {
    return this.#counts.flatMap((count, at) =>
      count === 0 ? [] : [[this.#bounds[at] ?? null, count] as const],
    );
  }

  get isEmpty(): boolean {
    return this.#count === 0;
  }

  /** Returns the lines of the text format. */
  valuesOf(name: string): MetricValueWithName<string>[] {
    let count = 0;
    const buckets = this.#counts.map((added, bucket) => {
      count += added;
      const labels = { le: this.#bounds[bucket] ?? "+Inf", ...this.labels };
      return { metricName: `${name}_bucket`, labels, value: count };
    });
    const { labels } = this;
    return [
      ...buckets,
      { metricName: `${name}_sum`, labels, value: this.#sum },
      { metricName: `${name}_count`, labels, value: this.#count },
    ];
  }
}

/** A metric to register with prom-client, which reads its name and its values. */
export class AttemptHistogram {
  readonly name: string;
  readonly #described: Described;
  readonly #observations: Observations[] = [];

  constructor(described: Described) {
    this.name = described.name;
    this.#described = described;
  }

  /** Returns the observations of one set of labels. Callers call this once for each set, and keep the result. */
  labels(...values: readonly string[]): Observations {
    const { labelNames, buckets } = this.#described;
    const labels = Object.fromEntries(labelNames.map((label, i) => [label, values[i] ?? ""]));
    const observations = new Observations(labels, buckets);
    this.#observations.push(observations);
    return observations;
  }

  async get(): Promise<Omit<MetricObjectWithValues<MetricValueWithName<string>>, "collect">> {
    const { name, help } = this.#described;
    // The type demands a number here, but the text needs the word.
    const type = "histogram" as unknown as MetricType;
    const observed = this.#observations.filter((each) => !each.isEmpty);
    const values = observed.flatMap((each) => each.valuesOf(name));
    return { name, help, type, values, aggregator: "sum" };
  }
}
