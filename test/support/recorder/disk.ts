/**
 * Replays a record on a disk that keeps only what was synced, and so finds what a power cut would leave. The bytes of a
 * file are safe after a sync that began after the last write and has ended. A name, of a file or of a folder, is safe
 * after such a sync of its folder.
 */
import { readFileSync } from "node:fs";
import { dirname, sep } from "node:path";
import type { Step } from "./record.ts";

/** The changes of bytes or names, and how many of them a sync has covered. */
interface Content {
  changes: number;
  syncing: number;
  synced: number;
}

export interface Statement {
  readonly sql: string;
  readonly values: readonly unknown[];
}

/** A commit in the record: its statements, and its safety. */
export interface Commit {
  readonly statements: readonly Statement[];
  readonly synchronous: number;
  readonly journalMode: string;
}

const unchanged = (): Content => ({ changes: 0, syncing: 0, synced: 0 });

export class Disk {
  /** The files that got their name before their bytes were safe. A crash may leave half a file under such a name. */
  readonly halfBlobs: string[] = [];
  /** The contents by the number of the handle. The contents of a folder are its names. */
  readonly #contents = new Map<number, Content>();
  readonly #folders = new Map<string, Content>();
  readonly #files = new Map<string, Content>();
  /** The change of the folder that made each new name. */
  readonly #names = new Map<string, number>();
  readonly #statements = new Map<string, Statement[]>();
  readonly #onCommit: (commit: Commit) => void;

  constructor(onCommit: (commit: Commit) => void) {
    this.#onCommit = onCommit;
  }

  take(step: Step): void {
    switch (step.step) {
      case "open":
        this.#open(step);
        return;
      case "write":
        this.#contentOf(step.handle).changes++;
        return;
      case "sync-began": {
        const content = this.#contentOf(step.handle);
        content.syncing = content.changes;
        return;
      }
      case "synced": {
        const content = this.#contentOf(step.handle);
        content.synced = Math.max(content.synced, content.syncing);
        return;
      }
      case "rename-began": {
        if (this.#isHalf(step.from)) this.halfBlobs.push(step.to);
        return;
      }
      case "renamed": {
        for (const known of [this.#files, this.#folders, this.#names]) {
          moveKeys<unknown>(known, step.from, step.to);
        }
        this.#nameMade(step.to);
        return;
      }
      case "linked": {
        const content = this.#files.get(step.from);
        if (content !== undefined) this.#files.set(step.to, content);
        this.#nameMade(step.to);
        return;
      }
      case "made":
        for (let path = step.path; path.length >= step.topmost.length; path = dirname(path)) {
          this.#nameMade(path);
          this.#folderOf(path);
        }
        return;
      case "sync-failed":
        return;
      case "sql":
        this.#run(step);
    }
  }

  /**
   * Returns the reason for which a file would not survive a power cut; null for a safe one. `root` existed before the
   * record.
   */
  whyUnsafe(path: string, root: string): string | null {
    const content = this.#files.get(path);
    if (content === undefined) return "nothing was written under this name";
    if (content.synced < content.changes) return "its bytes are not synced";
    for (let each = path; each !== root; each = dirname(each)) {
      const change = this.#names.get(each);
      if (change === undefined) return `${each} was not made`;
      if (this.#folderOf(dirname(each)).synced < change) return `the name ${each} is not synced`;
    }
    return null;
  }

  /** A commit without a sync of its own has changed this file. Returns whether a sync has covered it since. */
  changed(path: string): () => boolean {
    const content = this.#files.get(path) ?? unchanged();
    this.#files.set(path, content);
    content.changes++;
    const change = content.changes;
    return () => content.synced >= change;
  }

  /** Returns the files below a folder. */
  filesBelow(folder: string): string[] {
    return [...this.#files.keys()].filter((path) => path.startsWith(folder + sep));
  }

  /** Whether a crash may leave less than all of what gets another name. */
  #isHalf(path: string): boolean {
    if (this.#folders.has(path)) {
      return this.filesBelow(path).some((file) => this.whyUnsafe(file, path) !== null);
    }
    const content = this.#files.get(path);
    return content === undefined || content.synced < content.changes;
  }

  #open({ handle, path, isFolder, isNew }: Step & { readonly step: "open" }): void {
    // One handle writes a file. A folder has one content for all handles that sync it.
    const content = isFolder ? this.#folderOf(path) : (this.#files.get(path) ?? unchanged());
    this.#contents.set(handle, content);
    if (isFolder) return;
    this.#files.set(path, content);
    if (isNew) this.#nameMade(path);
  }

  #contentOf(handle: number): Content {
    const content = this.#contents.get(handle);
    if (content === undefined) throw new Error(`the record has no handle ${handle}`);
    return content;
  }

  #folderOf(path: string): Content {
    const known = this.#folders.get(path);
    if (known !== undefined) return known;
    const content = unchanged();
    this.#folders.set(path, content);
    return content;
  }

  #nameMade(path: string): void {
    const folder = this.#folderOf(dirname(path));
    folder.changes++;
    this.#names.set(path, folder.changes);
  }

  #run(step: Step & { readonly step: "sql" }): void {
    const { database, sql, values, inTransaction, synchronous, journalMode } = step;
    const settings = { synchronous, journalMode };
    const statements = this.#statements.get(database) ?? [];
    if (/^begin\b/i.test(sql)) this.#statements.set(database, []);
    else if (/^commit\b/i.test(sql)) this.#onCommit({ statements, ...settings });
    else if (inTransaction) statements.push({ sql, values });
    else this.#onCommit({ statements: [{ sql, values }], ...settings });
  }
}

/** Moves a path and all paths below it. */
function moveKeys<T>(known: Map<string, T>, from: string, to: string): void {
  for (const [path, value] of [...known]) {
    if (path !== from && !path.startsWith(from + sep)) continue;
    known.delete(path);
    known.set(to + path.slice(from.length), value);
  }
}

export const readSteps = (path: string): Step[] =>
  readFileSync(path, "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Step);
