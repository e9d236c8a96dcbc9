/** Runs batchd like a user: in a process of its own, which a test can kill. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { killAtTestEnd } from "./leftovers.ts";
import { named } from "./waits.ts";

/** A test that looks at the modules that are loaded starts these. */
export const SOURCES = fileURLToPath(new URL("../../src/main.ts", import.meta.url));
const BUNDLE = process.env["BATCHD_TEST_BUNDLE"];
/** The sources, or a bundle of them where the run has made one (`bundle.ts`). */
export const MAIN = BUNDLE ?? SOURCES;
/** The environment with which `SOURCES` start as they do with `npm start`. */
export const AS_NPM_START = {
  NODE_OPTIONS: `--import=${new URL("../../scripts/without-types.js", import.meta.url)}`,
  NODE_DISABLE_COMPILE_CACHE: "1",
};
/** The compiled code, kept between starts. */
export const COMPILE_CACHE =
  BUNDLE === undefined
    ? fileURLToPath(new URL("../../node_modules/.cache/batchd-test", import.meta.url))
    : join(dirname(BUNDLE), "compiled");
/** The command for a shell. */
export const COMMAND = `env NODE_COMPILE_CACHE='${COMPILE_CACHE}' '${process.execPath}' '${MAIN}'`;

export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Limits the descriptors of the process to `OPEN_FILES`. */
const limitOf = ({ OPEN_FILES }: Readonly<Record<string, string>>) =>
  OPEN_FILES === undefined ? "" : `ulimit -n ${OPEN_FILES}; `;

/**
 * Traces the syncs of the process into the file `SYNCS_TO`. With `-D` the tracer is the child, and signals reach
 * batchd. With `FAULTY_FILE`, each thread has one of its first syncs of that file fail.
 */
function tracerOf({ SYNCS_TO, FAULTY_FILE }: Readonly<Record<string, string>>): string {
  if (SYNCS_TO === undefined) return "";
  const faults = "-e inject=fsync,fdatasync:error=EIO:when=30";
  const fault = FAULTY_FILE === undefined ? "" : `-P '${FAULTY_FILE}' ${faults} `;
  return `strace -D -f -y -e trace=fsync,fdatasync ${fault}-o '${SYNCS_TO}' `;
}

/** Gives the process the file `STDIN_FROM` as its standard input. */
const inputOf = ({ STDIN_FROM }: Readonly<Record<string, string>>) =>
  STDIN_FROM === undefined ? "" : ` < '${STDIN_FROM}'`;

export class BatchdProcess implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly #exited: Promise<Exit>;
  readonly #waiting: (() => void)[] = [];
  #hasEnded = false;
  #stdout = "";
  #stderr = "";

  constructor(
    args: readonly string[],
    env: Readonly<Record<string, string>> = {},
    script: string = MAIN,
  ) {
    const command = [process.execPath, script, ...args];
    const line = `${limitOf(env)}exec ${tracerOf(env)}"$0" "$@"${inputOf(env)}`;
    this.#child = spawn("sh", ["-c", line, ...command], {
      env: {
        ...process.env,
        ...([MAIN, SOURCES].includes(script) && { NODE_COMPILE_CACHE: COMPILE_CACHE }),
        ...env,
      },
      stdio: ["ignore", "pipe", "pipe"],
    });
    killAtTestEnd(this.#child);
    this.#child.stderr?.on("data", (text: Buffer) => {
      this.#stderr += text.toString();
      for (const check of this.#waiting.splice(0)) check();
    });
    this.#exited = once(this.#child, "close").then(([code, signal]) => {
      this.#hasEnded = true;
      for (const check of this.#waiting.splice(0)) check();
      return {
        code: code as number | null,
        signal: signal as NodeJS.Signals | null,
        stdout: this.#stdout,
        stderr: this.#stderr,
      };
    });
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  /** Resolves to the address, once the server accepts requests. */
  listening(): Promise<string> {
    return named(() => `the start of batchd, which has said:\n${this.#stderr}`, this.#listen());
  }

  async #listen(): Promise<string> {
    const lines = createInterface({ input: this.#child.stdout as NodeJS.ReadableStream });
    for await (const line of lines) {
      this.#stdout += `${line}\n`;
      const url = /^batchd listening on (http:\S+)$/.exec(line)?.[1];
      if (url !== undefined) return url;
    }
    throw new Error(`batchd did not start:\n${(await this.#exited).stderr}`);
  }

  /** Resolves to the exit. Standard output is complete unless {@link listening} was called. */
  exited(): Promise<Exit> {
    this.#child.stdout?.on("data", (text: Buffer) => {
      this.#stdout += text.toString();
    });
    return this.#exited;
  }

  /** Resolves once the log has this event. */
  logged(event: string): Promise<void> {
    return this.loggedLike(new RegExp(`"event":"${event}"`));
  }

  /** Resolves once the log has the end of the batch. */
  batchEnded(id: string): Promise<void> {
    const ends = "completed|failed|cancelled|expired";
    return this.loggedLike(new RegExp(`"batch":"${id}".*"event":"batch\\.(${ends})"`));
  }

  /** Resolves once a line of the log, as JSON, matches. Rejects when the process ends without one. */
  async loggedLike(pattern: RegExp): Promise<void> {
    while (!pattern.test(this.#stderr)) {
      if (this.#hasEnded) {
        throw new Error(`batchd ended before it logged ${pattern}:\n${this.#logEnd()}`);
      }
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#waiting.push(resolve);
      await named(() => `${pattern} in the log, which ends:\n${this.#logEnd()}`, promise);
    }
  }

  #logEnd(): string {
    return this.#stderr.slice(-4_000);
  }

  /** Resolves to the peak memory during `work`. Linux only. */
  async peakMemoryBytes(work: () => Promise<unknown>): Promise<number> {
    const folder = `/proc/${this.#child.pid}`;
    // The write resets the peak to the memory in use, because the start takes much that it gives back.
    await writeFile(`${folder}/clear_refs`, "5");
    await work();
    const status = await readFile(`${folder}/status`, "utf8");
    return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<Exit> {
    this.#child.kill(signal);
    const describe = () => `the end of batchd after ${signal}; its log ends:\n${this.#logEnd()}`;
    return named(describe, this.#exited);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) await this.kill();
  }
}
