/** Writes the results of a run: docs/conformance.md, and lines for a terminal. */
import type { Section } from "./fact.ts";

export type Result =
  | { readonly kind: "holds" }
  /** The result, as the row shows it. */
  | { readonly kind: "differs" }
  | { readonly kind: "fails"; readonly problem: string }
  | { readonly kind: "not run here" };

export type Results = ReadonlyMap<string, Result>;

const HEAD = `# Conformance

Each row is one fact about what batchd does on the wire, checked against a running batchd. Sections 1 to 11 are the
contract of the OpenAI Batch API and its clients; after them come another client that has to work unchanged, what
holds for generated requests, and what batchd does otherwise on purpose. The page is written by
\`npm run conformance\`, row by row from the checks themselves; \`npm test\` fails when a fact no longer holds or this
page is out of step.

*Evidence* is \`strong\` for what was seen on the wire, stands in OpenAI's API document or is relied on by the official
clients, and \`weak\` for what is second-hand or an inference. *Checked by* is how: \`http\` (an ordinary request), \`raw\`
(bytes on a socket), \`node sdk\` and \`python sdk\` (the official clients, unchanged), \`schema\` (requests that
schemathesis generates from \`openapi.yaml\`), \`fuzz\` (broken requests in the thousands), or the test that is named, for
what needs a clock or a kill. *Result* \`differs\` marks what batchd does otherwise on purpose
([\`compatibility.md\`](compatibility.md) says why): the row says how, and is checked like all others.
`;

export function toMarkdown(sections: readonly Section[], results: Results): string {
  const tables = sections.map((section) => tableOf(section, results));
  return `${[HEAD, ...tables, `## Score\n\n${scoreOf(sections, results)}`].join("\n")}\n`;
}

function tableOf({ number, title, facts }: Section, results: Results): string {
  const rows = facts.map(
    ({ id, claim, evidence, means }) =>
      `| ${id} | ${claim} | ${evidence} | ${means} | ${results.get(id)?.kind} |`,
  );
  const head = `| Fact | What | Evidence | Checked by | Result |\n|---|---|---|---|---|`;
  return `## ${number} ${title}\n\n${head}\n${rows.join("\n")}\n`;
}

const count = (sections: readonly Section[], results: Results, kind: Result["kind"]) =>
  sections.flatMap(({ facts }) => facts).filter(({ id }) => results.get(id)?.kind === kind).length;

export function scoreOf(sections: readonly Section[], results: Results): string {
  const facts = sections.flatMap((section) => section.facts);
  const differences = facts.filter(({ isDifference }) => isDifference).length;
  const notRun = count(sections, results, "not run here");
  return [
    `${count(sections, results, "holds")} of ${facts.length - differences} facts hold.`,
    ...(differences === 0 ? [] : [`${differences} more are done otherwise on purpose.`]),
    ...(notRun === 0 ? [] : [`${notRun} were not run here.`]),
  ].join(" ");
}

/** Returns the line of a section. */
export function toLine(section: Section, results: Results): string {
  const one = [section];
  const held = count(one, results, "holds") + count(one, results, "differs");
  const score = `${held} of ${section.facts.length}`;
  const notRun = count(one, results, "not run here");
  const line = `${section.number.padStart(5)}  ${section.title.padEnd(46)} ${score.padStart(9)}`;
  return notRun === 0 ? line : `${line}   (${notRun} not run here)`;
}

/** Returns the lines with all details of the facts that fail. */
export const toProblems = (sections: readonly Section[], results: Results): string[] =>
  sections
    .flatMap(({ facts }) => facts)
    .flatMap(({ id, claim, means }) => {
      const result = results.get(id);
      if (result?.kind !== "fails") return [];
      const problem = result.problem.trimEnd().replaceAll("\n", "\n     ");
      return [`   ✗ ${id} (${means})`, `     ${claim}`, `     ${problem}`];
    });

/** Takes the results of rows that did not run from the existing page, because this machine knows nothing about them. */
export function withoutUnknown(markdown: string, results: Results): string {
  const unknown = new Set(
    [...results].filter(([, { kind }]) => kind === "not run here").map(([id]) => id),
  );
  if (unknown.size === 0) return markdown;
  return markdown
    .split("\n")
    .filter((row) => !/^\d+ of \d+ facts hold/.test(row))
    .map((row) => (unknown.has(row.split(" ")[1] ?? "") ? row.replace(/[^|]*\|$/, "|") : row))
    .join("\n");
}
