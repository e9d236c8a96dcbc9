/**
 * The table of lines: question beside answer, with the whole line one click away. What clients and models wrote only ever
 * becomes the text of an element.
 */
import { callApi, write } from "./actions.js";
import { keepFocus, offDuring, openDialog } from "./focus.js";
import { isolated, visible } from "./visible.js";

/**
 * @typedef {object} Line
 * @property {number} line
 * @property {string | null} custom_id
 * @property {"succeeded" | "failed" | "waiting"} status
 * @property {any} request
 * @property {any} response
 * @property {any} error
 */

const ROWS = 20;
const MAX_TEXT = 600;
/** A browser lays out some 500,000 characters a second, and does nothing else meanwhile. An image as text has millions. */
const MAX_RAW_TEXT = 100_000;
/** Parts of a content are not nested deeper. What a model makes up may be. */
const MAX_DEPTH = 8;
/** A batch that runs changes all the time, and a page of its lines may be large. */
const AGAIN_MS = 3_000;

const section = /** @type {HTMLElement} */ (document.getElementById("lines"));
const form = /** @type {HTMLFormElement} */ (document.getElementById("lines-form"));
const table = /** @type {HTMLElement} */ (document.getElementById("lines-table"));
const first = /** @type {HTMLButtonElement} */ (document.getElementById("lines-first"));
const next = /** @type {HTMLButtonElement} */ (document.getElementById("lines-next"));

/** @type {{ text: string, row: HTMLTableRowElement }[]} */
let shown = [];
/** What a person has last asked for. What is typed and not sent yet is not for the table. */
let filter = new URLSearchParams();
/** Whether the rows may become others. Lines keep their order, and those that have ended stay as they are. */
let mayChange = true;
let afterLine = 0;
let lastLine = 0;
/** The number of calls of {@link show}. A new one ends those before. */
let shows = 0;
/** Whether the last of these calls is under way, and whether the rows have become older meanwhile. */
let isAsking = false;
let isLate = false;
/** @type {ReturnType<typeof setTimeout> | null} */
let again = null;

form.addEventListener("submit", (event) => {
  event.preventDefault();
  filter = filled();
  void show(0);
});
first.addEventListener("click", () => void show(0));
next.addEventListener("click", () => void show(lastLine));
document.addEventListener("batchd:parts", (event) => {
  const ids = event instanceof CustomEvent ? event.detail : [];
  // With a new status all answers may be there, as at the end of the batch, and no event may come after it.
  if (ids.includes("timeline") || ids.includes("heading")) update();
  else if (ids.includes("progress")) updateSoon();
});
document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("#show-examples") : null;
  if (button instanceof HTMLButtonElement) void showExamples(button);
});
void show(0);

function updateSoon() {
  again ??= setTimeout(update, AGAIN_MS);
}

function update() {
  if (again !== null) clearTimeout(again);
  again = null;
  if (!mayChange) return;
  // A reader of a raw line is not disturbed.
  if (document.querySelector("dialog[open]") !== null) updateSoon();
  // Over a slow network, each answer would come too late for the next call.
  else if (isAsking) isLate = true;
  else void show(afterLine);
}

function filled() {
  const params = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    // The id of a line may begin or end with a space.
    const text = name === "custom_id" ? String(value) : String(value).trim();
    if (text !== "") params.set(name, text);
  }
  return params;
}

/** @param {number} after */
async function show(after) {
  const turn = ++shows;
  isAsking = true;
  try {
    await showFrom(after, turn);
  } finally {
    if (turn === shows) isAsking = false;
  }
  if (isAsking || !isLate) return;
  isLate = false;
  update();
}

/**
 * @param {number} after
 * @param {number} turn
 */
async function showFrom(after, turn) {
  const params = new URLSearchParams(filter);
  params.set("limit", String(ROWS));
  // The server looks at some lines only for one page, and a rare line may come many pages later.
  for (let from = after; ; from = lastLine) {
    params.set("after_line", String(from));
    const answer = await callApi("GET", `batches/${section.dataset["batch"]}/lines?${params}`);
    if (turn !== shows) return;
    // The next try is of what was asked for, too: another filter has no line behind those of this one.
    afterLine = from;
    if (!answer.ok) {
      write("lines-state", answer.message);
      mayChange = true;
      // After the end of the batch, no event asks for it.
      if (answer.mayPass) updateSoon();
      return;
    }
    lastLine = answer.value.last_line;
    if (answer.value.data.length > 0 || !answer.value.has_more) {
      showPage(answer.value);
      return;
    }
    write("lines-state", `No such line up to line ${lastLine}; looking on.`);
  }
}

/** @param {{ data: readonly Line[], has_more: boolean }} page */
function showPage({ data, has_more: hasMore }) {
  showRows(data);
  const refocus = keepFocus(first, [next, table]);
  first.hidden = afterLine === 0;
  next.hidden = !hasMore;
  refocus();
  const areEnded = data.length > 0 && data.every(({ status }) => status !== "waiting");
  mayChange = !areEnded || filter.has("status");
  write("lines-state", stateOf(data));
}

/**
 * Replaces the rows that differ, so that the others keep the focus and what is selected in them.
 *
 * @param {readonly Line[]} data
 */
