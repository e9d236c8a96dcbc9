/** The page of files: uploads, and the first lines of a file. */
import { note, readStart, write } from "./actions.js";
import { offDuring, openDialog } from "./focus.js";
import { takeDrops, uploadIn, withStorage } from "./upload.js";
import { visible } from "./visible.js";

const PREVIEW_LINES = 20;
/** The entry of this window with the name of the file on its way. An upload ends with its page, as where the session ends. */
const UNDER_WAY = "batchd upload under way";

/** The number of calls of {@link preview}. A new one ends those before. */
let previews = 0;

const form = document.getElementById("upload");
if (form instanceof HTMLFormElement) startUpload(form);

document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("[data-preview]") : null;
  if (button instanceof HTMLElement) void preview(button.dataset["preview"] ?? "");
});

/** @param {HTMLFormElement} form */
function startUpload(form) {
  const input = /** @type {HTMLInputElement} */ (form.querySelector("input[type=file]"));
  takeDrops(/** @type {HTMLElement} */ (form.querySelector(".drop-zone")));
  const left = ofWindow((storage) => storage.getItem(UNDER_WAY));
  if (left !== null)
    note(`The upload of ${visible(left)} broke off. Choose the file again.`, "bad");
  ofWindow((storage) => storage.removeItem(UNDER_WAY));
  input.addEventListener("change", () => void uploadChosen(form, input));
  // A file that was chosen before this script came has no event.
  if (input.files?.length === 1) void uploadChosen(form, input);
}

/**
 * @param {HTMLFormElement} form
 * @param {HTMLInputElement} input
 */
async function uploadChosen(form, input) {
  const file = input.files?.[0];
  if (file === undefined) return;
  ofWindow((storage) => storage.setItem(UNDER_WAY, file.name));
  const answer = await offDuring(input, () => uploadIn(form, file));
  ofWindow((storage) => storage.removeItem(UNDER_WAY));
  input.value = "";
  note(
    answer.ok ? `${visible(file.name)} is uploaded.` : answer.message,
    answer.ok ? "good" : "bad",
  );
}

/** @param {(storage: Storage) => string | null | void} use */
function ofWindow(use) {
  return withStorage(use, () => sessionStorage) ?? null;
}

/** @param {string} id */
async function preview(id) {
  const turn = ++previews;
  const start = await readStart(id);
  if (turn !== previews) return;
  if (!start.ok) {
    note(start.message, "bad");
    return;
  }
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("preview"));
  const lines = start.text.split("\n").slice(0, PREVIEW_LINES).join("\n");
  write("preview-title", id);
  write("preview-text", visible(lines) || "The file is empty.");
  openDialog(dialog);
}
