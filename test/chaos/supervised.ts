/**
 * A server that is started again whenever it ends, as systemd or Kubernetes would do it. The run kills it; an end that
 * has another reason is a fault.
 */
import { appendFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { BatchdProcess, type Exit } from "../support/process.ts";

const RESTART_AFTER_MS = 300;
const KEPT_LOG_CHARACTERS = 4_000;

export interface Command {
  readonly name: string;
  /** The main file of another version. */
  readonly script?: string;
  readonly args: readonly string[];
  readonly config: string;
  readonly env: Readonly<Record<string, string>>;
  /** The file that the log is added to. */
  readonly logPath?: string;
}

export class Supervised implements AsyncDisposable {
  readonly name: string;
  killCount = 0;
  startCount = 0;
  /** The ends without a kill, with the last lines of the log. */
  readonly crashes: string[] = [];
  /** The events of the log above `info`, with their number. */
  readonly complaints = new Map<string, number>();
  #command: Command;
  #batchd: BatchdProcess | null = null;
  #url: string | null = null;
  #listening = Promise.withResolvers<void>();
  #isKilled = false;
  #isOver = false;
  readonly #running: Promise<void>;

  constructor(command: Command) {
    this.name = command.name;
    this.#command = command;
    this.#running = this.#run();
  }

  /** The address; null while the server is not there. */
  get url(): string | null {
    return this.#url;
  }

  /** Kills the server once it is there. */
  async kill(): Promise<void> {
    await this.#listening.promise;
    this.killCount++;
    this.#isKilled = true;
    await this.#batchd?.kill();
  }

  /** Lets the server stand still for a while, as a virtual machine does that is moved. */
  async freeze(ms: number): Promise<void> {
    await this.#listening.promise;
    const batchd = this.#batchd;
    batchd?.signal("SIGSTOP");
    await delay(ms);
    batchd?.signal("SIGCONT");
  }

  /** Whether the server is of the version of this checkout. */
  get isCurrent(): boolean {
    return this.#command.script === undefined;
  }

  /** Stops the server as an operator does, and resolves once the other one is there. */
  async replaceBy(command: Command): Promise<void> {
    await this.#listening.promise;
    this.#command = command;
    this.#isKilled = true;
    const exit = await this.#batchd?.kill("SIGTERM");
    const code = exit?.code ?? exit?.signal;
    if (code !== 0) this.crashes.push(`${this.name} ended with ${code} after SIGTERM`);
    while (this.#url !== null) await delay(RESTART_AFTER_MS / 10);
    await this.#listening.promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    await this.#batchd?.kill("SIGKILL");
    await this.#running;
  }

  async #run(): Promise<void> {
    while (!this.#isOver) {
      const { args, config, env, script } = this.#command;
      const batchd = new BatchdProcess([...args, "--config", config], env, script);
      this.#batchd = batchd;
      this.startCount++;
      const url = await batchd.listening().catch(() => null);
      if (url !== null) {
        this.#url = url;
        this.#listening.resolve();
      }
      const exit = await batchd.exited();
      this.#note(exit, { hasListened: url !== null });
      if (this.#url !== null) this.#listening = Promise.withResolvers();
      this.#url = null;
      this.#isKilled = false;
      await delay(RESTART_AFTER_MS);
    }
  }

  /** A server whose database is away at its start ends, and is started again. */
  #note({ code, signal, stderr }: Exit, { hasListened }: { readonly hasListened: boolean }): void {
    const { logPath } = this.#command;
    if (logPath !== undefined) appendFileSync(logPath, stderr);
    for (const line of stderr.split("\n")) {
      const name = complaintIn(line);
      if (name !== null) this.complaints.set(name, (this.complaints.get(name) ?? 0) + 1);
    }
    const isAway = !hasListened && stderr.includes("cannot open the database");
    if (this.#isKilled || this.#isOver || isAway) return;
    const log = stderr.slice(-KEPT_LOG_CHARACTERS);
    this.crashes.push(`${this.name} ended by itself (${code ?? signal}):\n${log}`);
  }
}

interface LogLine {
  readonly level: string;
  readonly event: string;
  readonly err?: { readonly type?: string };
}

/** Names a warning or an error, with the kind of its cause. The last line of a killed server may be cut. */
function complaintIn(line: string): string | null {
  try {
    const { level, event, err } = JSON.parse(line) as LogLine;
    if (level !== "warn" && level !== "error") return null;
    return [level, event, err?.type].filter((word) => word !== undefined).join(" ");
  } catch {
    return null;
  }
}
