/** Records the writes, syncs, renames, links and new folders of `node:fs/promises`. `preload.ts` puts this module in place. */
import { constants, readlinkSync } from "node:fs";
import * as real from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { newHandle, record } from "./record.ts";

export * from "node:fs/promises";

/** The disk fails the sync of a file with this number, once. */
const FAILED_SYNC = Number(process.env["DISK_FAILS_SYNC"] ?? 0);
let syncCount = 0;

const OPEN_FOLDER = /^\/proc\/self\/fd\/\d+$/;

/** Locations name what is in a folder by the handle of the folder, which stands for another path at another time. */
function pathOf(given: unknown): string {
  const path = resolve(String(given));
  if (OPEN_FOLDER.test(path)) return readlinkSync(path);
  const folder = dirname(path);
  return OPEN_FOLDER.test(folder) ? join(readlinkSync(folder), basename(path)) : path;
}

const isCreating = (flags: unknown) =>
  typeof flags === "number" ? (flags & constants.O_CREAT) !== 0 : /[wa]/.test(String(flags));

/** The methods that change the bytes of a file. A handle has others, which the store of blobs does not use. */
const WRITES = ["write", "writev", "writeFile", "appendFile", "truncate"] as const;

export const open: typeof real.open = async (path, flags, mode) => {
  const at = pathOf(path);
  const file = await real.open(path, flags, mode);
  const handle = newHandle();
  const isFolder = (await file.stat()).isDirectory();
  record({ step: "open", handle, path: at, isFolder, isNew: isCreating(flags) });
  for (const name of WRITES) {
    const write = file[name].bind(file) as (...args: unknown[]) => Promise<unknown>;
    const recorded = (...args: unknown[]) => {
      record({ step: "write", handle });
      return write(...args);
    };
    Object.assign(file, { [name]: recorded });
  }
  for (const name of ["sync", "datasync"] as const) {
    const sync = file[name].bind(file);
    const recorded = async () => {
      record({ step: "sync-began", handle });
      if (name === "datasync" && ++syncCount === FAILED_SYNC) {
        record({ step: "sync-failed", handle, bytes: (await file.stat()).size });
        throw Object.assign(new Error("EIO: i/o error, fdatasync"), { code: "EIO" });
      }
      await sync();
      record({ step: "synced", handle });
    };
    Object.assign(file, { [name]: recorded });
  }
  return file;
};

export const writeFile: typeof real.writeFile = async (path, data, options) => {
  const handle = newHandle();
  record({ step: "open", handle, path: pathOf(path), isFolder: false, isNew: true });
  record({ step: "write", handle });
  await real.writeFile(path, data, options);
  if (typeof options !== "object" || options?.flush !== true) return;
  record({ step: "sync-began", handle });
  record({ step: "synced", handle });
};

export const link: typeof real.link = async (from, to) => {
  await real.link(from, to);
  record({ step: "linked", from: pathOf(from), to: pathOf(to) });
};

export const rename: typeof real.rename = async (from, to) => {
  const paths = { from: pathOf(from), to: pathOf(to) };
  record({ step: "rename-began", ...paths });
  await real.rename(from, to);
  record({ step: "renamed", ...paths });
};

export const mkdir = (async (path: string, options: Parameters<typeof real.mkdir>[1]) => {
  const at = pathOf(path);
  const topmost = await real.mkdir(path, options);
  const isRecursive = typeof options === "object" && options?.recursive === true;
  const first = isRecursive ? topmost && pathOf(topmost) : at;
  if (first !== undefined) record({ step: "made", topmost: first, path: at });
  return topmost;
}) as typeof real.mkdir;
