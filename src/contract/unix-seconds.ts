/** The schema of points in time. Only the wire has seconds; everything behind it has milliseconds. */
import { z } from "zod";

export const UnixSeconds = z.int().describe("Unix seconds.");
