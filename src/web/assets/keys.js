/** The form for a new key, which is shown once. */
import { callApi, write } from "./actions.js";
import { offDuring, openDialog } from "./focus.js";
import { serverNowMs } from "./times.js";

const DAY_SECONDS = 86_400;

const form = /** @type {HTMLFormElement} */ (document.getElementById("new-key"));
const button = /** @type {HTMLButtonElement} */ (form.querySelector("button"));
const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("made"));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void createOnce();
});
button.disabled = false;

/** A second press would make a second key, which the page does not show. */
async function createOnce() {
  const key = await offDuring(button, create);
  // The dialog gives the focus back to what has it now.
  if (key !== null) show(key);
}

/** @returns {Promise<string | null>} */
async function create() {
  const fields = new FormData(form);
  const days = Number(fields.get("days"));
  const request = {
    name: fields.get("name"),
    project: fields.get("project"),
    scopes: fields.getAll("scopes"),
    ...(days > 0 && { expires_at: Math.floor(serverNowMs() / 1000) + days * DAY_SECONDS }),
  };
  const answer = await callApi("POST", "admin/keys", JSON.stringify(request));
  write("fault", answer.ok ? "" : answer.message);
  if (!answer.ok) return null;
  form.reset();
  return answer.value.key;
}

/** @param {string} key */
function show(key) {
  write("made-key", key);
  const copy = document.getElementById("copy-key");
  if (copy !== null) copy.dataset["copy"] = key;
  openDialog(dialog);
}

// The key must not stay in the page.
dialog.addEventListener("close", () => {
  write("made-key", "");
  document.getElementById("copy-key")?.removeAttribute("data-copy");
});
