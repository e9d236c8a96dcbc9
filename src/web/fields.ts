/** Fields that the forms of several pages have. */
import { NAME_MAX_LENGTH } from "../contract/key.ts";
import { DECIMAL_PATTERN } from "../contract/price.ts";
import { type Html, html } from "./html.ts";

/** The attributes of a field for an amount of money. */
export const AMOUNT_FIELD = html`inputmode="decimal" pattern="${DECIMAL_PATTERN}" title="Write an amount such as 5.00" autocomplete="off"`;

/** The attributes of a field for the name of a key or of a project. */
export const NAME_FIELD = html`required pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" title="Letters, digits, dots, dashes and underscores, beginning with a letter or a digit" maxlength="${NAME_MAX_LENGTH}" autocomplete="off" spellcheck="false"`;

/**
 * The place to drop a file on. `assets/upload.js` sends the file, and shows how far it is in {@link uploadState} of the same
 * form.
 */
export const uploadField = (accept = ".jsonl,.gz,.zst", hint = "JSONL for a batch"): Html =>
  html`<label class="drop-zone"><input type="file" name="file" accept="${accept}" required><span>Drop a file here, or choose one. <span class="dim">${hint}.</span></span></label>`;

/** The bar of an upload. A screen reader reads out each change of a status, so the share is beside it. */
export const uploadState = html`<div class="upload-state" hidden><progress max="1" value="0" aria-label="Upload"></progress> <span class="upload-share"></span> <span class="upload-text" role="status"></span></div>`;
