/** A batch as a server shows it, and as people read it. A server that is no batchd leaves out what only batchd adds. */
import { isFinal } from "../batch/status.ts";
import { type BatchObject, MAX_LISTED_FAULTS } from "../contract/batch.ts";
import { printable } from "../printable.ts";
import { say, styled } from "../terminal/lines.ts";
import { count, date, lines } from "../words.ts";

type Extension = BatchObject["x_batchd"];
type Optional<T> = { readonly [Key in keyof T]?: T[Key] | undefined };

export type ShownBatch = Pick<BatchObject, "id" | "status" | "endpoint"> &
  Optional<Omit<BatchObject, "id" | "status" | "endpoint" | "x_batchd">> & {
    readonly x_batchd?: Optional<Extension> | undefined;
  };

function mapOf<Value>(values: Readonly<Record<string, Value>>): ReadonlyMap<string, Value> {
  return new Map(Object.entries(values));
}

export const isOfBatchd = (batch: ShownBatch): boolean => batch.x_batchd !== undefined;

/** A server may write any name, and each object knows some that are not its own. */
const WAITING = mapOf({
  no_room: "the model servers take no more at once, or other lines hold what is left of a quota",
  upstream_down: "the model server does not answer",
  refused_credentials: "the model server refuses the key that is configured for it",
  out_of_quota: "the server's account at the model server has no credit or quota left",
  wrong_address: "the address of the model server seems to be wrong, or it lacks the endpoint",
  not_served: "no model server serves the model any more",
  outside_hours: "the model servers take batch lines at other hours",
  journal_not_writable: "answers cannot be stored at the moment",
  storage_unavailable: "files or the database cannot be read or written at the moment",
  retrying: "its lines have failed, or their server is gone, and they wait for the next try",
  source: "its input is made of lines of another batch, which has to end first if it still runs",
});

/** Returns why no line of the batch goes on; null while one does, and where the server does not say. */
export function whyItWaits({ x_batchd: more }: ShownBatch): string | null {
  if (more?.paused) return `paused (${more.paused.reason}) since ${date(more.paused.since)}`;
  if (!more?.waiting) return null;
  const { reason, upstream_error: error } = more.waiting;
  const why = `waiting: ${WAITING.get(reason) ?? reason}`;
  return error ? `${why} (${error})` : why;
}

/** Returns the counts of a batch, such as `3 of 10 lines, 1 failed`. */
export function progressOf({ request_counts: counts, status }: ShownBatch): string {
  if (!counts || counts.total === 0) return isFinal(status) ? "no lines" : "no lines yet";
  const done = counts.completed + counts.failed;
  const failed = counts.failed === 0 ? "" : `, ${count(counts.failed)} failed`;
  return `${count(done)} of ${lines(counts.total)}${failed}`;
}

export function costOf({ x_batchd: more }: ShownBatch): string | null {
  if (!more?.cost) return null;
  const { currency, so_far: soFar, projected } = more.cost;
  return projected === null || projected === soFar
    ? `${soFar} ${currency}`
    : `${soFar} ${currency} so far, ${projected} in all`;
}

const STATUS_STYLES = mapOf({
  completed: "green",
  failed: "red",
  expired: "yellow",
  cancelled: "yellow",
} as const);

export function statusText(
  { status }: ShownBatch,
  stream: NodeJS.WriteStream = process.stdout,
): string {
  const style = STATUS_STYLES.get(status);
  const text = printable(status);
  return style === undefined ? text : styled(style, text, stream);
}

/** Returns the time at which a batch became what it is now for good; null for one that has not ended. */
function endOf(batch: ShownBatch): number | null {
  const { completed_at: completed, failed_at: failed, expired_at: expired } = batch;
  return completed ?? failed ?? expired ?? batch.cancelled_at ?? null;
}

/** The number of faults and groups of failures that are printed. */
const SHOWN_AT_MOST = 20;

/** Prints what is known of a batch. */
export function sayBatch(batch: ShownBatch): void {
  const { metadata, usage, x_batchd: more } = batch;
  const row = (label: string, text: string | null | undefined) => {
    if (text) say(`${styled("dim", label.padEnd(13))}${printable(text)}`);
  };
  say(`${styled("bold", printable(batch.id))}  ${statusText(batch)}`);
  row("progress", progressOf(batch));
  row("why", whyItWaits(batch));
  row("model", batch.model);
  row("endpoint", batch.endpoint);
  row("created", date(batch.created_at));
  row("expected", more?.eta ? date(more.eta) : null);
  const endedAt = endOf(batch);
  row(endedAt === null ? "expires" : "ended", date(endedAt ?? batch.expires_at));
  row(
    "tokens",
    usage ? `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out` : null,
  );
  row("cost", costOf(batch));
  row("budget", more?.budget ?? null);
  row("priority", more?.priority ? String(more.priority) : null);
  row("input", batch.input_file_id);
  row("output", batch.output_file_id);
  row("errors", batch.error_file_id);
  for (const [key, value] of Object.entries(metadata ?? {}))
    row("metadata", `${key}=${metadataText(value)}`);
  for (const line of [...failureLines(batch), ...faultLines(batch)]) say(printable(line));
}

/** OpenAI and batchd have texts alone. Another server may keep any JSON. */
const metadataText = (value: unknown): string =>
  typeof value === "string" ? value : JSON.stringify(value);

export const failureLines = ({ x_batchd: more }: ShownBatch): string[] =>
  (more?.failures ?? [])
    .slice(0, SHOWN_AT_MOST)
    .map(({ lines: failed, status_code: status, code }) => {
      // Some servers repeat the status as the code.
      const reasons = new Set(
        [status, code].flatMap((each) => ((each ?? null) === null ? [] : `${each}`)),
      );
      return `  ${lines(failed)} failed: ${[...reasons].join(" ") || "for other reasons"}`;
    });

/** Returns the faults of the input file, a line each. */
export function faultLines({ errors }: ShownBatch): string[] {
  const faults = errors?.data ?? [];
  const shown = faults.slice(0, SHOWN_AT_MOST).map(({ line, message, code }) => {
    const at = (line ?? null) === null ? "input file" : `line ${line}`;
    return `  ${at}: ${message} (${code})`;
  });
  const hidden = faults.length - shown.length;
  if (hidden === 0) return shown;
  const atLeast = faults.length < MAX_LISTED_FAULTS ? "" : "at least ";
  return [...shown, `  and ${atLeast}${count(hidden)} more`];
}
