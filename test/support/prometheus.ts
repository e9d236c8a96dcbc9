/** Parses the text format of Prometheus, and throws for what Prometheus would refuse. */

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

interface Family {
  readonly type: string;
  readonly help: string;
}

export class Scrape {
  readonly families = new Map<string, Family>();
  readonly samples: Sample[] = [];
  readonly #seen = new Set<string>();

  constructor(text: string) {
    if (!text.endsWith("\n")) throw new Error("the last line has no end");
    const helps = new Map<string, string>();
    for (const line of text.split("\n")) {
      const [, kind, name = "", rest = ""] = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line) ?? [];
      if (kind === "HELP") helps.set(name, rest);
      else if (kind === "TYPE") this.#declare(name, { type: rest, help: helps.get(name) ?? "" });
      else if (line !== "") this.#add(line);
    }
    for (const [name, { type }] of this.families)
      if (type === "histogram") this.#checkBuckets(name);
  }

  /** Returns the samples that have these labels, perhaps among others. */
  find(name: string, labels: Sample["labels"] = {}): Sample[] {
    return this.samples.filter(
      (sample) =>
        sample.name === name &&
        Object.entries(labels).every(([label, value]) => sample.labels[label] === value),
    );
  }

  /** Returns the sum of {@link find}. */
  value(name: string, labels: Sample["labels"] = {}): number {
    return this.find(name, labels).reduce((sum, { value }) => sum + value, 0);
  }

  #declare(name: string, family: Family): void {
    if (this.families.has(name)) throw new Error(`${name} is declared twice`);
    if (family.help === "") throw new Error(`${name} has no help`);
    this.families.set(name, family);
  }

  #add(line: string): void {
    const [, name = "", labels = "", value = ""] =
      /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    const parsed = { name, labels: labelsOf(labels), value: numberOf(value) };
    const key = line.slice(0, line.lastIndexOf(" "));
    if (this.#seen.has(key)) throw new Error(`there are two samples of ${key}`);
    this.#seen.add(key);
    const family = name.replace(/_(?:bucket|sum|count)$/, "");
    if (name === "" || !(this.families.has(name) || this.families.has(family))) {
      throw new Error(`not a sample of a declared metric: ${line}`);
    }
    this.samples.push(parsed);
  }

  #checkBuckets(name: string): void {
    for (const { labels, value: count } of this.find(`${name}_count`)) {
      const buckets = this.find(`${name}_bucket`, labels);
      const isSorted = buckets.every(({ value }, i) => value >= (buckets[i - 1]?.value ?? 0));
      const last = buckets.at(-1);
      if (!isSorted || last?.labels["le"] !== "+Inf" || last.value !== count) {
        throw new Error(`the buckets of ${name} do not add up`);
      }
    }
  }
}

function labelsOf(text: string): Record<string, string> {
  const pairs = [...text.matchAll(/([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"(?:,|$)/g)];
  if (pairs.map(([whole]) => whole).join("") !== text) throw new Error(`not labels: ${text}`);
  return Object.fromEntries(pairs.map(([, name, value]) => [name, value]));
}

/** Parses a number like Go. */
function numberOf(text: string): number {
  if (/^[+-]?inf$/i.test(text)) return text.startsWith("-") ? -Infinity : Infinity;
  if (/^nan$/i.test(text)) return Number.NaN;
  const value = Number(text);
  if (text === "" || Number.isNaN(value)) throw new Error(`not a number: ${text}`);
  return value;
}

/** Resolves once so many requests and lines wait for a slot of the only upstream. */
export async function waitingCount(url: string, count: number): Promise<void> {
  const expected = new RegExp(`^batchd_upstream_waiting\\{.*\\} ${count}$`, "m");
  while (!expected.test(await (await fetch(`${url}/metrics`)).text()));
}
