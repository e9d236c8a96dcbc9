/**
 * Reads what a folder holds, at any depth. A folder that is not there holds nothing. A server may remove some of it
 * meanwhile, at which the recursive read of Node fails.
 */
import { type Dirent, readdirSync, readFileSync } from "node:fs";
import { basename, join, relative } from "node:path";

/** Returns the files and the folders in the folder. */
export const entriesBelow = (folder: string): Dirent[] =>
  orIfGone([], () => readdirSync(folder, { withFileTypes: true })).flatMap((entry) =>
    entry.isDirectory() ? [entry, ...entriesBelow(join(folder, entry.name))] : [entry],
  );

function orIfGone<T>(nothing: T, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return nothing;
    throw error;
  }
}

/** Returns the paths of the files in the folder. */
export const pathsBelow = (folder: string): string[] =>
  entriesBelow(folder)
    .filter((entry) => entry.isFile())
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)))
    .toSorted();

/** Returns the names of the files, without their folders. */
export const namesBelow = (folder: string): string[] =>
  pathsBelow(folder)
    .map((path) => basename(path))
    .toSorted();

/** Returns the files by their paths in the folder. */
export const filesBelow = (folder: string): Map<string, Buffer> =>
  new Map(
    pathsBelow(folder).flatMap((path) =>
      orIfGone<[string, Buffer][]>([], () => [[path, readFileSync(join(folder, path))]]),
    ),
  );

export const bytesBelow = (folder: string): Buffer =>
  Buffer.concat([...filesBelow(folder).values()]);
