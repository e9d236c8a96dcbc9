/**
 * The token that the requests of a page carry. Each session has another one, so a page whose person has signed in anew in
 * another tab asks for the present one. It takes none of another project, for which its contents are not meant.
 */

const root = document.documentElement;

export const token = () => root.dataset["token"] ?? "";

/** Whether the server does not take the token: its API refuses in JSON. @param {number} status @param {string} text */
export const isForeign = (status, text) => status === 403 && !text.trimStart().startsWith("{");

/**
 * Returns whether there is another token to try. Another request may have had the same refusal, and its new token first.
 *
 * @param {string} refused
 */
export async function renewToken(refused) {
  const headers = { accept: "text/html" };
  const answer = await fetch(location.href, { headers }).catch(() => null);
  const text = await answer?.text().catch(() => null);
  const page = new DOMParser().parseFromString(text ?? "", "text/html");
  const present = page.documentElement.dataset["token"];
  if (present === undefined || present === refused) return false;
  if (projectIn(page) !== projectIn(document)) return false;
  root.dataset["token"] = present;
  return true;
}

/** @param {Document} page */
const projectIn = (page) => page.querySelector(".who b")?.textContent ?? null;
