/** Points in time. Only the wire has seconds; everything behind it has milliseconds. */
import { z } from "zod";

export const UnixSeconds = z.int().describe("Unix seconds.");

export const toSeconds = (atMs: number) => Math.floor(atMs / 1000);
export const toSecondsOrNull = (atMs: number | null) => (atMs === null ? null : toSeconds(atMs));
