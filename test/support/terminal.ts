/**
 * Runs batchd in a pseudo-terminal and knows what its screen shows: a real terminal emulator reads what the process
 * writes.
 */
import { type IPty, spawn } from "@lydell/node-pty";
import { Terminal } from "@xterm/headless";
import { atTestEnd } from "./leftovers.ts";
import { COMPILE_CACHE, MAIN } from "./process.ts";
import { named } from "./waits.ts";

const SIZE = { cols: 100, rows: 30 };
/** The environment of the tests without what changes colours: a CI, where no person looks, turns them off. */
const WITHOUT_COLOUR_RULES = Object.fromEntries(
  Object.entries(process.env).filter(
    ([name]) => !/^(CI|NO_COLOR|FORCE_COLOR|COLORTERM)$/.test(name),
  ),
);

export class TerminalSession {
  /** Everything that was written, escape sequences included. */
  written = "";
  readonly exitCode: Promise<number>;
  readonly #terminal: Terminal;
  readonly #pty: IPty;
  readonly #waiting: (() => void)[] = [];
  #hasEnded = false;

  constructor(
    args: readonly string[],
    env: Readonly<Record<string, string>> = {},
    cols: number = SIZE.cols,
    [file, ...more]: readonly [string, ...string[]] = [process.execPath, MAIN],
  ) {
    const terminal = { TERM: "xterm-256color", NODE_COMPILE_CACHE: COMPILE_CACHE };
    const given = { ...WITHOUT_COLOUR_RULES, ...terminal, ...env };
    const size = { ...SIZE, cols };
    const options = { ...size, env: given as Record<string, string> };
    this.#terminal = new Terminal({ ...size, allowProposedApi: true });
    this.#pty = spawn(file, [...more, ...args], options);
    this.#pty.onData((text) => {
      this.written += text;
      this.#terminal.write(text, () => this.#check());
    });
    const { promise, resolve } = Promise.withResolvers<number>();
    this.exitCode = promise;
    this.#pty.onExit(({ exitCode }) => {
      this.#hasEnded = true;
      this.#terminal.write("", () => {
        this.#check();
        resolve(exitCode);
      });
    });
    atTestEnd(() => {
      if (!this.#hasEnded) this.#pty.kill("SIGKILL");
    });
  }

  /** The lines on the screen and above it, without the empty ones at the end. */
  get screen(): string {
    const { buffer } = this.#terminal;
    const lines = Array.from({ length: buffer.active.length }, (_, i) => {
      const line = buffer.active.getLine(i);
      // A long line goes on in the next row.
      const end = buffer.active.getLine(i + 1)?.isWrapped ? "" : "\n";
      return `${line?.translateToString(end !== "")}${end}`;
    });
    return lines.join("").trimEnd();
  }

  /** Ends the process at once, like a crash. */
  async kill(): Promise<void> {
    this.#pty.kill("SIGKILL");
    await this.exitCode;
  }

  /** Asks the process to end, as the system does at a shutdown. */
  terminate(): void {
    this.#pty.kill("SIGTERM");
  }

  type(keys: string): void {
    this.#pty.write(keys);
  }

  /** Resolves once the screen shows this. Rejects when the process ends without it. */
  async shows(pattern: RegExp): Promise<void> {
    while (!pattern.test(this.screen)) {
      if (this.#hasEnded) throw new Error(`the screen never showed ${pattern}:\n${this.screen}`);
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#waiting.push(resolve);
      await named(() => `${pattern} on the screen, which shows:\n${this.screen}`, promise);
    }
  }

  #check(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
