/**
 * Writes metrics in the text format of Prometheus. With 10,000 projects there are 70,000 values, which take prom-client
 * 0.4 s in one turn of the event loop. They are therefore written in slices.
 */
import type { Registry } from "prom-client";
import { inSlices } from "../resources/time-slice.ts";

interface Value {
  readonly value: number;
  readonly labels?: Readonly<Record<string, string | number | undefined>>;
  /** The name of a part of a histogram. */
  readonly metricName?: string;
}

/** What every metric of prom-client has, beside what its types say. */
interface Readable {
  get(): Promise<{
    readonly name: string;
    readonly help: string;
    readonly type: unknown;
    readonly values: readonly Value[];
  }>;
}

export async function textOf(registry: Registry): Promise<string> {
  const pieces: string[] = [];
  for (const metric of registry.getMetricsAsArray() as unknown as readonly Readable[]) {
    const { name, help, type, values } = await metric.get();
    pieces.push(`# HELP ${name} ${escaped(help)}\n# TYPE ${name} ${type}\n`);
    for await (const group of inSlices(values)) {
      pieces.push(group.map((value) => lineOf(name, value)).join(""));
    }
    pieces.push("\n");
  }
  return pieces.join("");
}

function lineOf(name: string, { value, labels = {}, metricName = name }: Value): string {
  const parts = Object.entries(labels).map(
    ([label, text]) => `${label}="${escaped(String(text)).replaceAll('"', '\\"')}"`,
  );
  const set = parts.length === 0 ? "" : `{${parts.join(",")}}`;
  return `${metricName}${set} ${numberText(value)}\n`;
}

const escaped = (text: string) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");

const numberText = (value: number): string => {
  if (Math.abs(value) === Number.POSITIVE_INFINITY) return value > 0 ? "+Inf" : "-Inf";
  return String(value);
};
