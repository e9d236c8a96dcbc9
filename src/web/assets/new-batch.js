/** The form for a new batch: checks its file, makes lines of a CSV, uploads, and creates the batch. */
import { createOnce, readStart, write } from "./actions.js";
import { readTable } from "./csv.js";
import { offDuring } from "./focus.js";
import { checkLines, endpointsIn, kindOf } from "./input-check.js";
import { canBeNamed, lineOf, unknownColumns } from "./template.js";
import { isReadable, takeDrops, uploadIn } from "./upload.js";
import { visible } from "./visible.js";

const PREVIEW_LINES = 3;
/** The text of a cell that the preview shows. A browser cannot lay out a text of megabytes. */
const PREVIEW_CHARACTERS = 1_000;
/** The columns that the page lists. */
const LISTED_COLUMNS = 100;
/** The lines that the memory of the page holds before the browser may put them on its disk. */
const BLOB_LINES = 1_000;
const TABLE_NAME = /\.[ct]sv$/i;
/** Its cells may have commas, so its columns are not guessed. */
const TAB_TABLE_NAME = /\.tsv$/i;
const WORKBOOK =
  "The file is a workbook of a spreadsheet program, or another archive. Save the table as CSV, and choose that file.";
const PACKED_TABLE =
  "The file is packed. Unpack it first: a table becomes lines on this page, and only lines may be packed.";

const form = /** @type {HTMLFormElement} */ (document.getElementById("new"));

/** @template {HTMLElement} T @param {string} selector @returns {T} */
const find = (selector) => /** @type {T} */ (form.querySelector(selector));
/** @param {string} name */
const fieldOf = (name) => String(new FormData(form).get(name) ?? "").trim();

/** @typedef {{ kind: "lines", file: File } | { kind: "rows", file: File, columns: string[], rows: import("./template.js").Row[] }} Input */

/**
 * What the chosen file holds: lines as they are, or rows for the template.
 *
 * @type {Input | null}
 */
let input = null;

/**
 * The file that was looked at last.
 *
 * @type {File | undefined}
 */
let latest;

/**
 * The input that the server has, and what made its lines. Where the batch is refused, or the answer is lost, the next try
 * sends it no second time.
 *
 * @type {{ input: Input | null, lines: string, id: string } | null}
 */
let sent = null;

const createButton = () => /** @type {HTMLButtonElement} */ (find("#create"));
const endpointField = () => /** @type {HTMLSelectElement} */ (find("select[name=endpoint]"));

const picker = form.querySelector("input[type=file]");
if (picker instanceof HTMLInputElement) {
  takeDrops(find(".drop-zone"));
  const look = () => {
    if (picker.files?.[0] !== latest) void take(picker.files?.[0]);
  };
  picker.addEventListener("change", look);
  // A file that was corrected and is chosen again under its name is no change to the browser, which says that nothing was chosen.
  picker.addEventListener("cancel", look);
  // A file that was chosen before this script came, or that the browser gives back on the way back, has no event.
  addEventListener("pageshow", look);
  form.addEventListener("input", (event) => {
    if (event.target !== picker) showLines();
  });
}
if (fieldOf("known") !== "") void takeEndpointOf(fieldOf("known"));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  void create();
});
createButton().disabled = false;

/** @param {File | undefined} file */
async function take(file) {
  latest = file;
  input = null;
  find("#template").hidden = true;
  showFault("");
  if (file === undefined) return;
  find("#checked").textContent = `Checking ${visible(file.name)} …`;
  const show = await taken(file).catch(() => () => {
    find("#checked").textContent =
      `The browser cannot read ${visible(file.name)}. It is a folder, has changed, or is too large for it.`;
  });
  // Another file may have been chosen meanwhile.
  if (picker instanceof HTMLInputElement && picker.files?.[0] === file) show();
}

/** @param {File} file */
async function taken(file) {
  const kind = await kindOf(file);
  if (kind === "workbook") return () => showFaults([{ line: 1, message: WORKBOOK }]);
  if (kind === "packed") return takenPacked(file);
  const isTable = TABLE_NAME.test(file.name) || file.type === "text/csv";
  return isTable ? takenRows(file) : takenLines(file);
}

/** @param {File} file */
function takenPacked(file) {
  return () => {
    if (/\.[ct]sv\.\w+$/i.test(file.name)) {
      showFaults([{ line: 1, message: PACKED_TABLE }]);
      return;
    }
    input = { kind: "lines", file };
    find("#checked").textContent =
      "A packed file. The server unpacks it and checks its lines. Choose their endpoint below.";
  };
}

