/**
 * Writes the audit log: one JSON line for each thing that someone did or was refused, never content.
 *
 * The file is opened by its path for each write and appended to, so a rotation by renaming, by copying and truncating, or by
 * deleting needs no signal. A request never waits for it. A file that cannot be written stops nothing, nor does a reader of
 * standard error that stands still: the lines wait in memory, up to a bound, and the ordinary log says so. After a write
 * that failed half-way the next one begins on a line of its own, and may repeat lines.
 */
import { constants } from "node:fs";
import { appendFile } from "node:fs/promises";
import { type Clock, sleep } from "../clock.ts";
import { printable } from "../printable.ts";
import type { Log } from "./log.ts";

/** What happened, and who did it. Null stands for what is not known. */
export interface AuditEntry {
  readonly request_id: string | null;
  readonly action: string;
  readonly object: string | null;
  readonly outcome: "done" | "denied" | "refused" | "failed";
  readonly status: number | null;
  readonly project: string | null;
  readonly key_id: string | null;
  readonly key_name: string | null;
  readonly address: string | null;
}

export interface AuditLogOptions {
  /** Returns the path of the file; null for standard error, undefined when there is no audit log. */
  readonly file: () => string | null | undefined;
  readonly clock: Pick<Clock, "nowMs" | "after">;
  readonly log: Log;
}

const FILE_MODE = 0o600;
/** A pipe that has no reader, or is full, must be a failure. Waiting for it would take a thread and never end. */
const APPEND_WITHOUT_WAIT =
  constants.O_APPEND | constants.O_CREAT | constants.O_WRONLY | constants.O_NONBLOCK;
/** The lines of one write: less than a pipe holds (64 KiB), so that a slow reader of a pipe gets them in the end. */
const MAX_LINES_PER_WRITE = 100;
/** The usual length of a line. */
const LINE_BYTES = 300;
const MAX_WAITING = 100_000;
const RETRY_MS = 1_000;

export class AuditLog {
  readonly #options: AuditLogOptions;
  #waiting: string[] = [];
  #writing: Promise<void> | null = null;
  /** The file that could not be written when it was last tried. */
  #broken: string | null = null;
  #lostCount = 0;
  #isClosing = false;

  constructor(options: AuditLogOptions) {
    this.#options = options;
  }

  record(entry: AuditEntry): void {
    const { file, clock } = this.#options;
    const path = file();
    if (path === undefined) return;
    const json = JSON.stringify({ time: new Date(clock.nowMs()).toISOString(), ...entry });
    // Some readers end a line at other characters, too, and a terminal obeys some.
    const line = `${printable(json)}\n`;
    if (path === null && this.#waiting.length === 0) {
      this.#print(line);
      return;
    }
    if (this.#waiting.length >= MAX_WAITING) this.#lostCount++;
    else this.#waiting.push(line);
    this.#writing ??= this.#writeAll().finally(() => {
      this.#writing = null;
    });
  }

  /** Writes to standard error, whose reader may have stopped. */
  #print(line: string): void {
    const { stderr } = process;
    if (stderr.writableLength > MAX_WAITING * LINE_BYTES) {
      this.#lostCount++;
      return;
    }
    stderr.write(line);
    if (this.#lostCount === 0) return;
    this.#options.log.warn({ file: null, lost: this.#lostCount }, "audit.written_again");
    this.#lostCount = 0;
  }

  /** Writes what waits, once more. */
  async close(): Promise<void> {
    this.#isClosing = true;
    await this.#writing;
    while (this.#waiting.length > 0 && (await this.#write()));
  }

  async #writeAll(): Promise<void> {
    while (this.#waiting.length > 0) {
      if (await this.#write()) continue;
      if (this.#isClosing) return;
      await sleep(this.#options.clock, RETRY_MS);
    }
  }

  /** Returns false when the lines wait on. */
  async #write(): Promise<boolean> {
    const { file, log } = this.#options;
    const path = file();
    const lines = this.#waiting.splice(0, MAX_LINES_PER_WRITE);
    // The configuration has changed while they waited.
    if (path === null) for (const line of lines) this.#print(line);
    if (path === undefined) this.#lostCount += lines.length;
    if (typeof path !== "string") return true;
    const text = `${path === this.#broken ? "\n" : ""}${lines.join("")}`;
    try {
      await appendFile(path, text, { mode: FILE_MODE, flag: APPEND_WITHOUT_WAIT });
    } catch (err) {
      this.#waiting.unshift(...lines);
      if (path !== this.#broken) log.error({ file: path, err }, "audit.not_written");
      this.#broken = path;
      return false;
    }
    if (this.#broken !== null) {
      log.warn({ file: path, lost: this.#lostCount }, "audit.written_again");
    }
    this.#broken = null;
    this.#lostCount = 0;
    return true;
  }
}
