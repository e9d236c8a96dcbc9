/**
 * Checks the lines of a JSONL file before it is sent. These are the faults that people make most; the server checks all
 * of its rules afterwards.
 */

const MAX_FAULTS = 10;

/**
 * @typedef {object} Checked
 * @property {number} lineCount
 * @property {{ line: number, message: string }[]} faults
 * @property {string | null} url the endpoint of the first line
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
  for await (const text of linesOf(file)) {
    checked.lineCount++;
    const message = faultOf(text, ids, checked);
    if (message !== null) checked.faults.push({ line: checked.lineCount, message });
    if (checked.faults.length >= MAX_FAULTS) break;
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
  if (text.trim() === "") return "The line is empty.";
  const line = parsed(text);
  if (typeof line !== "object" || line === null) return "The line is not a JSON object.";
  const { custom_id: id, method, url, body } = line;
  if (typeof id !== "string" || id === "") return "custom_id is missing.";
  if (ids.has(id)) return "custom_id is the same as on a line before.";
  ids.add(id);
  if (method !== "POST") return "method must be POST.";
  if (typeof url !== "string") return "url is missing.";
  checked.url ??= url;
  if (url !== checked.url) return `url differs from ${checked.url} of the first line.`;
  if (typeof body !== "object" || body === null) return "body must be a JSON object.";
  return null;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/**
 * Reads a file line by line, without its last empty one.
 *
 * @param {Blob} file
 */
async function* linesOf(file) {
  let rest = "";
  const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
  }
  if (rest !== "") yield rest;
}
