/** Buttons that call the API, the question before something is lost, and short notes about what happened. */

import { offDuring, openDialog } from "./focus.js";
import { isInUse } from "./in-use.js";
import { isForeign, renewToken, token } from "./session.js";

const NOTE_MS = 6_000;
/** A network that loses every packet ends no request, and a button would stay off. */
const SILENT_AFTER_MS = 2 * 60_000;
const SILENT = "The server does not answer.";

const root = document.documentElement.dataset["root"] ?? "./";

export function startActions() {
  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element)) return;
    const button = event.target.closest("button");
    if (button === null) return;
    if (button.dataset["copy"] !== undefined) void copy(button, button.dataset["copy"]);
    if (button.dataset["path"] !== undefined) void act(button);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.dataset["path"] === undefined) return;
    event.preventDefault();
    void sendForm(form);
  });
}

/**
 * The answer of the API. Its value is `any` because each caller knows the object that it has asked for. `mayPass` is there where the
 * same request may have another answer in a while.
 *
 * @typedef {{ ok: true, value: any } | { ok: false, message: string, mayPass?: boolean }} Answer
 */

/**
 * Calls the API with the session of the page.
 *
 * @param {string} method
 * @param {string} path the path below `/v1/`
 * @param {BodyInit | null} [body]
 * @param {string | null} [key] makes the request safe to repeat
 * @returns {Promise<Answer>}
 */
export async function callApi(method, path, body = null, key = null) {
  const given = key === null ? {} : { "idempotency-key": key };
  const send = () => textOf(`${root}web/v1/${path}`, { method, headers: given, body });
  const sentToken = token();
  let answer = await send();
  if (answer !== null && isForeign(answer.status, answer.text) && (await renewToken(sentToken))) {
    answer = await send();
  }
  if (answer === null) return { ok: false, message: SILENT, mayPass: true };
  return answerOf(answer.status, answer.text);
}

/**
 * Returns null without an answer: the connection may break, and an answer may be longer than a text of the browser.
 *
 * @param {string} url
 * @param {RequestInit & { headers: object }} init
 */
async function textOf(url, init) {
  const headers = { ...init.headers, "x-batchd-token": token() };
  const abort = new AbortController();
  const silent = setTimeout(() => abort.abort(), SILENT_AFTER_MS);
  const response = await fetch(url, { ...init, headers, signal: abort.signal }).catch(() => null);
  const text = await response?.text().catch(() => null);
  clearTimeout(silent);
  return response === null || typeof text !== "string" ? null : { status: response.status, text };
}

/**
 * Reads an answer. A proxy may answer for the server, with a page to sign in and the status of a success.
 *
 * @param {number} status
 * @param {string} text
 * @returns {Answer}
 */
export function answerOf(status, text) {
  const value = isSuccess(status) ? parsed(text) : null;
  if (value !== null) return { ok: true, value };
  return { ok: false, message: refusalOf(status, text), mayPass: isPassing(status) };
}

/**
 * Whether a status is of a server, or a proxy in front of it, that may give another answer to the same request.
 *
 * @param {number} status
 */
export const isPassing = (status) => [408, 409, 425, 429].includes(status) || status >= 500;

/** @param {number} status */
const isSuccess = (status) => status >= 200 && status < 300;

const START_BYTES = 8 * 1024;

/**
 * Reads the start of a file at the server.
 *
 * @param {string} id
 * @returns {Promise<{ ok: true, text: string } | { ok: false, message: string }>}
 */
export async function readStart(id) {
  // With a condition the server answers itself, in place of an address in a bucket.
  const headers = { range: `bytes=0-${START_BYTES - 1}`, "if-match": "*" };
  const answer = await textOf(`${root}web/v1/files/${id}/content`, { headers });
  if (answer === null) return { ok: false, message: SILENT };
  const { status, text } = answer;
  return isSuccess(status) ? { ok: true, text } : { ok: false, message: refusalOf(status, text) };
}

