/**
 * A fact is one thing that the contract says, together with the check that would fail if it were no longer so.
 * `strong` facts were seen on the wire, in the official document or in the official clients; `weak` ones are second-hand.
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Context } from "./context.ts";

type Evidence = "strong" | "weak";

export interface Fact {
  /** Stable: people refer to it. Begins with the number of its section. */
  readonly id: string;
  /** Markdown, in a table. */
  readonly claim: string;
  readonly evidence: Evidence;
  /** How it is checked, as the document tells it. */
  readonly means: string;
  readonly needsPython: boolean;
  /** The contract says it, batchd does something else on purpose, and the check shows what. */
  readonly isDifference: boolean;
  readonly check: Check;
}

/** Throws what is wrong. */
export type Check = (context: Context) => Promise<void> | void;

/** Thrown by a check that this machine cannot make. */
export class NotHere extends Error {}

export interface Section {
  readonly number: string;
  readonly title: string;
  readonly facts: readonly Fact[];
}

/** A check that is to know more than where the server is. */
interface PythonCheck {
  readonly name: string;
  readonly args: (context: Context) => Promise<Readonly<Record<string, unknown>>>;
}

type Writer = (id: string, claim: string, check: Check) => Fact;

interface Writers {
  /** An ordinary request. */
  readonly http: Writer;
  /** Bytes on a socket, which no library would send. */
  readonly raw: Writer;
  readonly node: Writer;
  /** A function of python/checks.py, by its name. */
  readonly python: (id: string, claim: string, check: string | PythonCheck) => Fact;
  /** Requests that schemathesis makes from openapi.yaml. */
  readonly schema: Writer;
  readonly fuzz: Writer;
  /** The title of a test, for what needs a clock of its own or a process that is killed. */
  readonly test: (id: string, claim: string, place: { file: string; title: string }) => Fact;
}

function writersFor(evidence: Evidence): Writers {
  const by =
    (means: string, needsPython = false): Writer =>
    (id, claim, check) => ({
      id,
      claim,
      evidence,
      means,
      needsPython,
      isDifference: false,
      check,
    });
  return {
    http: by("http"),
    raw: by("raw"),
    node: by("node sdk"),
    python: (id, claim, check) =>
      by("python sdk", true)(id, claim, async (context) => {
        const { name, args } =
          typeof check === "string" ? { name: check, args: async () => ({}) } : check;
        await context.python.check(name, { url: context.main.url, ...(await args(context)) });
      }),
    schema: by("schema", true),
    fuzz: by("fuzz"),
    test: (id, claim, { file, title }) =>
      by(`[test](../${file}): ${title}`)(id, claim, () => assertTestExists(file, title)),
  };
}

export const strong = writersFor("strong");
export const weak = writersFor("weak");

export const differs = (fact: Fact): Fact => ({ ...fact, isDifference: true });

function assertTestExists(file: string, title: string): void {
  const text = readFileSync(fileURLToPath(new URL(`../${file}`, import.meta.url)), "utf8");
  // Prettier lays some calls out over several lines; a skipped test proves nothing.
  const written = title.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  if (new RegExp(`\\btest(?:\\.each\\b[^;]*?)?\\(\\s*["'\`]${written}["'\`]`).test(text)) return;
  throw new Error(`${file} has no test with the title "${title}"`);
}
