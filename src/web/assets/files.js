/** The page of files: uploads, and the first lines of a file. */
import { note, refusalOf, write } from "./actions.js";
import { takeDrops, uploadIn } from "./upload.js";
import { visible } from "./visible.js";

const PREVIEW_BYTES = 8 * 1024;
const PREVIEW_LINES = 20;

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
  input.addEventListener("change", () => void uploadChosen(form, input));
}

/**
 * @param {HTMLFormElement} form
 * @param {HTMLInputElement} input
 */
async function uploadChosen(form, input) {
  const file = input.files?.[0];
  if (file === undefined) return;
  input.disabled = true;
  const answer = await uploadIn(form, file);
  input.disabled = false;
  input.value = "";
  note(answer.ok ? `${file.name} is uploaded.` : answer.message, answer.ok ? "good" : "bad");
}

/** @param {string} id */
async function preview(id) {
  const root = document.documentElement.dataset["root"];
  const response = await fetch(`${root}web/v1/files/${id}/content`, {
    // With a condition the server answers itself, in place of an address in a bucket.
    headers: { range: `bytes=0-${PREVIEW_BYTES - 1}`, "if-match": "*" },
  }).catch(() => null);
  const text = await response?.text().catch(() => null);
  if (response === null || typeof text !== "string") {
    note("The server does not answer.", "bad");
    return;
  }
  if (!response.ok) {
    note(refusalOf(response.status, text), "bad");
    return;
  }
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("preview"));
  const lines = text.split("\n").slice(0, PREVIEW_LINES).join("\n");
  write("preview-title", id);
  write("preview-text", visible(lines) || "The file is empty.");
  dialog.showModal();
}