/** Returns a key that makes a request safe to repeat. `randomUUID` is not there on a page without TLS. */
export const newKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** @type {{ path: string, body: string, key: string } | null} */
let latestCreation = null;

/**
 * Creates a batch or a delivery. A person who has no answer presses the button again: the same request has the same key, so it makes
 * no second one, which would cost as much again.
 *
 * @param {string} path
 * @param {string} body
 * @returns {Promise<Answer>}
 */
export async function createOnce(path, body) {
  if (latestCreation?.path !== path || latestCreation.body !== body)
    latestCreation = { path, body, key: newKey() };
  const answer = await callApi("POST", path, body, latestCreation.key);
  if (answer.ok) latestCreation = null;
  return answer;
}

/**
 * Returns what an answer says that is no success. Where the session has ended, it loads the page anew, which asks to sign in,
 * unless a person would lose what is filled in.
 *
 * @param {number} status
 * @param {string} text
 * @returns {string}
 */
function refusalOf(status, text) {
  if (status === 401 && isInUse())
    return "Your session has ended. Sign in in another tab, then try again here.";
  if (status === 401) location.reload();
  const message = parsed(text)?.error?.message;
  if (typeof message === "string") return message;
  if (status < 300)
    return "Something between this page and the server has answered. Load it again.";
  const isPage = text.trim() === "" || text.trimStart().startsWith("<");
  return isPage ? `The server answered ${status}. Try again later.` : text.slice(0, 300);
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** @param {HTMLButtonElement} button */
async function act(button) {
  const {
    method = "POST",
    path = "",
    body = null,
    next,
    choicePath = path,
    rerunOf,
  } = button.dataset;
  const label = button.textContent;
  const decision = await ask(button);
  if (!decision.isYes) return;
  const later = rerunOf === undefined ? null : await laterRunOf(button, rerunOf);
  const calledPath = decision.isChosen ? choicePath : path;
  const answer = later ?? (await callWith(button, method, calledPath, body));
  if (!answer.ok) note(answer.message, "bad");
  else if (next === "made") location.assign(`${root}batches/${answer.value.id}`);
  else if (next !== undefined) location.assign(root + next);
  else note(`${label}: done.`, "good");
}

/**
 * Returns the batch that runs lines of another one again, or why that is not known; null when none does. The page may not know it
 * yet, and the lines would be paid for twice.
 *
 * @param {HTMLButtonElement} button
 * @param {string} id
 * @returns {Promise<Answer | null>}
 */
async function laterRunOf(button, id) {
  const answer = await callWith(button, "GET", `batches/${id}`);
  if (!answer.ok) return answer;
  /** @type {string[]} */
  const runs = answer.value.x_batchd.retried_by;
  const otherRuns = (button.dataset["otherRuns"] ?? "").split(" ");
  const later = runs.find((run) => !otherRuns.includes(run));
  return later === undefined ? null : { ok: true, value: { id: later } };
}

/**
 * Sends the fields of a form as JSON, without the empty ones, and then calls the path that comes after it, if there is one.
 *
 * @param {HTMLFormElement} form
 */
async function sendForm(form) {
  const { path = "", then, next } = form.dataset;
  const button = /** @type {HTMLButtonElement} */ (form.querySelector("button"));
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  const body = JSON.stringify(Object.fromEntries(fields));
  const sent = await callWith(button, "POST", path, body);
  const answer = sent.ok && then !== undefined ? await callWith(button, "POST", then) : sent;
  // Where nothing changes any more, the page has no events that would bring what is new.
  if (answer.ok && next === "again") {
    location.reload();
    return;
  }
  note(answer.ok ? `${button.textContent}: done.` : answer.message, answer.ok ? "good" : "bad");
}

/**
 * Calls the API once, however often the button is pressed meanwhile.
 *
 * @param {HTMLButtonElement} button
 * @param {Parameters<typeof callApi>} call
 */
function callWith(button, ...call) {
  const [method, path, body] = call;
  const isCreation = method === "POST" && typeof body === "string";
  return offDuring(
    button,
    () => (isCreation ? createOnce(path, body) : callApi(...call)),
    ({ ok }) => ok && (button.dataset["next"] ?? button.form?.dataset["next"]) !== undefined,
  );
}

/**
 * Ends with the question that was asked last. The event of its end comes some time after its dialog is gone, and the next
 * question must not take it for its own.
 *
 * @type {Promise<unknown>}
 */
let lastQuestion = Promise.resolve();

/**
 * Asks the question of a button, if it has one.
 *
 * @param {HTMLButtonElement} button
 * @returns {Promise<{ isYes: boolean, isChosen: boolean }>}
 */
function ask(button) {
  const dialog = document.getElementById("ask");
  if (button.dataset["ask"] === undefined || !(dialog instanceof HTMLDialogElement)) {
    return Promise.resolve({ isYes: true, isChosen: false });
  }
  const answer = lastQuestion.then(() => askIn(dialog, button));
  lastQuestion = answer;
  return answer;
}

/**
 * @param {HTMLDialogElement} dialog
 * @param {HTMLButtonElement} button
 * @returns {Promise<{ isYes: boolean, isChosen: boolean }>}
 */
function askIn(dialog, button) {
  const { ask: title = "", detail = "", choice } = button.dataset;
  write("ask-title", title);
  write("ask-detail", detail);
  write("ask-yes", button.textContent ?? "");
  const box = /** @type {HTMLElement} */ (document.getElementById("ask-choice"));
  const input = /** @type {HTMLInputElement} */ (box.querySelector("input"));
  box.hidden = choice === undefined;
  const label = box.querySelector("span");
  if (label !== null) label.textContent = choice ?? "";
  dialog.returnValue = "no";
  openDialog(dialog);
  return new Promise((resolve) => {
    const end = () => {
      resolve({ isYes: dialog.returnValue === "yes", isChosen: input.checked });
      // A tick that stays would be a choice that a load of the page loses.
      input.checked = false;
    };
    dialog.addEventListener("close", end, { once: true });
  });
}

/**
 * A screen reader reads out each change of some elements, also one to the same text.
 *
 * @param {string} id
 * @param {string} text
 */
export function write(id, text) {
  const element = document.getElementById(id);
  if (element !== null && element.textContent !== text) element.textContent = text;
}

/**
 * @param {HTMLButtonElement} button
 * @param {string} text
 */
async function copy(button, text) {
  // A second press comes while the button says what became of the first.
  button.dataset["label"] ??= button.textContent ?? "";
  const { label } = button.dataset;
  // Without TLS, a browser has no clipboard for pages.
  const isCopied =
    navigator.clipboard === undefined
      ? copiedByCommand(text)
      : await navigator.clipboard.writeText(text).then(
          () => true,
          () => false,
        );
  button.textContent = isCopied ? "Copied" : "Not allowed";
  setTimeout(() => {
    button.textContent = label ?? "";
  }, 1_500);
}

/**
 * Gives the text to the command of the browser that copies what is selected.
 *
 * @param {string} text
 */
function copiedByCommand(text) {
  let isGiven = false;
  const give = (/** @type {ClipboardEvent} */ event) => {
    event.clipboardData?.setData("text/plain", text);
    event.preventDefault();
    isGiven = event.clipboardData !== null;
  };
  document.addEventListener("copy", give);
  const isDone = document.execCommand("copy");
  document.removeEventListener("copy", give);
  return isDone && isGiven;
}

/**
 * Shows a note for some seconds. A screen reader reads it out.
 *
 * @param {string} text
 * @param {"good" | "bad"} tone
 */
export function note(text, tone) {
  const place = document.getElementById("notes");
  if (place === null) return;
  const element = document.createElement("p");
  element.className = `note ${tone}`;
  element.textContent = text;
  place.append(element);
  setTimeout(() => element.remove(), NOTE_MS);
}
