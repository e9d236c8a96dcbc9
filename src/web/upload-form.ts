/**
 * The place to drop a file on, and the bar of its upload. `assets/upload.js` sends the file. A screen reader reads out each change
 * of a status, so the share is beside it.
 */
import { type Html, html } from "./html.ts";

export const uploadFields = (accept = ".jsonl,.gz,.zst", hint = "JSONL for a batch"): Html =>
  html`<label class="drop-zone"><input type="file" name="file" accept="${accept}" required><span>Drop a file here, or choose one. <span class="dim">${hint}.</span></span></label>
<div class="upload-state" hidden><progress max="1" value="0" aria-label="Upload"></progress> <span class="upload-share"></span> <span class="upload-text" role="status"></span></div>`;
