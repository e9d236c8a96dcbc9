/**
 * Writes each step of a server on its disk as one JSON object on a line, in order. `DISK_RECORD` names the file. Each
 * step is one write, so a killed process leaves all steps but the last.
 */
import { openSync, writeSync } from "node:fs";

export type Step =
  /**
   * The bytes of a file, or the names in a folder, that a sync concerns. The number of the open handle identifies them.
   */
  | {
      readonly step: "open";
      readonly handle: number;
      readonly path: string;
      readonly isFolder: boolean;
      readonly isNew: boolean;
    }
  | {
      readonly step: "write";
      readonly handle: number;
      readonly start?: number;
      readonly end?: number;
    }
  /** The disk has failed the sync of a file that had so many bytes. */
  | { readonly step: "sync-failed"; readonly handle: number; readonly bytes: number }
  | { readonly step: "sync-began" | "synced"; readonly handle: number }
  | {
      readonly step: "rename-began" | "renamed" | "linked";
      readonly from: string;
      readonly to: string;
    }
  /** `topmost` is the first folder that did not exist before. */
  | { readonly step: "made"; readonly topmost: string; readonly path: string }
  /** `synchronous` and `journalMode` are read through the connection that runs the statement. */
  | {
      readonly step: "sql";
      readonly database: string;
      readonly sql: string;
      readonly values: readonly unknown[];
      readonly inTransaction: boolean;
      readonly synchronous: number;
      readonly journalMode: string;
    };

let handleCount = 0;
export const newHandle = (): number => ++handleCount;

const path = process.env["DISK_RECORD"];
const fd = path === undefined ? null : openSync(path, "a");

export function record(step: Step): void {
  if (fd !== null) writeSync(fd, `${JSON.stringify(step)}\n`);
}
