import { LineReading, type ParsedLine, parseLine } from "../batch/line.ts";
import { isLong, read } from "../resources/time-slice.ts";

/** Null when the bytes are not one JSON object. A promise only for a long line. */
export const parsedLine = (bytes: Buffer): ParsedLine | null | Promise<ParsedLine | null> =>
  isLong(bytes) ? read(new LineReading(), bytes) : parseLine(bytes);
