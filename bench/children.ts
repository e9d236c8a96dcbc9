/**
 * Runs the processes of the bench. Upstream, server and driver are separate processes, as in production, so that none
 * uses the time or memory of another. {@link Children.killAll} must end all of them, whatever happens.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, openSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const START_LIMIT_MS = 20_000;
const LOG_END_CHARACTERS = 2_000;

export interface Listening {
  readonly pid: number;
  readonly url: string;
  /** The time from the spawn to the line with the address. */
  readonly startMs: number;
  kill(): Promise<void>;
}

export class Children {
  readonly #running = new Set<ChildProcess>();
  /** The file for the standard error of the children. */
  readonly #logPath: string;

  constructor(logPath: string) {
    this.#logPath = logPath;
  }

  /** Starts a server, and resolves once it prints `listening on URL`. `nodeFlags` stand before the script. */
  async listen(
    script: URL,
    args: readonly string[],
    nodeFlags: readonly string[] = [],
  ): Promise<Listening> {
    const startedAtMs = performance.now();
    const child = this.#spawn([...nodeFlags, fileURLToPath(script), ...args]);
    const url = await Promise.race([
      addressFrom(child),
      once(child, "exit").then(() => this.#fail(script, "ended before it listened")),
      delay(START_LIMIT_MS, undefined, { ref: false }).then(() =>
        this.#fail(script, "does not listen"),
      ),
    ]);
    const startMs = performance.now() - startedAtMs;
    return { pid: child.pid ?? 0, url, startMs, kill: () => kill(child) };
  }

  /** Runs a measurement, which prints one JSON value and ends. */
  async measure<T>(script: URL, args: readonly string[]): Promise<T> {
    const child = this.#spawn([fileURLToPath(script), ...args]);
    let printed = "";
    child.stdout?.setEncoding("utf8").on("data", (text: string) => {
      printed += text;
    });
    const [code] = await once(child, "close");
    if (code !== 0) this.#fail(script, `ended with exit code ${code}`);
    return JSON.parse(printed) as T;
  }

  async killAll(): Promise<void> {
    await Promise.all([...this.#running].map(kill));
  }

  #spawn(args: readonly string[]): ChildProcess {
    const log = openSync(this.#logPath, "a");
    const child = spawn(process.execPath, args, {
      stdio: ["ignore", "pipe", log],
      env: withoutBatchdSettings(process.env),
    });
    closeSync(log);
    this.#running.add(child);
    child.once("exit", () => this.#running.delete(child));
    return child;
  }

  #fail(script: URL, what: string): never {
    const log = readFileSync(this.#logPath, "utf8").slice(-LOG_END_CHARACTERS);
    throw new Error(`${fileURLToPath(script)} ${what}. The log of the children ends with:\n${log}`);
  }
}

function addressFrom(child: ChildProcess): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  if (child.stdout === null) throw new Error("the child has no standard output");
  createInterface({ input: child.stdout }).on("line", (line) => {
    const url = /listening on (http:\S+)/.exec(line)?.[1];
    if (url !== undefined) resolve(url);
  });
  return promise;
}

/** Kills a child at once, because it has nothing to finish. */
async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
}

/** Removes the settings of this shell, because only the configuration of the bench may count. */
const withoutBatchdSettings = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith("BATCHD_")));
