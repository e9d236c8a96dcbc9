/**
 * Renders the buttons of a batch. A button names the route of the API that it calls; `assets/actions.js` calls it, and
 * asks before something is lost. A key that may only read gets no buttons.
 */
import type { BatchObject } from "../contract/batch.ts";
import { MAX_RETRIES_LISTED } from "../contract/batch-extension.ts";
import { toAsciiJson } from "../http/json.ts";
import { AMOUNT_FIELD } from "./fields.ts";
import { formatMoney } from "./format.ts";
import { attributes, type Html, html } from "./html.ts";
import type { Asked } from "./page.ts";
import { hasEnded } from "./status.ts";

interface Action {
  /** Keeps the button what it is where others come and go: what a person is about to press never becomes another one. */
  readonly id?: string;
  readonly label: string;
  readonly method: "POST" | "DELETE";
  /** The path below `/v1/`. */
  readonly path: string;
  /** The question to ask first, with what follows from a yes. */
  readonly ask?: { readonly title: string; readonly detail: string; readonly choice?: Choice };
  /** What is sent, as JSON. */
  readonly body?: object;
  /** The page to show afterwards, below the root; `made` stands for the page of the batch in the answer. */
  readonly next?: string;
  readonly tone?: "danger" | "plain" | "primary" | "quiet";
  /** The batch whose lines are run again, where the page of a later run is shown instead if there is one by now. */
  readonly rerunOf?: { readonly batch: string; readonly otherRuns: readonly string[] };
  /** The id of the text beside the buttons that says more. */
  readonly describedBy?: string;
}

/** A box to tick in the question, and the path that is called if it is ticked. */
interface Choice {
  readonly label: string;
  readonly path: string;
}

export const actionButton = ({ label, tone = "plain", body, ask, rerunOf, ...action }: Action) =>
  html`<button type="button"${attributes({
    id: action.id,
    class: tone,
    "data-method": action.method,
    "data-path": action.path,
    "data-body": body && toAsciiJson(body),
    "data-ask": ask?.title,
    "data-detail": ask?.detail,
    "data-choice": ask?.choice?.label,
    "data-choice-path": ask?.choice?.path,
    "data-next": action.next,
    "data-rerun-of": rerunOf?.batch,
    "data-other-runs": rerunOf?.otherRuns.join(" "),
    "aria-describedby": action.describedBy,
  })}>${label}</button>`;

/** A batch, with those of `retried_by` that do not run its failed lines. */
export interface Retried {
  readonly batch: BatchObject;
  readonly otherRuns: readonly string[];
}

export function batchActions({ root, caller }: Asked, retried: Retried): Html {
  const { batch } = retried;
  const downloads = downloadLinks(root, batch);
  const mayWrite = caller.scopes.includes("write");
  return html`<div class="actions" role="group" aria-label="Actions" tabindex="-1">${downloads}${mayWrite ? html`${changes(retried).map(actionButton)}${rerunNote(retried)}` : ""}</div>`;
}

function changes(retried: Retried): Action[] {
  const { batch } = retried;
  const path = `batches/${batch.id}`;
  const actions: Action[] = [];
  const isOpen = !hasEnded(batch);
  const { paused } = batch.x_batchd;
  if (paused !== null) {
    actions.push({
      id: "act-pause",
      label: "Resume",
      method: "POST",
      path: `${path}/resume`,
      // At a limit it would pause again at once. The form for another budget stands out, and a quota has its own day.
      tone: paused.reason === "requested" || paused.reason === "sample" ? "primary" : "plain",
    });
  } else if (isOpen && batch.finalizing_at == null && batch.cancelling_at == null) {
    actions.push({ id: "act-pause", label: "Pause", method: "POST", path: `${path}/pause` });
  }
  if (isOpen && batch.cancelling_at == null) {
    actions.push({
      id: "act-cancel",
      label: "Cancel",
      method: "POST",
      path: `${path}/cancel`,
      ask: {
        title: "Cancel this batch?",
        detail: "Lines that have no answer yet are not sent. The answers so far are kept.",
      },
    });
  }
  const rerun = rerunAction(retried);
  if (rerun !== null) actions.push(rerun);
  actions.push(deletion(path, isOpen));
  return actions;
}

function canRunAgain({ batch, otherRuns }: Retried): boolean {
  const { total, completed } = batch.request_counts;
  const isOpen = batch.x_batchd.retried_by.every((id) => otherRuns.includes(id));
  return hasEnded(batch) && total !== completed && isOpen;
}

