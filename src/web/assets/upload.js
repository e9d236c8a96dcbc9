/**
 * Uploads a file with its progress. What a broken connection has lost is sent again. A large file goes in parts by the Uploads
 * API, and after a reload of the page the same file goes on with the first part that is missing.
 */
import { answerOf, isPassing, newKey, note } from "./actions.js";
import { isForeign, renewToken, token } from "./session.js";
import { visible } from "./visible.js";

/** @typedef {import("./actions.js").Answer} Answer */
/**
 * `next` is what may help: another try, perhaps with another token; or a person, after whom the upload can go on; or a new
 * upload.
 *
 * @typedef {{ ok: false, message: string, next: "retry" | "renew" | "resume" | "restart" }} Unsent
 * @typedef {{ ok: true, value: any } | Unsent} Sent
 */
/** @typedef {(sentBytes: number, note?: string) => void} OnProgress */

const IN_PARTS_FROM_BYTES = 64 * 1024 * 1024;
const PART_BYTES = 16 * 1024 * 1024;
/** The wait for a server or a network that is away. A server that died keeps the key of a completion for a minute. */
const PATIENCE_MS = 3 * 60_000;
/** A network that loses every packet ends no request. What a browser has taken may be on its way for long in a slow one. */
const SILENT_AFTER_MS = 3 * 60_000;
const PAUSE_MS = { first: 1_000, last: 10_000 };
/** The server gives an upload an hour. One that is nearly over is begun anew. */
const RESUMABLE_MS = 50 * 60_000;
const UPLOAD_MS = 60 * 60_000;
const TOO_SLOW =
  "At this speed the file does not arrive within the hour that an upload has. Use a faster connection, or smaller files.";

/**
 * @param {File} file
 * @param {OnProgress} onProgress
 * @returns {Promise<Answer>} the file object
 */
export function upload(file, onProgress) {
  return file.size > IN_PARTS_FROM_BYTES ? inParts(file, onProgress) : whole(file, onProgress);
}

/**
 * @param {File} file
 * @param {OnProgress} onProgress
 */
function whole(file, onProgress) {
  const form = new FormData();
  form.set("purpose", "batch");
  form.set("file", file);
  return sendAgain("files", form, onProgress, newKey());
}

/**
 * Returns whether the browser can read a file. It reads none that has changed since it was chosen, or is gone.
 *
 * @param {Blob} file
 */
export async function isReadable(file) {
  const start = await file
    .slice(0, 1)
    .arrayBuffer()
    .catch(() => null);
  return start !== null;
}

/**
 * Sends a form or JSON. `fetch` cannot say how far an upload is.
 *
 * @param {string} path
 * @param {FormData | string} body
 * @param {OnProgress} onProgress
 * @param {string | null} key makes the request safe to repeat
 * @returns {Promise<Sent>}
 */
function send(path, body, onProgress, key = null) {
  const { root = "./" } = document.documentElement.dataset;
  const request = new XMLHttpRequest();
  request.open("POST", `${root}web/v1/${path}`);
  request.setRequestHeader("x-batchd-token", token());
  if (key !== null) request.setRequestHeader("idempotency-key", key);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let silent;
  const heard = () => {
    clearTimeout(silent);
    // A server may be at work for long on JSON, as on what joins many parts.
    if (typeof body !== "string") silent = setTimeout(() => request.abort(), SILENT_AFTER_MS);
  };
  request.upload.addEventListener("progress", ({ loaded }) => {
    heard();
    onProgress(loaded);
  });
  request.addEventListener("loadend", () => clearTimeout(silent));
  return new Promise((resolve) => {
    const fail = () => resolve({ ok: false, message: "The connection was lost.", next: "retry" });
    request.addEventListener("error", fail);
    request.addEventListener("abort", fail);
    request.addEventListener("load", () => {
      const answer = answerOf(request.status, request.responseText);
      resolve(answer.ok ? answer : { ...answer, next: nextOf(request) });
    });
    heard();
    request.send(body);
  });
}

