/**
 * Runs a command of batchd in the process of the test: a third of a second of processor time less than a process of its own.
 * For tests of what a command asks, says and returns. Signals, pipes, terminals and standard input need a `BatchdProcess`.
 */
import type { EventEmitter } from "node:events";
import { runCli } from "../../src/cli/cli.ts";
import type { Exit } from "./process.ts";

/** Standard output and the environment belong to one command at a time. */
let latest: Promise<unknown> = Promise.resolve();

/** Resolves to the exit. The command has the variables beside those of the test. */
export function runCommand(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<Exit> {
  const exit = latest.then(() => run(args, env));
  latest = exit.catch(() => {});
  return exit;
}

async function run(args: readonly string[], env: Readonly<Record<string, string>>): Promise<Exit> {
  using stdout = new Captured(process.stdout);
  using stderr = new Captured(process.stderr);
  // A listener that stays would keep the process from its end by a signal.
  using listeners = new DisposableStack();
  for (const name of ["SIGINT", "SIGTERM", "SIGHUP", "error"])
    listeners.use(forgettingListeners(process, name));
  for (const stream of [process.stdout, process.stderr]) {
    for (const name of ["error", "drain"]) listeners.use(forgettingListeners(stream, name));
  }
  const before = { ...process.env };
  Object.assign(process.env, env);
  try {
    const code = await runCli([process.execPath, "batchd", ...args]);
    return { code, signal: null, stdout: stdout.text, stderr: stderr.text };
  } finally {
    for (const name of Object.keys(env)) delete process.env[name];
    Object.assign(process.env, before);
  }
}

/** Takes off the listeners that were added meanwhile. */
function forgettingListeners(emitter: EventEmitter, event: string): Disposable {
  const before = new Set<unknown>(emitter.listeners(event));
  return {
    [Symbol.dispose]: () => {
      for (const listener of emitter.listeners(event)) {
        if (!before.has(listener)) emitter.off(event, listener as () => void);
      }
    },
  };
}

/** Keeps what is written to a stream, which gets none of it. */
class Captured implements Disposable {
  text = "";
  readonly #stream: NodeJS.WriteStream;
  readonly #write: NodeJS.WriteStream["write"];

  constructor(stream: NodeJS.WriteStream) {
    this.#stream = stream;
    this.#write = stream.write;
    stream.write = (piece: string | Uint8Array, ...more: readonly unknown[]) => {
      this.text += typeof piece === "string" ? piece : Buffer.from(piece).toString();
      const done = more.at(-1);
      if (typeof done === "function") done();
      return true;
    };
  }

  [Symbol.dispose](): void {
    this.#stream.write = this.#write;
  }
}
