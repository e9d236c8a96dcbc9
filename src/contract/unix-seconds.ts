/** Points in time. Only the wire has seconds; everything behind it has milliseconds. */
import { z } from "zod";

export const UnixSeconds = z.int().describe("Unix seconds.");

/** The end of the year 9999, beyond which dates have no usual form. */
export const LAST_SECOND = 253_402_300_799;

export const toSeconds = (atMs: number) => Math.floor(atMs / 1000);
export const toSecondsOrNull = (atMs: number | null) => (atMs === null ? null : toSeconds(atMs));
