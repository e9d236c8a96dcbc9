/**
 * Makes HTML with the texts of others in it. Everything that a client or a model wrote goes through `untrusted`: it is
 * escaped, its characters without a glyph become visible, and its direction ends where it ends. Nothing of it is ever a
 * link, an attribute that a browser acts on, or markup.
 */
import { html } from "hono/html";
import { truncate } from "../text/truncate.ts";

export { html };
export type Html = ReturnType<typeof html>;

/** Matches control characters apart from tab and line feed, and those that hide text or change its direction. */
const INVISIBLE = /(?![\n\t])[\p{Cc}\p{Bidi_Control}\u200b\u2028\u2029\u2060-\u206f\ufeff]/gu;

const CONTROL_PICTURES = 0x2400;

function pictureOf(character: string): string {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(CONTROL_PICTURES + code);
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** Returns the text with a visible sign in the place of each character that a terminal or a browser would obey. */
export const visible = (text: string): string =>
  text.toWellFormed().replaceAll(INVISIBLE, pictureOf);

const DEFAULT_MAX_LENGTH = 300;

/** Returns a text of someone else, in one line or several. */
export function untrusted(text: string, maxLength = DEFAULT_MAX_LENGTH): Html {
  return html`<bdi>${visible(truncate(text, maxLength))}</bdi>`;
}

/** Returns the attributes of an element that have a value. */
export const attributes = (values: Readonly<Record<string, string | undefined>>): Html =>
  html`${Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [html` ${name}="${value}"`]))}`;

/** An entry of a list of figures or facts. */
export const figure = (name: Html | string, value: Html | string, tone?: string): Html =>
  html`<div><dt>${name}</dt><dd${attributes({ class: tone })}>${value}</dd></div>`;

/** Renders HTML to its text. */
export const render = async (content: Html): Promise<string> => String(await content);
