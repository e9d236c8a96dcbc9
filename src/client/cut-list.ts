/** Lists that end at `--limit`: a person has to know whether there is more. */
import { note } from "../terminal/lines.ts";

/** Returns the size of a page in which the one behind the last one shows, if there is room for it. */
export const pageSizeFor = (limit: number, max: number): number => Math.min(limit + 1, max);

const MORE = 5;

export const sayOlder = (limit: number): void =>
  note(`There are older ones: --limit ${limit * MORE} shows more.`);
