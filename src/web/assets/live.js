/**
 * Takes events from the server and puts changed elements into the page. The connection is closed while the tab is hidden,
 * because a browser opens only six to a server.
 */
import { keepFocus } from "./focus.js";
import { isInUse } from "./in-use.js";
import { writeTimes } from "./times.js";

/** The announcement of a lost connection waits this long, because most come back at once. */
const LOST_AFTER_MS = 4_000;
/** Some three times the longest silence of the server. A network that loses every packet ends no connection. */
const SILENT_AFTER_MS = 60_000;
const RENEW_EVERY_MS = 10 * 60_000;
/** What is not in the text of the server: what a script has drawn or is asking, and what a person has typed or chosen. */
const OWN = ".chart, .kept, form, dialog";

export function startLive() {
  const path = document.documentElement.dataset["live"];
  const sign = document.getElementById("live");
  const connection = path === undefined || sign === null ? null : new Connection(path, sign);
  connection?.follow();
  // A stream lasts on behind a session that ends in another window. A new one is answered by the present session.
  new BroadcastChannel("batchd session").addEventListener("message", () => {
    if (connection?.renew() !== true) void leaveIfSignedOut();
  });
}

/** A page to which no events come asks by itself. What is filled in for a new batch stays. */
async function leaveIfSignedOut() {
  const headers = { accept: "text/html" };
  const answer = await fetch(location.href, { method: "HEAD", headers }).catch(() => null);
  const isKept = document.getElementById("new") !== null && isInUse();
  if (answer?.status === 401 && !isKept) location.reload();
}

class Connection {
  /** @type {EventSource | null} */
  #source = null;
  #isOver = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #lost;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #silent;

  /**
   * @param {string} path
   * @param {HTMLElement} sign
   */
  constructor(path, sign) {
    this.path = path;
    this.sign = sign;
  }

  follow() {
    document.addEventListener("visibilitychange", () => this.#match());
    this.#match();
  }

  /** Asks for events anew. Returns whether any come, perhaps once the page is looked at. */
  renew() {
    if (this.#source !== null) this.#again(this.#source);
    return !this.#isOver;
  }

  #match() {
    if (document.hidden || this.#isOver) this.#close();
    else if (this.#source === null) this.#open();
  }

  #open() {
    const source = new EventSource(this.path);
    this.#source = source;
    this.#lose();
    this.#heard(source);
    // A proxy that holds events back may let the connection through, so only an event is a sign of life.
    for (const name of ["version", "parts", "beat"])
      source.addEventListener(name, () => {
        this.#heard(source);
        this.#say("live", "Live");
      });
    source.addEventListener("rights", (event) => {
      if (event.data === document.documentElement.dataset["rights"]) return;
      // Its person has signed in anew in another window, and what comes is not for this page. Servers may also differ for a while.
      this.#close();
      setTimeout(() => location.reload(), performance.now() < LOST_AFTER_MS ? LOST_AFTER_MS : 0);
    });
    source.addEventListener("parts", (event) => apply(JSON.parse(event.data)));
    source.addEventListener("version", (event) => renew(event.data));
    source.addEventListener("over", () => this.#end());
    source.addEventListener("reload", () => {
      // The page gives way to another one, as after the deletion of its batch. A load would take its place.
      if (document.querySelector("button[data-next]:disabled") === null) location.reload();
    });
    source.addEventListener("error", () => {
      this.#lose();
      // A refusal ends the source for good; a lost connection does not.
      if (source.readyState === EventSource.CLOSED)
        setTimeout(() => this.#again(source), LOST_AFTER_MS);
    });
  }

  /** @param {EventSource} source */
  #again(source) {
    if (this.#source !== source) return;
    this.#close();
    this.#match();
  }

  /** @param {EventSource} source */
  #heard(source) {
    clearTimeout(this.#silent);
    this.#silent = setTimeout(() => this.#again(source), SILENT_AFTER_MS);
  }

  #end() {
    this.#isOver = true;
    this.#close();
    this.#say("", "");
  }

  #close() {
    this.#found();
    clearTimeout(this.#silent);
    this.#source?.close();
    this.#source = null;
  }

  /** Says that no events come, unless one comes soon. The wait counts from the first of several tries. */
  #lose() {
    this.#lost ??= setTimeout(() => this.#say("lost", "Not live"), LOST_AFTER_MS);
  }

  #found() {
    clearTimeout(this.#lost);
    this.#lost = undefined;
  }

  /**
   * @param {string} state
   * @param {string} text
   */
  #say(state, text) {
    this.#found();
    // A screen reader reads out each change.
    if (this.sign.textContent === text) return;
    this.sign.dataset["state"] = state;
    this.sign.textContent = text;
  }
}

/**
 * Loads the page anew for the scripts of another version of the server. While the servers behind a load balancer are replaced,
 * the page may come from one and its events from another, so it is not done twice in a while.
 *
 * @param {string} version
 */
function renew(version) {
  if (version === document.documentElement.dataset["version"] || isInUse()) return;
  const renewedAtMs = Number(sessionStorage.getItem("batchd renewed"));
  if (Date.now() - renewedAtMs < RENEW_EVERY_MS) return;
  sessionStorage.setItem("batchd renewed", String(Date.now()));
  location.reload();
}

/** @param {Record<string, string>} parts */
function apply(parts) {
  for (const [id, text] of Object.entries(parts)) {
    const element = document.getElementById(id);
    if (element === null) continue;
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    const refocus = keepFocus(focused);
    Idiomorph.morph(element, text, {
      morphStyle: "outerHTML",
      callbacks: {
        beforeNodeMorphed: (old) => !(old instanceof Element && old.matches(OWN)),
        // What a person has opened stays open, and a button whose call is under way stays off.
        beforeAttributeUpdated: (name) => name !== "open" && name !== "disabled",
      },
    });
    writeTimes(document.getElementById(id) ?? document);
    refocus();
  }
  document.dispatchEvent(new CustomEvent("batchd:parts", { detail: Object.keys(parts) }));
}