function showRows(data) {
  const next = data.map((line, at) => {
    const text = `${line.line} ${line.status} ${jsonOf(line)}`;
    const old = shown[at];
    return old?.text === text ? old : { text, row: rowOf(line) };
  });
  const place = document.getElementById("lines-rows");
  for (const [at, { row }] of next.entries()) {
    const old = shown[at]?.row;
    const hadFocus = old?.contains(document.activeElement);
    if (old === undefined) place?.append(row);
    else if (old !== row) old.replaceWith(row);
    if (hadFocus) row.querySelector("button")?.focus({ preventScroll: true });
  }
  for (const { row } of shown.slice(next.length)) row.remove();
  // The columns of a table without rows are as wide as their heads ask for, and stand under nothing.
  table.hidden = next.length === 0;
  shown = next;
}

/** @param {readonly Line[]} data */
function stateOf(data) {
  if (data.length > 0) return `Lines ${data[0]?.line} to ${data.at(-1)?.line}`;
  if (filter.size === 0) return "No lines.";
  const id = filter.get("custom_id") ?? "";
  // It came with what was pasted, and cannot be seen.
  const space = id === id.trim() ? "" : " The custom_id begins or ends with a space.";
  return `No such line.${space}`;
}

/** @param {Line} line */
function rowOf(line) {
  const row = document.createElement("tr");
  row.append(
    cell(String(line.line), "number"),
    cell(line.custom_id ?? "–", "id"),
    cell(questionOf(line.request?.body), "middle wrap"),
    cell(answerOf(line), line.status === "failed" ? "wrap fault" : "wrap"),
    rawCell(line),
  );
  return row;
}

/**
 * @param {string} text
 * @param {string} className
 */
function cell(text, className) {
  const element = document.createElement("td");
  element.className = className;
  // Half of a character has no glyph.
  const cut = text.slice(0, MAX_TEXT).replace(/[\ud800-\udbff]$/, "");
  const inner = isolated(text.length > MAX_TEXT ? `${cut}…` : text);
  inner.className = "clamp";
  element.append(inner);
  return element;
}

/** @param {Line} line */
function rawCell(line) {
  const element = document.createElement("td");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "JSON";
  button.setAttribute("aria-label", `JSON of line ${line.line}`);
  button.addEventListener("click", () => {
    write("raw-title", `Line ${line.line}`);
    write("raw-text", rawTextOf(line));
    openDialog(/** @type {HTMLDialogElement} */ (document.getElementById("raw")));
  });
  element.append(button);
  return element;
}

/** @param {Line} line */
function rawTextOf(line) {
  const text = visible(jsonOf(line, 2).slice(0, MAX_RAW_TEXT + 1));
  if (text.length <= MAX_RAW_TEXT) return text;
  const start = text.slice(0, MAX_RAW_TEXT).toWellFormed();
  return `${start}…\n\nThe rest is not shown. The results have it.`;
}

/** @param {any} body */
function questionOf(body) {
  if (body === null || typeof body !== "object") return "–";
  const { messages, input, prompt } = body;
  const last = Array.isArray(messages) ? messages.at(-1)?.content : undefined;
  return textOf(last ?? input ?? prompt ?? body);
}

/** @param {Line} line */
function answerOf({ status, response, error }) {
  if (status === "waiting") return "…";
  const body = response?.body;
  if (status === "failed")
    return textOf(error?.message ?? body?.error?.message ?? body ?? error ?? "failed");
  const embedding = body?.data?.[0]?.embedding;
  // In base64, four bytes are a number.
  const numbers =
    typeof embedding === "string" ? Math.floor((embedding.length * 3) / 16) : embedding?.length;
  if (typeof numbers === "number") {
    const { length } = body.data;
    return length > 1 ? `${length} × ${numbers} numbers` : `${numbers} numbers`;
  }
  return textOf(
    body?.choices?.[0]?.message?.content ?? body?.choices?.[0]?.text ?? body?.output ?? body,
  );
}

/**
 * Returns the text in a content of the API, which may be a list of parts.
 *
 * @param {any} content
 * @param {number} [depth]
 * @returns {string}
 */
function textOf(content, depth = 0) {
  if (typeof content === "string") return content;
  if (depth === MAX_DEPTH) return jsonOf(content);
  if (Array.isArray(content)) return content.map((each) => textOf(each, depth + 1)).join(" ");
  const inner = content?.text ?? content?.content ?? null;
  return inner === null ? jsonOf(content) : textOf(inner, depth + 1);
}

/**
 * A browser reads a text of any depth, and cannot write it again. One such line must not keep the others from the table.
 *
 * @param {unknown} value
 * @param {number} [indent]
 * @returns {string}
 */
function jsonOf(value, indent) {
  try {
    return JSON.stringify(value, null, indent) ?? "";
  } catch {
    return "It is nested too deeply to be shown. The results have it.";
  }
}

/** @param {HTMLButtonElement} button */
async function showExamples(button) {
  const path = `batches/${section.dataset["batch"]}/failures`;
  const answer = await offDuring(button, () => callApi("GET", path));
  const list = document.createElement("ul");
  for (const { code, status_code: status, examples } of answer.ok ? answer.value.data : []) {
    for (const { line, custom_id: id, message } of examples) {
      const item = document.createElement("li");
      const name = [status, code].filter((each) => each !== null).join(" ");
      item.append(isolated(name || "others"), ` · line ${line} · `);
      item.append(isolated(id ?? "–"), ": ", isolated(message ?? "no message"));
      list.append(item);
    }
  }
  document.getElementById("examples")?.replaceChildren(answer.ok ? list : answer.message);
}
