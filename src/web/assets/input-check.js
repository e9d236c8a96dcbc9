/**
 * Checks the lines of a JSONL file before it is sent. These are the faults that people make most; the server checks all
 * of its rules afterwards.
 */

const MAX_FAULTS = 10;
/** No server can be set up for a longer line, and a browser that parsed one might run out of memory. */
const MAX_LINE_CHARACTERS = 256 * 1024 * 1024;
const TOO_LONG = "The line is longer than 256 MB, which no server takes.";
const NO_OBJECT = "The line is not a JSON object.";
const ARRAY =
  "The line is or begins an array. Write one JSON object on each line, without brackets around them and commas between them.";
const BYTE_ORDER_MARK = "It begins with a byte order mark. Save the file as UTF-8 without one.";

/**
 * @typedef {object} Checked
 * @property {number} lineCount
 * @property {{ line: number, message: string }[]} faults
 * @property {string | null} url the endpoint of the first line, with /v1
 */

/**
 * @param {Blob} file
 * @returns {Promise<Checked>}
 */
export async function checkLines(file) {
  /** @type {Checked} */
  const checked = { lineCount: 0, faults: [], url: null };
  /** @type {Set<string>} */
  const ids = new Set();
  let line = 0;
  try {
    for await (const text of linesOf(file)) {
      line++;
      // The server passes over lines without a character, too.
      if (text.trim() === "") continue;
      checked.lineCount++;
      const message = faultOf(text, ids, checked);
      if (message !== null) checked.faults.push({ line, message });
      if (checked.faults.length >= MAX_FAULTS) return checked;
    }
  } catch (error) {
    // Where the decoder is ahead of the lines, the place is not exact.
    const message =
      error instanceof RangeError ? TOO_LONG : "The file is not UTF-8 from about here on.";
    checked.faults.push({ line: line + 1, message });
    return checked;
  }
  if (checked.lineCount === 0) checked.faults.push({ line: 1, message: "The file is empty." });
  return checked;
}

/**
 * @param {string} text
 * @param {Set<string>} ids
 * @param {Checked} checked
 * @returns {string | null}
 */
function faultOf(text, ids, checked) {
  if (text.startsWith("\ufeff")) return BYTE_ORDER_MARK;
  const line = parsed(text);
  if (!isObject(line)) return text.trimStart().startsWith("[") ? ARRAY : NO_OBJECT;
  const { custom_id: id, method, url, body } = line;
  if (typeof id !== "string" || id === "") return "custom_id is missing.";
  if (ids.has(id)) return "custom_id is the same as on a line before.";
  ids.add(id);
  if (method !== "POST") return "method must be POST.";
  if (typeof url !== "string") return "url is missing.";
  const endpoint = withVersion(url);
  checked.url ??= endpoint;
  if (endpoint !== checked.url) return `url differs from ${checked.url} of the first line.`;
  if (!isObject(body)) return "body must be a JSON object.";
  return null;
}

/** @param {unknown} value */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * The server takes both.
 *
 * @param {string} url
 */
const withVersion = (url) => (url.startsWith("/v1/") ? url : `/v1${url}`);

/**
 * Returns every `url` in the first line of a text, which may be cut off before the line ends. Quotes inside of a text have
 * backslashes, so a question about JSON is no match.
 *
 * @param {string} text
 */
export const endpointsIn = (text) =>
  [...(text.trimStart().split("\n", 1)[0] ?? "").matchAll(/"url"\s*:\s*"([^"\\]+)"/g)].map(
    ([, url = ""]) => withVersion(url),
  );

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const GZIP = "31,139";
const ZSTANDARD = "40,181,47,253";
/** An archive, as a workbook of today is one, and a workbook of older programs. */
const WORKBOOKS = ["80,75,3,4", "208,207,17,224"];

/**
 * Tells by its first bytes, as the server does, whether a file is packed. A workbook is none of the files that a batch is made of.
 *
 * @param {Blob} file
 * @returns {Promise<"packed" | "workbook" | "text">}
 */
export async function kindOf(file) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  if (`${start.slice(0, 2)}` === GZIP || `${start}` === ZSTANDARD) return "packed";
  return WORKBOOKS.includes(`${start}`) ? "workbook" : "text";
}

/** A byte order mark, or what is not UTF-8, is a fault for the server. */
const UTF8 = { fatal: true, ignoreBOM: true };

/**
 * Reads a file line by line, without its last empty one.
 *
 * @param {Blob} file
 */
async function* linesOf(file) {
  let rest = "";
  const reader = file.stream().pipeThrough(new TextDecoderStream("utf-8", UTF8)).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const [first = "", ...more] = value.split("\n");
    // What is left of a long line is not looked through again with each part.
    const lines = [rest + first, ...more];
    rest = lines.pop() ?? "";
    yield* lines;
    if (rest.length > MAX_LINE_CHARACTERS) throw new RangeError(TOO_LONG);
  }
  if (rest !== "") yield rest;
}
