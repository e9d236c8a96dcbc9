/**
 * `npm run conformance`: checks a running batchd against every fact of the contract and writes docs/conformance.md.
 *
 * `--check` writes nothing and fails when the page is out of date. `--requests N` makes the fuzzer send N requests, and
 * `--seed N` the same ones again. `--only 2.6` runs the facts whose ids begin with it. `--postgres` runs everything on
 * PostgreSQL, and `--s3` with files in a bucket. Such a run makes fewer requests up, because the reading of a request does
 * not know the store: the run on one machine makes all of them.
 */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { setup, teardown } from "../test/support/data-root.ts";
import { startPostgres } from "../test/support/postgres.ts";
import { hasS3Server, startS3Server } from "../test/support/s3-server.ts";
import { scriptOptions } from "../test/support/script-options.ts";
import { Context } from "./context.ts";
import { type Fact, NotHere, type Section } from "./fact.ts";
import { failFirstDelivery } from "./facts/webhooks.ts";
import { readSections } from "./facts.ts";
import { FuzzRun } from "./fuzz.ts";
import { type PythonSetup, setUpPython } from "./python.ts";
import { type Result, scoreOf, toLine, toMarkdown, toProblems, withoutUnknown } from "./report.ts";
import { SchemaRun } from "./schema.ts";
import { useBackends } from "./server.ts";

const PAGE = fileURLToPath(new URL("../docs/conformance.md", import.meta.url));

const USAGE =
  "npm run conformance -- [--check] [--only SECTION] [--requests N] [--seed N] [--postgres] [--s3]";

const { values: options } = scriptOptions(USAGE, {
  options: {
    check: { type: "boolean", default: false },
    requests: { type: "string" },
    seed: { type: "string", default: "1" },
    only: { type: "string", default: "" },
    postgres: { type: "boolean", default: false },
    s3: { type: "boolean", default: false },
  },
});

const isElsewhere = options.postgres || options.s3;
/** The requests of the fuzzer, and the examples of schemathesis for each operation. */
const requestCount = Number(options.requests ?? (isElsewhere ? 500 : 5_000));
const maxExamples = isElsewhere ? 2 : 20;

const say = (text: string) => process.stdout.write(`${text}\n`);

/** Without one of the servers that are asked for, the run has the other one, and says what is missing. */
async function main(): Promise<void> {
  setup();
  process.once("exit", teardown);
  await using servers = new AsyncDisposableStack();
  const postgres = options.postgres
    ? await startPostgres("the conformance of a server on PostgreSQL")
    : null;
  const s3 = options.s3 && hasS3Server() ? await startS3Server() : null;
  if (postgres !== null) servers.use(postgres);
  if (s3 !== null) servers.use(s3);
  const isLeftOut = isElsewhere && postgres === null && s3 === null;
  if (isLeftOut) return;
  useBackends({ postgres, s3 });
  await run();
}

async function run(): Promise<void> {
  const seed = Number(options.seed);
  const runName = isElsewhere ? "elsewhere" : "here";
  const schema = new SchemaRun({ seed, runName, maxExamples });
  const fuzz = new FuzzRun({ requestCount, seed });
  const sections = only(readSections({ schema, fuzz }), options.only);
  const settingUp = setUpPython();
  await using context = await Context.open();
  beginEarly(context);
  using runner = new Runner(context, settingUp, schema);
  for (const section of sections) {
    for (const fact of section.facts) await runner.run(fact);
    say(toLine(section, runner.results));
  }
  say(`\n${scoreOf(sections, runner.results)}`);
  // The problems come last, where a log that is cut still has them.
  for (const text of toProblems(sections, runner.results)) say(text);
  const isHeld = ![...runner.results.values()].some(({ kind }) => kind === "fails");
  const isInStep = options.only !== "" || settle(toMarkdown(sections, runner.results), runner);
  process.exitCode = isHeld && isInStep && !(await isPythonOwed(settingUp)) ? 0 : 1;
}

/** Starts the slow stories, so that no fact has to wait for them later. */
function beginEarly(context: Context): void {
  context.stories.begin();
  failFirstDelivery(context).catch(() => {});
}

const only = (sections: readonly Section[], beginning: string): Section[] =>
  sections
    .map((section) => ({
      ...section,
      facts: section.facts.filter(({ id }) => id.startsWith(beginning)),
    }))
    .filter(({ facts }) => facts.length > 0);

class Runner implements Disposable {
  readonly results = new Map<string, Result>();
  readonly #context: Context;
  readonly #settingUp: Promise<PythonSetup>;
  #setup: PythonSetup | null = null;

  constructor(context: Context, settingUp: Promise<PythonSetup>, schema: SchemaRun) {
    this.#context = context;
    this.#settingUp = settingUp;
    // The generated requests take longest, so they begin before their turn.
    void settingUp.then((setup) => {
      if (setup.kind === "ready") schema.begin(setup.python);
    });
  }

  async run(fact: Fact): Promise<void> {
    if (this.results.has(fact.id)) throw new Error(`two facts are called ${fact.id}`);
    this.results.set(fact.id, await this.#resultOf(fact));
  }

  async #resultOf(fact: Fact): Promise<Result> {
    if (fact.needsPython && !(await this.#hasPython())) return { kind: "not run here" };
    try {
      await fact.check(this.#context);
      return { kind: fact.isDifference ? "differs" : "holds" };
    } catch (error) {
      if (error instanceof NotHere) return { kind: "not run here" };
      return { kind: "fails", problem: problemOf(error) };
    }
  }

  async #hasPython(): Promise<boolean> {
    if (this.#setup === null) {
      this.#setup = await this.#settingUp;
      if (this.#setup.kind === "ready") this.#context.python = this.#setup.python;
      else complainAbout(this.#setup.why);
    }
    return this.#setup.kind === "ready";
  }

  [Symbol.dispose](): void {
    if (this.#setup?.kind === "ready") this.#setup.python[Symbol.dispose]();
  }
}

function problemOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const place = /conformance\/[\w/.-]+:\d+/.exec(error.stack ?? "")?.[0] ?? "";
  return `${error.message}\n${place}`;
}

const complainAbout = (why: string) =>
  say(`\n  !!  Python cannot be used, so its facts are NOT RUN HERE:\n      ${why}\n`);

/** An installed Python has to work in CI. */
async function isPythonOwed(settingUp: Promise<PythonSetup>): Promise<boolean> {
  if (process.env["CI"] !== "true" || (await settingUp).kind !== "broken") return false;
  say("There is a python3, and it could not be used: in CI that is a failure.");
  return true;
}

/** Writes the page, or reports whether it is up to date. */
function settle(page: string, { results }: Runner): boolean {
  const committed = existsSync(PAGE) ? readFileSync(PAGE, "utf8") : "";
  if (!options.check) {
    if (page !== committed) writeFileSync(PAGE, page);
    return true;
  }
  if (withoutUnknown(page, results) === withoutUnknown(committed, results)) return true;
  say("docs/conformance.md is out of step: run `npm run conformance`");
  return false;
}

await main();
