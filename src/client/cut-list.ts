/** Lists that end at `--limit`: a person has to know whether there is more. */
import { note } from "../terminal/lines.ts";

/** Returns the size of the pages that are asked for: with one object more than is listed, where a page has room for it. */
export const pageSizeFor = (limit: number, max: number): number => Math.min(limit + 1, max);

/** The limit that is proposed is so many times as large. */
const MORE = 5;

export const sayOlder = (limit: number): void =>
  note(`There are older ones: --limit ${limit * MORE} shows more.`);
