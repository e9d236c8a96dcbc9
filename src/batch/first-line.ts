/** Judges the first line of an upload, and gives a hint when it is not the JSON object that a batch needs. */
import { isArrayAt, isObjectAt } from "../text/json.ts";
import { isJson } from "../text/json-scan.ts";
import { skipSpace } from "../text/json-tokens.ts";
import { holdsNoNumbers, NO_NUMBERS } from "../text/no-numbers.ts";

const BYTE_ORDER_MARK = Buffer.from([0xef, 0xbb, 0xbf]);

export const beginsWithMark = (bytes: Buffer): boolean =>
  bytes.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK);

/** A line that is too long to be judged here is `unknown`. */
export type FirstLine = "object" | "unknown" | keyof typeof HINTS;

const ONE_EACH = "The file needs one JSON object on each line, one for each request.";

/** A hint for each wrong kind of line. `LINE` stands for the number of the line. */
const HINTS = {
  empty: `The file is empty. ${ONE_EACH}`,
  blank: `The file has only blank lines. ${ONE_EACH}`,
  array: `LINE is or begins an array. ${ONE_EACH} Leave out the brackets around the objects and the commas between them.`,
  broken_object: `LINE begins a JSON object that does not end there as JSON. ${ONE_EACH} Write each without line breaks inside, and check its quotes and commas.`,
  no_numbers: `LINE is ${NO_NUMBERS}`,
  no_object: `LINE is JSON, but not an object. ${ONE_EACH}`,
  file_name: `LINE is the name of a file and not what is in it. With curl, the name needs an @ before it: -F file=@NAME`,
  table: `LINE looks like CSV. ${ONE_EACH}`,
  no_json: `LINE is not JSON. ${ONE_EACH}`,
} as const;

/** Returns null for a first line that a batch can begin with. */
export const hintFor = (found: FirstLine, lineNumber: number): string | null =>
  found === "object" || found === "unknown"
    ? null
    : HINTS[found].replace("LINE", `Line ${lineNumber}`);

/** Judges a line that is not blank. A byte order mark passes here; the validation of a batch refuses it. */
export function judgeFirstLine(line: Buffer): FirstLine {
  const text = beginsWithMark(line) ? line.subarray(BYTE_ORDER_MARK.length) : line;
  const start = skipSpace(text, 0, text.length);
  if (isArrayAt(text, start)) return "array";
  const isWhole = isJson(text);
  if (isObjectAt(text, start)) {
    if (isWhole) return "object";
    return holdsNoNumbers(text) ? "no_numbers" : "broken_object";
  }
  if (isWhole) return "no_object";
  const words = text.toString("latin1");
  if (FILE_NAME.test(words)) return "file_name";
  return looksLikeTable(words) ? "table" : "no_json";
}

/** What curl sends where the @ before the name of the file was forgotten. */
const FILE_NAME = /^[^\s{}[\],;"]{1,1000}\.(?:jsonl|ndjson|json|txt)(?:\.gz|\.zst)?\s*$/i;

/** A line with a separator may be a table. A piece of JSON has commas too, but nearly always a brace or a bracket. */
const looksLikeTable = (text: string) => /[,;\t]/.test(text) && !/[{}[\]]/.test(text);