/** @param {File} file */
async function takenLines(file) {
  const { lineCount, faults, url } = await checkLines(file);
  return () => {
    if (faults.length > 0) {
      showFaults(faults);
      return;
    }
    input = { kind: "lines", file };
    chooseEndpoint(url === null ? [] : [url]);
    find("#checked").textContent = `${counted(lineCount, "line")}, no fault found.`;
  };
}

/**
 * Chooses the first of these that a batch may have.
 *
 * @param {readonly string[]} urls
 */
function chooseEndpoint(urls) {
  const select = endpointField();
  const known = urls.find((url) => [...select.options].some(({ value }) => value === url));
  if (known !== undefined) select.value = known;
}

/** Chooses the endpoint that the first line of a file at the server asks for, unless a person has been faster. */
async function takeEndpointOf(/** @type {string} */ fileId) {
  const before = endpointField().value;
  const start = await readStart(fileId);
  if (start.ok && endpointField().value === before) chooseEndpoint(endpointsIn(start.text));
}

/** @param {File} file */
async function takenRows(file) {
  const { columns, rows, faults } = await readTable(
    file,
    TAB_TABLE_NAME.test(file.name) ? "\t" : null,
  );
  return () => {
    if (faults.length > 0) {
      showFaults(faults);
      return;
    }
    input = { kind: "rows", file, columns, rows };
    find("#checked").textContent = `${counted(rows.length, "row")}.`;
    const usable = columns.filter(canBeNamed);
    find("#columns").textContent = visible(columnsNote(usable, columns));
    const prompt = /** @type {HTMLTextAreaElement} */ (find("#prompt"));
    if (prompt.value === "") prompt.value = usable.length === 0 ? "" : `{{${usable.at(-1)}}}`;
    find("#template").hidden = false;
    showLines();
  };
}

/**
 * @param {readonly string[]} usable
 * @param {readonly string[]} all
 */
function columnsNote(usable, all) {
  const listed = usable.slice(0, LISTED_COLUMNS).map((name) => `{{${name}}}`);
  const more = usable.length - listed.length;
  const named = `Columns: ${listed.join(" ")}${more > 0 ? ` and ${more.toLocaleString("en")} more` : ""}`;
  const others = all
    .filter((name) => !canBeNamed(name))
    .slice(0, LISTED_COLUMNS)
    .join(", ");
  return others === ""
    ? named
    : `${named}. A prompt cannot use columns with braces in their names: ${others}. Rename them in the file.`;
}

/**
 * @param {number} count
 * @param {string} what
 */
const counted = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

/** @param {{ line: number, message: string }[]} faults */
function showFaults(faults) {
  const list = document.createElement("ul");
  list.className = "faults";
  for (const { line, message } of faults) {
    const item = document.createElement("li");
    item.textContent = `Line ${line}: ${visible(message)}`;
    list.append(item);
  }
  find("#checked").replaceChildren("Nothing was sent. The first faults:", list);
}

const template = () => ({
  endpoint: fieldOf("endpoint"),
  model: fieldOf("model"),
  prompt: /** @type {HTMLTextAreaElement} */ (find("#prompt")).value,
  system: /** @type {HTMLTextAreaElement} */ (find("#system")).value,
});

function showLines() {
  if (input?.kind !== "rows") return;
  showFault(columnFault(input.columns) ?? "");
  const lines = input.rows.slice(0, PREVIEW_LINES).map((row, at) => {
    const text = document.createElement("pre");
    text.tabIndex = 0;
    text.textContent = visible(JSON.stringify(lineOf(shortened(row), at + 1, template())));
    return text;
  });
  find("#first-lines").replaceChildren(...lines);
}

/**
 * @param {import("./template.js").Row} row
 * @returns {import("./template.js").Row}
 */
const shortened = (row) =>
  Object.fromEntries(
    Object.entries(row).map(([name, cell]) => [name, isLong(cell) ? startOf(cell) : cell]),
  );

/** @param {string} cell */
const isLong = (cell) => cell.length > PREVIEW_CHARACTERS;
/** @param {string} cell */
const startOf = (cell) => `${cell.slice(0, PREVIEW_CHARACTERS).toWellFormed()}…`;

/**
 * @param {readonly string[]} columns
 * @returns {string | null}
 */
function columnFault(columns) {
  const { prompt, system } = template();
  const unknown = unknownColumns(`${prompt}\n${system}`, columns);
  const names = unknown.map((name) => `{{${name}}}`).join(", ");
  return names === "" ? null : `There is no column ${visible(names)}.`;
}

/** @param {string} message */
function showFault(message) {
  write("fault", message);
}

