/** Records the files that are opened and written with the calls of `node:fs` that wait. `preload.ts` puts this module in place. */
import * as real from "node:fs";
import { resolve } from "node:path";
import { newHandle, record } from "./record.ts";

export * from "node:fs";

/** The handles by the descriptors of the process. */
const handles = new Map<number, number>();

export const openSync: typeof real.openSync = (path, flags, mode) => {
  const fd = real.openSync(path, flags, mode);
  const handle = newHandle();
  handles.set(fd, handle);
  const isFolder = real.fstatSync(fd).isDirectory();
  const isNew = !isFolder && /[wa]/.test(String(flags));
  record({ step: "open", handle, path: resolve(String(path)), isFolder, isNew });
  return fd;
};

export const closeSync: typeof real.closeSync = (fd) => {
  handles.delete(fd);
  real.closeSync(fd);
};

export const writeSync = ((fd: number, bytes: Buffer, at: number, count: number, start: number) => {
  const written = real.writeSync(fd, bytes, at, count, start);
  const handle = handles.get(fd);
  if (handle !== undefined) record({ step: "write", handle, start, end: start + written });
  return written;
}) as typeof real.writeSync;
