/**
 * The processes of the bench. Upstream, server and driver are three, as in life, so that none spends another's
 * time or memory. Whatever happens, {@link Children.killAll} leaves none behind.
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
  /** From the spawn to the line that says where it listens. */
  readonly startMs: number;
  kill(): Promise<void>;
}

export class Children {
  readonly #running = new Set<ChildProcess>();
  /** Takes what the children write to standard error. */
  readonly #logPath: string;

  constructor(logPath: string) {
    this.#logPath = logPath;
  }

  /** A server, once it says `listening on URL`. `nodeFlags` stand before the script. */
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

  /** A measurement that prints one JSON value and ends. */
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

/** Nothing that runs here is worth a grace period. */
async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
}

/** Only what the bench configures itself counts, whatever is set in this shell. */
const withoutBatchdSettings = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith("BATCHD_")));
