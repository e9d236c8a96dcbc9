/**
 * Parses a line, in slices where it is long, because a line of 32 MiB would hold up the event loop. A short line must make
 * no promise, as this is on the hot path.
 */
import { LineReading, type ParsedLine, parseLine } from "../../batch/line.ts";
import { isLong, read } from "../../resources/time-slice.ts";

/** Returns null when the bytes are not one JSON object. Only a long line makes a promise. */
export const parsedLine = (bytes: Buffer): ParsedLine | null | Promise<ParsedLine | null> =>
  isLong(bytes) ? read(new LineReading(), bytes) : parseLine(bytes);