async function create() {
  showFault("");
  const problem = problemOf();
  if (problem !== null) {
    showFault(problem);
    return;
  }
  const answer = await offDuring(createButton(), send, ({ ok }) => ok);
  if (!answer.ok) showFault(answer.message);
  else location.assign(`${document.documentElement.dataset["root"]}batches/${answer.value.id}`);
}

/**
 * The first text of its label; a hint may follow.
 *
 * @param {HTMLInputElement} field
 */
function nameOf({ labels }) {
  const label = labels?.[0];
  return (label?.querySelector("span") ?? label)?.firstChild?.textContent?.trim();
}

/**
 * The browser does not say which format it has requested.
 *
 * @param {HTMLInputElement} field
 */
const faultOf = ({ validity, title, validationMessage }) =>
  validity.patternMismatch ? `${title}.` : validationMessage;

/** @returns {string | null} */
function problemOf() {
  if (input === null && fieldOf("known") === "") return "Choose a file first.";
  // The value of a number that the browser cannot read is empty, and the batch would run without it.
  const wrong = form.querySelector("input:invalid:not([type=file])");
  if (wrong instanceof HTMLInputElement) return `${nameOf(wrong)}: ${faultOf(wrong)}`;
  const pairless = metadataLines().find((line) => line.indexOf("=") < 1);
  if (pairless !== undefined) return `Write metadata as key=value, not as ${visible(pairless)}.`;
  const keys = new Set();
  const [twice] = metadataPairs().find(([key]) => keys.size === keys.add(key).size) ?? [];
  if (twice !== undefined)
    return `Metadata has one value for a key, and ${visible(twice)} has two.`;
  if (input?.kind !== "rows") return null;
  const { prompt, model } = template();
  if (prompt.trim() === "") return "Write a prompt for each row.";
  if (model === "") return "Name the model that answers the rows.";
  return columnFault(input.columns);
}

async function send() {
  // What is chosen or typed during the upload is not for this batch.
  const request = batchRequest();
  const uploaded = await uploadedInput();
  if (!uploaded.ok) return uploaded;
  return createOnce("batches", JSON.stringify({ input_file_id: uploaded.value.id, ...request }));
}

/** @returns {Promise<import("./actions.js").Answer>} the file object, or at least its id */
async function uploadedInput() {
  const known = fieldOf("known");
  if (known !== "") return { ok: true, value: { id: known } };
  const chosen = input;
  const lines = chosen?.kind === "rows" ? JSON.stringify(template()) : "";
  // Its former lines must not become a batch where the file has changed.
  const isThere = chosen?.kind !== "lines" || (await isReadable(chosen.file));
  const isSent = sent?.input === chosen && sent?.lines === lines && isThere;
  if (sent !== null && isSent) return { ok: true, value: { id: sent.id } };
  const uploaded = await uploadIn(form, inputFile(chosen));
  // The refusal is beside the button.
  find(".upload-state").hidden = true;
  if (uploaded.ok) sent = { input: chosen, lines, id: uploaded.value.id };
  return uploaded;
}

/** @param {Input | null} chosen */
function inputFile(chosen) {
  if (chosen?.kind !== "rows") return /** @type {{ file: File }} */ (chosen).file;
  const { rows, file } = chosen;
  const asked = template();
  const blobs = [];
  for (let first = 0; first < rows.length; first += BLOB_LINES) {
    const some = rows.slice(first, first + BLOB_LINES);
    const lines = some.map((row, at) => `${JSON.stringify(lineOf(row, first + at + 1, asked))}\n`);
    blobs.push(new Blob(lines));
  }
  return new File(blobs, file.name.replace(TABLE_NAME, ".jsonl"));
}

const metadataLines = () =>
  fieldOf("metadata")
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");

const metadataPairs = () =>
  metadataLines().map((line) => [
    line.slice(0, line.indexOf("=")).trim(),
    line.slice(line.indexOf("=") + 1).trim(),
  ]);

function batchRequest() {
  const pairs = metadataPairs();
  const model = fieldOf("model");
  const sample = Number(fieldOf("sample"));
  const budget = fieldOf("budget").trim();
  const own = {
    priority: Number(fieldOf("priority") || 0),
    ...(model !== "" && { default_model: model }),
    ...(sample > 0 && { sample }),
    ...(budget !== "" && { budget }),
  };
  return {
    endpoint: fieldOf("endpoint"),
    completion_window: fieldOf("window"),
    ...(pairs.length > 0 && { metadata: Object.fromEntries(pairs) }),
    x_batchd: own,
  };
}
