/** Reads the metrics that the server offers to Prometheus. */

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Returns the samples of metrics whose names begin so. */
export function samplesOf(text: string, prefix: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith(prefix)) continue;
    const [, name = "", labels = "", value = ""] = LINE.exec(line) ?? [];
    if (name !== "") samples.push({ name, labels: labelsOf(labels), value: Number(value) });
  }
  return samples;
}

const labelsOf = (text: string): Record<string, string> =>
  Object.fromEntries(
    [...text.matchAll(LABEL)].map(([, name = "", value = ""]) => [
      name,
      value.replaceAll(/\\(.)/g, (_, character: string) => (character === "n" ? "\n" : character)),
    ]),
  );
