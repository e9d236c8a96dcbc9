/**
 * Runs the program `git`. No shell reads its arguments. Nothing that a user, the system or a repository configures can
 * make it run another program here: it has a home of its own, no hooks, filters, credential helpers and prompts.
 *
 * A run that gives no sign of life for the time limit is killed, together with the programs that it has started.
 */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { dirname } from "node:path";
import type { Writable } from "node:stream";
import type { Clock } from "../../clock.ts";

/** Lists of branches and trees are short, because git is asked for those in use alone. */
const MAX_OUTPUT_BYTES = 1024 * 1024;
const MAX_COMPLAINT_BYTES = 16 * 1024;
/** git holds a list of branches as a whole, and a server may send one without end. The contents of files are streamed. */
const MAX_MEMORY_KIB = 1024 * 1024;
/** Limits hold for each of the helpers of git, too. The shell becomes git. Arguments are words that it does not read. */
const LIMITED = `ulimit -d ${MAX_MEMORY_KIB} 2>/dev/null; exec git "$@"`;
/** The unit in which a shell limits the size of files. */
const BLOCK_BYTES = 512;
/** The code of a shell that does not find the program. */
const NOT_FOUND = 127;
const NOT_STARTED = "git could not be started: no folder of the PATH has it";
/** 4 MB/s, the speed of a slow disk that is shared. */
const SILENT_BYTES_PER_MS = 4_000;

export interface GitRun {
  readonly args: readonly string[];
  /** The folder in which git runs, which is also its home. */
  readonly folder: string;
  /**
   * Whether git may ask the other side. Without it git would fetch every object that the other side has left out, and nothing
   * would bound what comes then.
   */
  readonly isOnline?: boolean;
  /** Values of the configuration, such as credentials: they are in no argument, so no other user sees them. */
  readonly config?: Readonly<Record<string, string>>;
  /**
   * The bytes that git may go through without a sign of life: once it has a pack it hashes it again, and so may the other
   * side. The time limit grows with them.
   */
  readonly silentBytes?: number;
  /** The most bytes of each file that git writes. */
  readonly maxFileBytes?: number;
  /** Writes the standard input. */
  readonly feed?: (input: Writable) => Promise<void>;
  readonly signal: AbortSignal;
}

export interface GitOptions {
  /** `PATH`, and what else programs of the network need. */
  readonly environment: Readonly<Record<string, string>>;
  readonly sshCommand: string;
  readonly silenceMs: number;
  readonly clock: Pick<Clock, "after">;
}

export class GitFailed extends Error {
  override readonly name = "GitFailed";
  /** What git has written to standard error, at its end. */
  readonly complaint: string;
  readonly isSilent: boolean;

  constructor(args: readonly string[], complaint: string, isSilent = false) {
    super(`git ${args[0]} failed: ${complaint}`);
    this.complaint = complaint;
    this.isSilent = isSilent;
  }
}

const CONFIG: Readonly<Record<string, string>> = {
  "core.hooksPath": "/dev/null",
  "core.attributesFile": "/dev/null",
  "core.fsmonitor": "false",
  // Larger files are streamed, and never compared with others.
  "core.bigFileThreshold": "16m",
  // The highest speed, because a file may have gigabytes.
  "core.compression": "1",
  "fastimport.unpackLimit": "1",
  "pack.windowMemory": "64m",
  "pack.threads": "1",
  "credential.helper": "",
  "fetch.recurseSubmodules": "false",
  "gc.auto": "0",
  "maintenance.auto": "false",
  // A redirect could lead credentials to another host.
  "http.followRedirects": "false",
};

const PROTOCOLS = "file:ssh:http:https";

export class Git {
  readonly #options: GitOptions;

  constructor(options: GitOptions) {
    this.#options = options;
  }

  /** Resolves to the standard output. Rejects with {@link GitFailed}. */
  async run(run: GitRun): Promise<string> {
    const chunks: Buffer[] = [];
    let bytes = 0;
    for await (const chunk of this.stream(run)) {
      bytes += chunk.length;
      if (bytes > MAX_OUTPUT_BYTES) throw new GitFailed(run.args, "the output is too long");
      chunks.push(chunk);
    }
    return Buffer.concat(chunks).toString();
  }

  /** Yields the standard output. A reader that stops early ends git. */
  async *stream(run: GitRun): AsyncGenerator<Buffer> {
    run.signal.throwIfAborted();
    const child = this.#spawn(run);
    const { clock, silenceMs } = this.#options;
    const limitMs = silenceMs + Math.ceil((run.silentBytes ?? 0) / SILENT_BYTES_PER_MS);
    const watch = new Watch(child, { clock, limitMs });
    const abort = () => watch.kill();
    run.signal.addEventListener("abort", abort);
    try {
      const fed = feed(child.stdin, run.feed && whileAlive(run.feed, watch));
      for await (const chunk of child.stdout as AsyncIterable<Buffer>) {
        // A slow reader is not the fault of git.
        watch.pause();
        yield chunk;
        watch.restart();
      }
      const code = await watch.exited;
      run.signal.throwIfAborted();
      // A source that fails has ended git, so its failure comes first.
      const failure = await fed;
      if (failure !== null) throw failure.reason;
      if (code === NOT_FOUND) throw new GitFailed(run.args, NOT_STARTED);
      if (code !== 0) throw new GitFailed(run.args, watch.complaint, watch.isSilent);
    } finally {
      run.signal.removeEventListener("abort", abort);
      watch.kill();
      await watch.exited;
    }
  }

