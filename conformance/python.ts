/**
 * Runs the official Python client and schemathesis in a virtual environment, which is made once and kept with the other
 * caches. Without Python these checks do not run, and the report says so.
 */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { closeSync, existsSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);

const here = (name: string) => fileURLToPath(new URL(name, import.meta.url));
const REQUIREMENTS = here("python/requirements.txt");
const CHECKS = here("python/checks.py");
const VENV = here("../node_modules/.cache/conformance-venv");

export type PythonSetup =
  | { readonly kind: "ready"; readonly python: Python }
  /** The machine has no `python3`, so these checks cannot be expected. */
  | { readonly kind: "absent"; readonly why: string }
  /** The machine has Python, but the environment could not be made. */
  | { readonly kind: "broken"; readonly why: string };

export async function setUpPython(): Promise<PythonSetup> {
  const version = await run("python3", ["--version"]).catch(() => null);
  if (version === null) return { kind: "absent", why: "there is no python3" };
  try {
    await makeEnvironment();
    return { kind: "ready", python: new Python() };
  } catch (error) {
    const { stderr, message } = error as { stderr?: string; message: string };
    return { kind: "broken", why: (stderr || message).trim() };
  }
}

/** Installs the requirements, unless this version of them is already there. */
async function makeEnvironment(): Promise<void> {
  const stamp = join(VENV, "made-of");
  const wanted = createHash("sha256").update(readFileSync(REQUIREMENTS)).digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return;
  await run("python3", ["-m", "venv", "--clear", VENV]);
  const quietly = ["--quiet", "--disable-pip-version-check", "--no-input"];
  await run(join(VENV, "bin/pip"), ["install", ...quietly, "-r", REQUIREMENTS]);
  writeFileSync(stamp, wanted);
}

interface Verdict {
  readonly id: number;
  /** The fault; null when the check held. */
  readonly problem: string | null;
}

/** Runs all checks in one process, because the start of the client takes longer than most of them. */
export class Python implements Disposable {
  readonly #waiting = new Map<number, (problem: string | null) => void>();
  #child: ChildProcess | null = null;
  #lastId = 0;

  async check(name: string, args: Readonly<Record<string, unknown>>): Promise<void> {
    this.#child ??= this.#start();
    const id = ++this.#lastId;
    const { promise, resolve } = Promise.withResolvers<string | null>();
    this.#waiting.set(id, resolve);
    this.#child.stdin?.write(`${JSON.stringify({ id, name, args })}\n`);
    const problem = await promise;
    if (problem !== null) throw new Error(problem);
  }

  /** Runs a program of the environment in a folder, to its end. Its output goes to a file. */
  async program(
    name: string,
    args: readonly string[],
    { folder, logPath }: { readonly folder: string; readonly logPath: string },
  ): Promise<void> {
    const log = openSync(logPath, "w");
    const child = spawn(join(VENV, "bin", name), args, {
      cwd: folder,
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    child.once("error", reject).once("close", () => resolve());
    await promise;
  }

  #start(): ChildProcess {
    const child = spawn(join(VENV, "bin/python"), [CHECKS], { stdio: ["pipe", "pipe", "inherit"] });
    createInterface({ input: child.stdout }).on("line", (text) => {
      const { id, problem } = JSON.parse(text) as Verdict;
      this.#waiting.get(id)?.(problem);
      this.#waiting.delete(id);
    });
    child.once("close", () => {
      for (const settle of this.#waiting.values()) settle("the Python process ended");
    });
    return child;
  }

  [Symbol.dispose](): void {
    this.#child?.stdin?.end();
  }
}

// Two runs side by side must not both make it.
if (import.meta.main) await setUpPython();
