/** Shows what is wrong with a batch: the faults of its input, and the lines that have failed. */
import { type BatchObject, MAX_LISTED_FAULTS } from "../contract/batch.ts";
import { formatCount, formatPercent } from "./format.ts";
import { html, untrusted } from "./html.ts";
import type { Part } from "./page.ts";

/** The faults for which the input was refused. */
export function faultsPart({ errors }: BatchObject): Part {
  const faults = errors?.data ?? [];
  if (faults.length === 0) return { id: "faults", html: html`<div id="faults" hidden></div>` };
  return {
    id: "faults",
    html: html`<section id="faults" class="card" aria-labelledby="faults-title">
<h2 id="faults-title">The input was refused</h2>
<p>${countOf(faults.length)}. Correct the file, upload it again and create a new batch.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Faults of the input"><table>
<thead><tr><th scope="col" class="number">Line</th><th scope="col">Fault</th><th scope="col" class="middle">Code</th></tr></thead>
<tbody>${faults.map(({ line, message, code }) => html`<tr><td class="number">${line === null ? "–" : formatCount(line)}</td><td class="wrap">${untrusted(message, 1000)}</td><td class="middle"><code>${untrusted(code, 64)}</code></td></tr>`)}</tbody>
</table></div>
</section>`,
  };
}

function countOf(faults: number): string {
  if (faults === 1) return "One fault";
  return faults < MAX_LISTED_FAULTS ? `${faults} faults` : `The first ${faults} faults`;
}

export function failuresPart({
  x_batchd: { failures },
  request_counts: counts,
}: BatchObject): Part {
  if (failures.length === 0)
    return { id: "failures", html: html`<div id="failures" hidden></div>` };
  return {
    id: "failures",
    html: html`<section id="failures" class="card" aria-labelledby="failures-title">
<div class="row"><h2 id="failures-title">Failures</h2><button type="button" id="show-examples" class="quiet">Show examples</button></div>
<div id="examples" class="kept" role="status"></div>
<div class="scroll" tabindex="0" role="region" aria-label="Failures by kind"><table>
<thead><tr><th scope="col">Code</th><th scope="col" class="number">Status</th><th scope="col" class="number">Lines</th><th scope="col" class="number middle">Of all failures</th></tr></thead>
<tbody>${failures.map(({ code, status_code: status, lines }) => html`<tr><th scope="row">${code === null && status === null ? "others" : html`<code>${code === null ? "no code" : untrusted(code, 64)}</code>`}</th><td class="number">${status ?? "–"}</td><td class="number">${formatCount(lines)}</td><td class="number middle">${formatPercent(lines, counts.failed)}</td></tr>`)}</tbody>
</table></div>
</section>`,
  };
}