/**
 * @param {XMLHttpRequest} request
 * @returns {Unsent["next"]}
 */
function nextOf(request) {
  const { status, responseText } = request;
  if (isForeign(status, responseText)) return "renew";
  // The session has ended, here or at a proxy, or a quota is used up.
  const isAwaited = request.getResponseHeader("x-should-retry") === "false";
  if (status === 401 || status < 300 || isAwaited) return "resume";
  return isPassing(status) ? "retry" : "restart";
}

/**
 * @typedef {object} Saved
 * @property {string} id
 * @property {string[]} partIds
 * @property {number} startedAtMs
 */

/**
 * @param {File} file
 * @param {OnProgress} onProgress
 * @returns {Promise<Answer>}
 */
async function inParts(file, onProgress) {
  const place = `batchd upload ${file.name} ${file.size} ${file.lastModified}`;
  const begun = restored(place) ?? (await begin(file, place, onProgress));
  if (typeof begun === "string") return { ok: false, message: begun };
  const first = begun.partIds.length;
  const sinceMs = Date.now();
  for (let at = first; at * PART_BYTES < file.size; at++) {
    const start = at * PART_BYTES;
    const msForPart = at === first ? 0 : (Date.now() - sinceMs) / (at - first);
    const endsAtMs = Date.now() + (msForPart * (file.size - start)) / PART_BYTES;
    const warning = endsAtMs > begun.startedAtMs + UPLOAD_MS ? TOO_SLOW : undefined;
    onProgress(start, warning);
    const form = new FormData();
    form.set("data", file.slice(start, start + PART_BYTES));
    const sent = await sendAgain(`uploads/${begun.id}/parts`, form, (bytes, note) =>
      onProgress(start + Math.min(bytes, PART_BYTES), note ?? warning),
    );
    if (!sent.ok) return broken(sent, place);
    begun.partIds.push(sent.value.id);
    withStorage((storage) => storage.setItem(place, JSON.stringify(begun)));
  }
  const body = JSON.stringify({ part_ids: begun.partIds });
  const completed = await sendAgain(
    `uploads/${begun.id}/complete`,
    body,
    (_, note) => onProgress(file.size, note),
    `complete ${begun.id}`,
  );
  if (!completed.ok) return broken(completed, place);
  withStorage((storage) => storage.removeItem(place));
  return { ok: true, value: completed.value.file };
}

/**
 * An upload that the server refuses to go on with, or does not know any more, begins anew.
 *
 * @param {Unsent} refusal
 * @param {string} place
 * @returns {Answer}
 */
function broken({ message, next }, place) {
  const isOver = next === "restart";
  if (isOver) withStorage((storage) => storage.removeItem(place));
  const purpose = isOver ? "to begin anew" : "to go on";
  return { ok: false, message: `${message} Choose the same file again ${purpose}.` };
}

/**
 * @param {string} place
 * @returns {Saved | null}
 */
function restored(place) {
  const text = withStorage((storage) => storage.getItem(place));
  if (text === null) return null;
  /** @type {Saved} */
  const saved = JSON.parse(text);
  return Date.now() - saved.startedAtMs < RESUMABLE_MS ? saved : null;
}

/**
 * @param {File} file
 * @param {string} place
 * @param {OnProgress} onProgress
 * @returns {Promise<Saved | string>} the upload, or why there is none
 */
async function begin(file, place, onProgress) {
  const request = {
    filename: file.name,
    purpose: "batch",
    bytes: file.size,
    mime_type: "application/jsonl",
  };
  const created = await sendAgain(
    "uploads",
    JSON.stringify(request),
    (_, note) => onProgress(0, note),
    newKey(),
  );
  if (!created.ok) return created.message;
  /** @type {Saved} */
  const saved = { id: created.value.id, partIds: [], startedAtMs: Date.now() };
  withStorage((storage) => storage.setItem(place, JSON.stringify(saved)));
  return saved;
}