/** Asks where an older batch than those listed may run the same lines: they would be paid for twice. */
const ASK_ABOUT_OLDER = {
  title: "Run failed lines again?",
  detail: `The ${MAX_RETRIES_LISTED} newest batches made of this one leave its failed lines as they are. An older one may run them already.`,
};

/**
 * Runs the lines without an answer again, in a batch whose results have all lines. It has what its owner has set for the
 * old one: without the metadata it would have no name, and without the budget it might cost any amount.
 */
function rerunAction(retried: Retried): Action | null {
  if (!canRunAgain(retried)) return null;
  const { batch, otherRuns } = retried;
  const from = { batch: batch.id, lines: "failed", merge: true };
  const { endpoint, completion_window, metadata } = batch;
  const { priority } = batch.x_batchd;
  const x_batchd = { from, priority, budget: keptBudget(batch) };
  return {
    id: "act-rerun",
    label: "Run failed lines again",
    method: "POST",
    path: "batches",
    next: "made",
    body: { endpoint, completion_window, metadata, x_batchd },
    tone: "primary",
    ...(otherRuns.length === MAX_RETRIES_LISTED && { ask: ASK_ABOUT_OLDER }),
    rerunOf: { batch: batch.id, otherRuns },
    describedBy: RERUN_NOTE,
  };
}

/** The server takes no budget for a model without a price. */
const keptBudget = ({ x_batchd: { budget, cost } }: BatchObject): string | null =>
  cost === null ? null : budget;

const RERUN_NOTE = "act-rerun-note";

/** Says what the batch of the failed lines has of the old one. */
function rerunNote(retried: Retried): Html | string {
  if (!canRunAgain(retried)) return "";
  const { batch } = retried;
  const budget = keptBudget(batch);
  const more =
    budget === null
      ? "and has no budget"
      : `and has a budget of its own: ${formatMoney(budget, batch.x_batchd.cost?.currency ?? "")}`;
  return html`<p id="${RERUN_NOTE}" class="dim">The new batch keeps metadata and priority, ${more}.</p>`;
}

/** Gives a batch that has come to the end of its budget another one, and resumes it. */
export function budgetForm({ caller }: Asked, { id, x_batchd: own }: BatchObject): Html | string {
  if (own.paused?.reason !== "budget" || !caller.scopes.includes("write")) return "";
  const path = `batches/${id}`;
  // A form that is there keeps what was typed into it. With another budget it is another form.
  // Outside a dialog, the method "dialog" sends nothing: before its script is there, the browser would take the form to an address.
  return html`<form id="raise-${own.budget}" method="dialog" class="filters" data-path="${path}" data-then="${path}/resume">
<label>Budget <input name="budget" value="${own.budget}" ${AMOUNT_FIELD} required></label>
<span class="buttons"><button class="primary">Set and resume</button></span>
</form>`;
}

const deletion = (path: string, isOpen: boolean): Action => ({
  id: "act-delete",
  label: "Delete",
  method: "DELETE",
  path,
  next: "",
  tone: "danger",
  ask: {
    title: "Delete this batch?",
    detail: `Its results are deleted with it, and cannot be brought back.${isOpen ? " It still runs: it is cancelled first." : ""}`,
    choice: { label: "Delete its input file, too", path: `${path}?files=input` },
  },
});

/** Links to what there is: the result files, or the lines so far. */
function downloadLinks(root: string, batch: BatchObject): Html[] {
  const { id, request_counts: counts, output_file_id: output, error_file_id: errors } = batch;
  const running = `${root}web/v1/batches/${id}`;
  const links: Html[] = [];
  if (output != null) {
    const path = `${root}web/v1/files/${output}/content`;
    links.push(download(path, "Answers", `${id}-output.jsonl`));
    links.push(download(`${path}?format=csv`, "as CSV", `${id}-output.csv`));
    links.push(download(`${path}?format=parquet`, "as Parquet", `${id}-output.parquet`));
  }
  if (output == null && counts.completed > 0 && !hasEnded(batch))
    links.push(download(`${running}/output`, "Answers so far", `${id}-output-so-far.jsonl`));
  if (errors != null)
    links.push(download(`${root}web/v1/files/${errors}/content`, "Errors", `${id}-errors.jsonl`));
  else if (counts.failed > 0 && !hasEnded(batch))
    links.push(download(`${running}/errors`, "Errors so far", `${id}-errors-so-far.jsonl`));
  return links;
}

const download = (href: string, label: string, name: string): Html =>
  html`<a class="button" href="${href}" download="${name}"><span aria-hidden="true">↓</span> ${label}</a>`;
