/** Reads what a folder holds, at any depth. A folder that is not there holds nothing. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, join, relative } from "node:path";

/** Returns the paths of the files in the folder. */
export const pathsBelow = (folder: string): string[] =>
  existsSync(folder)
    ? readdirSync(folder, { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => relative(folder, join(entry.parentPath, entry.name)))
        .toSorted()
    : [];

/** Returns the names of the files, without their folders. */
export const namesBelow = (folder: string): string[] =>
  pathsBelow(folder)
    .map((path) => basename(path))
    .toSorted();

/** Returns the files by their paths in the folder. */
export const filesBelow = (folder: string): Map<string, Buffer> =>
  new Map(pathsBelow(folder).map((path) => [path, readFileSync(join(folder, path))]));

export const bytesBelow = (folder: string): Buffer =>
  Buffer.concat([...filesBelow(folder).values()]);
