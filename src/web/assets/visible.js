/** Makes the characters of a text visible that hide in it or change its direction, as the server does in `html.ts`. */

const INVISIBLE = /(?![\n\t])[\p{Cc}\p{Bidi_Control}\u200b\u2028\u2029\u2060-\u206f\ufeff]/gu;

/** @param {string} text */
export const visible = (text) =>
  text.replaceAll(INVISIBLE, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });

/**
 * Returns an element for a text of someone else, whose direction ends where it ends.
 *
 * @param {string} text
 */
export function isolated(text) {
  const element = document.createElement("bdi");
  element.textContent = visible(text);
  return element;
}
