/** Starts servers as child processes, and waits until they print their address. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createWriteStream } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";

const START_LIMIT_MS = 15_000;
const STOP_LIMIT_MS = 5_000;

export interface ServerProcess {
  readonly url: string;
  stop(): Promise<void>;
}

interface StartOptions {
  readonly name: string;
  /** A script of this repository and its arguments. */
  readonly command: readonly string[];
  /** The file for the standard error of the server. */
  readonly logPath: string;
}

/** The running children, which the end of the demo stops. */
const running = new Set<ChildProcess>();
// No server may outlive the demo, however it ends.
process.once("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

export async function startServer({
  name,
  command,
  logPath,
}: StartOptions): Promise<ServerProcess> {
  const child = spawn(process.execPath, command, {
    stdio: ["ignore", "pipe", "pipe"],
    env: withoutBatchdSettings(process.env),
  });
  running.add(child);
  child.once("exit", () => running.delete(child));
  child.stderr.pipe(createWriteStream(logPath));
  const url = await Promise.race([
    addressFrom(child),
    once(child, "exit").then(([code, signal]) => {
      throw new Error(`${name} ended before it was ready (${signal ?? `exit code ${code}`}).`);
    }),
    delay(START_LIMIT_MS, undefined, { ref: false }).then(() => {
      throw new Error(`${name} was not ready after ${START_LIMIT_MS / 1000} s.`);
    }),
  ]);
  return { url, stop: () => stop(child) };
}

export async function stopServers(): Promise<void> {
  await Promise.all([...running].map(stop));
}

async function addressFrom(child: ChildProcess): Promise<string> {
  if (child.stdout === null) throw new Error("the child has no standard output");
  // The end of a `for await` would close the pipe, and the server would fail at its next line.
  const lines = createInterface({ input: child.stdout });
  return new Promise((resolve) => {
    lines.on("line", (line) => {
      const url = /listening on (http:\S+)/.exec(line)?.[1];
      if (url !== undefined) resolve(url);
    });
  });
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_LIMIT_MS);
  await ended;
  clearTimeout(timer);
}

/** Removes the settings of this shell, because the demo shows the defaults. */
const withoutBatchdSettings = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith("BATCHD_")));
