/** Turns the rows of a CSV file into lines of a batch. */

/** A pattern with spaces around the name would look through a long run of them again and again. */
const PLACEHOLDER = /\{\{([^{}]+)\}\}/g;
/** Columns whose values tell rows apart, if they are there. */
const ID_COLUMNS = ["custom_id", "id"];

/**
 * Whether a placeholder can name a column.
 *
 * @param {string} column
 */
export const canBeNamed = (column) => !/[{}]/.test(column);

/** @typedef {Record<string, string>} Row */
/** @typedef {{ endpoint: string, model: string, prompt: string, system: string }} Template */

/**
 * Returns the names in a template that are no columns.
 *
 * @param {string} prompt
 * @param {readonly string[]} columns
 */
export const unknownColumns = (prompt, columns) =>
  [...prompt.matchAll(PLACEHOLDER)]
    .map(([, name = ""]) => name.trim())
    .filter((name) => !columns.includes(name));

/**
 * @param {string} prompt
 * @param {Row} row
 */
const filled = (prompt, row) => prompt.replaceAll(PLACEHOLDER, (_, name) => row[name.trim()] ?? "");

/**
 * @param {Row} row
 * @param {number} number
 */
export function customIdOf(row, number) {
  const column = ID_COLUMNS.find((name) => row[name] !== undefined && row[name] !== "");
  return column === undefined ? `row-${number}` : String(row[column]);
}

/**
 * @param {Row} row
 * @param {number} number
 * @param {Template} template
 */
export function lineOf(row, number, { endpoint, model, prompt, system }) {
  const text = filled(prompt, row);
  const body = {
    ...(model !== "" && { model }),
    ...contentFor(endpoint, text, filled(system, row)),
  };
  return { custom_id: customIdOf(row, number), method: "POST", url: endpoint, body };
}

/**
 * @param {string} endpoint
 * @param {string} text
 * @param {string} system
 */
function contentFor(endpoint, text, system) {
  if (endpoint === "/v1/chat/completions") {
    const first = system === "" ? [] : [{ role: "system", content: system }];
    return { messages: [...first, { role: "user", content: text }] };
  }
  if (endpoint === "/v1/responses")
    return { input: text, ...(system !== "" && { instructions: system }) };
  const field = ["/v1/embeddings", "/v1/moderations"].includes(endpoint) ? "input" : "prompt";
  return { [field]: text };
}
