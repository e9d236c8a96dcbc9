/** Records the writes, syncs, renames and new folders of `node:fs/promises`. `preload.ts` puts this module in place. */
import * as real from "node:fs/promises";
import { resolve } from "node:path";
import { record } from "./record.ts";

export * from "node:fs/promises";

let handleCount = 0;

/** The methods that change the bytes of a file. A handle has others, which the store of blobs does not use. */
const WRITES = ["write", "writev", "writeFile", "appendFile", "truncate"] as const;

export const open: typeof real.open = async (path, flags, mode) => {
  const file = await real.open(path, flags, mode);
  const handle = ++handleCount;
  record({ step: "open", handle, path: resolve(String(path)) });
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
      await sync();
      record({ step: "synced", handle });
    };
    Object.assign(file, { [name]: recorded });
  }
  return file;
};

export const rename: typeof real.rename = async (from, to) => {
  const paths = { from: resolve(String(from)), to: resolve(String(to)) };
  record({ step: "rename-began", ...paths });
  await real.rename(from, to);
  record({ step: "renamed", ...paths });
};

export const mkdir = (async (path: string, options: Parameters<typeof real.mkdir>[1]) => {
  const topmost = await real.mkdir(path, options);
  const isRecursive = typeof options === "object" && options?.recursive === true;
  const first = isRecursive ? topmost : path;
  if (first !== undefined) record({ step: "made", topmost: resolve(first), path: resolve(path) });
  return topmost;
}) as typeof real.mkdir;
