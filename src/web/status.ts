/** The words and colours for the states of batches. */
import type { BatchObject, BatchStatus } from "../contract/batch.ts";
import type { WaitingReason } from "../contract/batch-extension.ts";
import { type Html, html } from "./html.ts";

/** A colour never stands alone: the word beside it says the same. */
const TONES: Readonly<Record<BatchStatus, string>> = {
  validating: "active",
  in_progress: "active",
  finalizing: "active",
  completed: "good",
  failed: "bad",
  expired: "bad",
  cancelling: "idle",
  cancelled: "idle",
};

export const statusLabel = (status: string): string => status.replaceAll("_", " ");

/** The state as people see it: a pause and a wait are more to know than the status. */
export function statusPill({ status, x_batchd }: BatchObject): Html {
  if (x_batchd.paused !== null) return pill("idle", "paused");
  if (x_batchd.waiting !== null) return pill("wait", "waiting");
  return pill(TONES[status], statusLabel(status));
}

export const pill = (tone: string, label: string): Html =>
  html`<span class="pill ${tone}">${label}</span>`;

/** What each reason means, and what helps. */
export const WAITING_TEXTS: Readonly<Record<WaitingReason, string>> = {
  no_room:
    "All slots of its upstreams are taken, they are overloaded, or other lines under way hold what is left of a quota. Lines go out as soon as there is room.",
  upstream_down: "None of its upstreams answers. Lines go out again by themselves when one does.",
  refused_credentials:
    "Its upstreams refuse the key that this server has for them. The operator must correct it.",
  out_of_quota:
    "The account at its upstreams has no quota or credit left. The operator must add some.",
  wrong_address:
    "Its upstreams do not know the address that this server asks, or lack the endpoint of the batch. The operator must correct the one, or name a server that has the other.",
  not_served: "No upstream serves its model any more. Lines wait until one does.",
  outside_hours: "Its upstreams take batch lines at other hours.",
  journal_not_writable: "Answers cannot be stored at the moment, so no line goes out.",
  storage_unavailable: "Its files or the database cannot be read or written at the moment.",
  retrying:
    "Its lines have failed in a way that another try may cure, or the server that had them is gone. They go out again by themselves.",
  source: "Its input is made of lines of another batch, which has to end first if it still runs.",
};

/** The statuses after which nothing changes. */
const ENDED: readonly string[] = [
  "completed",
  "expired",
  "cancelled",
  "failed",
] satisfies BatchStatus[];
export const hasEnded = ({ status }: BatchObject): boolean => ENDED.includes(status);
