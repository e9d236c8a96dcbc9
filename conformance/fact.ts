/**
 * Defines a fact: one statement of the contract, with the check that fails when it no longer holds. `strong` facts were
 * seen on the wire, in the official document or in the official clients. `weak` ones are second-hand.
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Context } from "./context.ts";

type Evidence = "strong" | "weak";

export interface Fact {
  /** A stable id, because people refer to it. It begins with the number of its section. */
  readonly id: string;
  /** The statement in Markdown, for a table. */
  readonly claim: string;
  readonly evidence: Evidence;
  /** The way of the check, as the document names it. */
  readonly means: string;
  readonly needsPython: boolean;
  /** It is true when batchd differs from the contract on purpose. The check then shows the difference. */
  readonly isDifference: boolean;
  readonly check: Check;
}

/** Throws the fault. */
export type Check = (context: Context) => Promise<void> | void;

/** The error of a check that this machine cannot make. */
export class NotHere extends Error {}

export interface Section {
  readonly number: string;
  readonly title: string;
  readonly facts: readonly Fact[];
}

/** A check that needs more than the address of the server. */
interface PythonCheck {
  readonly name: string;
  readonly args: (context: Context) => Promise<Readonly<Record<string, unknown>>>;
}

type Writer = (id: string, claim: string, check: Check) => Fact;

interface Writers {
  /** A check by ordinary requests. */
  readonly http: Writer;
  /** A check by bytes on a socket, which no library would send. */
  readonly raw: Writer;
  readonly node: Writer;
  /** A check by a function of python/checks.py, by its name. */
  readonly python: (id: string, claim: string, check: string | PythonCheck) => Fact;
  /** A check by requests that schemathesis makes from openapi.yaml. */
  readonly schema: Writer;
  readonly fuzz: Writer;
  /** A check by a test, for a fact that needs its own clock or a killed process. The value is the title of the test. */
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
  // Prettier lays some calls out over several lines. A skipped test proves nothing, so it must not match.
  const written = title.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  if (new RegExp(`\\btest(?:\\.each\\b[^;]*?)?\\(\\s*["'\`]${written}["'\`]`).test(text)) return;
  throw new Error(`${file} has no test with the title "${title}"`);
}