  #spawn({ args, folder, isOnline = false, config, maxFileBytes }: GitRun) {
    const { environment, sshCommand } = this.#options;
    const pairs = Object.entries({ ...CONFIG, ...config });
    const settings = pairs.flatMap(([key, value], i) => [
      [`GIT_CONFIG_KEY_${i}`, key],
      [`GIT_CONFIG_VALUE_${i}`, value],
    ]);
    return spawn("/bin/sh", ["-c", limitOf(maxFileBytes) + LIMITED, "git", ...args], {
      cwd: folder,
      // With a group of its own, its helpers end with it.
      detached: true,
      stdio: ["pipe", "pipe", "pipe"],
      env: {
        ...environment,
        HOME: folder,
        XDG_CONFIG_HOME: folder,
        LC_ALL: "C",
        TZ: "UTC",
        GIT_CONFIG_NOSYSTEM: "1",
        GIT_CONFIG_GLOBAL: "/dev/null",
        GIT_ATTR_NOSYSTEM: "1",
        GIT_TERMINAL_PROMPT: "0",
        GIT_ALLOW_PROTOCOL: isOnline ? PROTOCOLS : "",
        GIT_LITERAL_PATHSPECS: "1",
        GIT_NO_REPLACE_OBJECTS: "1",
        GIT_SSH_COMMAND: sshCommand,
        GIT_SSH_VARIANT: "ssh",
        GIT_OPTIONAL_LOCKS: "0",
        // The data folder may lie in a repository, whose settings do not matter here.
        GIT_CEILING_DIRECTORIES: dirname(folder),
        GIT_CONFIG_COUNT: `${pairs.length}`,
        ...Object.fromEntries(settings),
      },
    });
  }
}

const limitOf = (maxFileBytes = Number.POSITIVE_INFINITY): string =>
  maxFileBytes === Number.POSITIVE_INFINITY
    ? ""
    : `ulimit -f ${Math.ceil(maxFileBytes / BLOCK_BYTES)} 2>/dev/null; `;

type Source = NonNullable<GitRun["feed"]>;

/** The time of the source does not count as silence of git, and every piece that git takes is a sign of life. */
const whileAlive =
  (source: Source, watch: Watch): Source =>
  async (input) => {
    watch.pause();
    await source(input);
    watch.restart();
  };

/** Git has ended before all of its input was written. Git says itself why. */
class InputClosed extends Error {}

/** Resolves to a failure of the source, or null. */
async function feed(input: Writable, source: Source | undefined) {
  input.on("error", () => {});
  try {
    await source?.(input);
    input.end();
    return null;
  } catch (reason) {
    input.destroy();
    return reason instanceof InputClosed ? null : { reason };
  }
}

/** Writes one piece and waits until git takes more. */
export function writePiece(input: Writable, piece: Buffer | string): Promise<void> {
  return new Promise((resolve, reject) => {
    const closed = () => reject(new InputClosed());
    if (input.destroyed) return closed();
    input.once("close", closed);
    input.write(piece, (error) => {
      input.off("close", closed);
      if (error instanceof Error) closed();
      else resolve();
    });
  });
}

interface WatchOptions {
  readonly clock: Pick<Clock, "after">;
  readonly limitMs: number;
}

/** Follows a child: what it complains of, whether it lives, and how it ends. */
class Watch {
  readonly exited: Promise<number | null>;
  isSilent = false;
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #complaints: Buffer[] = [];
  readonly #options: WatchOptions;
  #cancel: () => void = () => {};
  #hasEnded = false;

  constructor(child: ChildProcessWithoutNullStreams, options: WatchOptions) {
    this.#child = child;
    this.#options = options;
    this.exited = new Promise((resolve) => {
      child.once("error", (error) => {
        this.#complaints.push(Buffer.from(`git could not be started: ${error.message}`));
        this.#end(resolve, null);
      });
      child.once("close", (code) => this.#end(resolve, code));
    });
    child.stderr.on("data", (text: Buffer) => {
      this.#keep(text);
      this.restart();
    });
    this.restart();
  }

  get complaint(): string {
    return Buffer.concat(this.#complaints).toString().trim();
  }

  kill(): void {
    if (this.#hasEnded || this.#child.pid === undefined) return;
    try {
      process.kill(-this.#child.pid, "SIGKILL");
    } catch {
      // The group has ended by itself.
    }
  }

  #keep(text: Buffer): void {
    this.#complaints.push(text);
    let bytes = this.#complaints.reduce((sum, { length }) => sum + length, 0);
    while (bytes > MAX_COMPLAINT_BYTES && this.#complaints.length > 1) {
      bytes -= this.#complaints.shift()?.length ?? 0;
    }
  }

  /** Stops the time limit until the next {@link restart}. */
  pause(): void {
    this.#cancel();
  }

  /** Begins the time limit anew, after a sign of life. */
  restart(): void {
    this.#cancel();
    if (this.#hasEnded) return;
    this.#cancel = this.#options.clock.after(this.#options.limitMs, () => {
      this.isSilent = true;
      this.kill();
    });
  }

  #end(resolve: (code: number | null) => void, code: number | null): void {
    this.#hasEnded = true;
    this.#cancel();
    resolve(code);
  }
}