/**
 * Returns null in a browser that keeps nothing for pages, or has no room. An upload then begins anew after a reload.
 *
 * @template T
 * @param {(storage: Storage) => T} use
 * @param {() => Storage} find
 * @returns {T | null}
 */
export function withStorage(use, find = () => localStorage) {
  try {
    return use(find());
  } catch {
    return null;
  }
}

/**
 * Sends once more what a server or a network that is away has not taken.
 *
 * @param {string} path
 * @param {FormData | string} body
 * @param {OnProgress} onProgress
 * @param {string | null} key
 * @returns {Promise<Sent>}
 */
async function sendAgain(path, body, onProgress, key = null) {
  for (
    let pauseMs = PAUSE_MS.first, waitedMs = 0;
    ;
    pauseMs = Math.min(pauseMs * 2, PAUSE_MS.last)
  ) {
    const sentToken = token();
    const answer = await send(path, body, onProgress, key);
    if (answer.ok) return answer;
    if (answer.next === "renew" && (await renewToken(sentToken))) continue;
    if (answer.next !== "retry" || waitedMs >= PATIENCE_MS) return answer;
    const message = body instanceof FormData ? await faultOf(body) : null;
    if (message !== null) return { ok: false, message, next: "restart" };
    onProgress(0, `${answer.message} Trying again …`);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
    waitedMs += pauseMs;
  }
}

/**
 * A browser that cannot read a file says the same of a request as where the connection is lost.
 *
 * @param {FormData} form
 * @returns {Promise<string | null>}
 */
async function faultOf(form) {
  for (const part of form.values()) {
    if (typeof part !== "string" && !(await isReadable(part)))
      return "The browser cannot read the file any more. It has changed, or is gone.";
  }
  return null;
}

/**
 * Uploads with the bar of a form.
 *
 * @param {HTMLFormElement} form
 * @param {File} file
 */
export async function uploadIn(form, file) {
  const state = /** @type {HTMLElement} */ (form.querySelector(".upload-state"));
  const bar = /** @type {HTMLProgressElement} */ (form.querySelector("progress"));
  const text = /** @type {HTMLElement} */ (form.querySelector(".upload-text"));
  const shareText = /** @type {HTMLElement} */ (form.querySelector(".upload-share"));
  state.hidden = false;
  bar.hidden = false;
  text.textContent = "Sending the file.";
  const answer = await upload(file, (sentBytes, note) => {
    const share = file.size === 0 ? 1 : Math.min(1, sentBytes / file.size);
    bar.value = share;
    shareText.textContent = `${Math.floor(share * 100)}% of ${sizeOf(file)}`;
    const said = note ?? "Sending the file.";
    if (text.textContent !== said) text.textContent = said;
  });
  state.hidden = answer.ok;
  if (!answer.ok) {
    // A full bar would look like success.
    bar.hidden = true;
    shareText.textContent = "";
    text.textContent = answer.message;
  }
  return answer;
}

/** @param {File} file */
function sizeOf({ size }) {
  if (size <= 999e3) return `${Math.ceil(size / 1e3)} kB`;
  return size < 999.95e6 ? `${(size / 1e6).toFixed(1)} MB` : `${(size / 1e9).toFixed(1)} GB`;
}

/**
 * Lets people drop a file anywhere on a place, and marks it meanwhile.
 *
 * @param {HTMLElement} zone
 */
export function takeDrops(zone) {
  const input = /** @type {HTMLInputElement} */ (zone.querySelector("input[type=file]"));
  // Dropped beside the place, a file would take the page away with all that was typed.
  for (const name of /** @type {const} */ (["dragover", "drop"])) {
    document.addEventListener(name, (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
  }
  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer === null || event.dataTransfer.files.length === 0) return;
    if (input.disabled) {
      note("Another file is being sent. Drop this one once it is there.", "bad");
      return;
    }
    const [first, second] = event.dataTransfer.files;
    if (second !== undefined)
      note(`One file at a time: only ${visible(first?.name ?? "")} is taken.`, "bad");
    input.files = event.dataTransfer.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });
}
