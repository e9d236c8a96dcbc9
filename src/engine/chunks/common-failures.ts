/**
 * Notices batches whose first lines all fail in the same way. The cause is most likely a mistake in the file, which
 * would otherwise be found after 50,000 failures. The lines must go on all the same, because the next one may be
 * different.
 */
import type { Batch, BatchId } from "../../batch/batch.ts";
import { FIRST_LINES } from "../../batch/failures.ts";
import type { CommonFailure } from "../../batch/forecast.ts";
import { errorIn, failureOf } from "../../batch/line-failure.ts";
import { type FinalOutcome, isSuccess, noAnswerOf } from "../../batch/outcome.ts";
import type { Clock } from "../../clock.ts";
import type { Log } from "../../telemetry/log.ts";
import { beginning } from "../../text/truncate.ts";

/** The number of batches that are remembered; the oldest go first. */
const MAX_BATCHES = 10_000;
/** The number of failures that other replicas learn of. */
const MAX_LISTED = 50;
/**
 * They learn of one for so long, and the forecast of its batch keeps it from then on. A message may quote a line, so reports, which
 * are in the database, must not keep those of batches that were deleted.
 */
const LISTED_FOR_MS = 5 * 60_000;
const MAX_MESSAGE_CHARACTERS = 200;

/** The failure of the first lines so far; null once a line has ended in another way. */
type Track = (Omit<CommonFailure, "lineCount"> & { lineCount: number }) | null;

export class CommonFailures {
  readonly #log: Log;
  readonly #clock: Pick<Clock, "elapsedMs">;
  /** The batches whose first lines failed alike, the latest ones, with the elapsed time at which it was noticed. */
  readonly #found = new Map<BatchId, number>();
  readonly #tracks = new Map<BatchId, Track>();

  constructor({ log, clock }: { log: Log; clock: Pick<Clock, "elapsedMs"> }) {
    this.#log = log;
    this.#clock = clock;
  }

  /** Takes note of the outcome of a line. Every line passes here, so it must be cheap. */
  note(batch: Pick<Batch, "id" | "project" | "counts">, outcome: FinalOutcome): void {
    const track = this.#tracks.get(batch.id);
    if (track === null) return;
    if (track === undefined) this.#begin(batch, outcome);
    else if (track.lineCount < FIRST_LINES) this.#goOn(batch, track, outcome);
  }

  find(id: BatchId): CommonFailure | null {
    const track = this.#tracks.get(id) ?? null;
    return track === null || track.lineCount < FIRST_LINES ? null : track;
  }

  /** Lists the failures that were found, the latest ones if there are many. */
  list(): [BatchId, CommonFailure][] {
    const found: [BatchId, CommonFailure][] = [];
    const sinceMs = this.#clock.elapsedMs() - LISTED_FOR_MS;
    for (const [id, foundAtMs] of this.#found) {
      if (foundAtMs <= sinceMs) this.#found.delete(id);
    }
    for (const id of this.#found.keys()) {
      const failure = this.find(id);
      if (failure !== null) found.push([id, failure]);
    }
    return found;
  }

  #begin({ id, counts }: Pick<Batch, "id" | "counts">, outcome: FinalOutcome): void {
    const isFirst = counts.completed === 0 && counts.failed === 0 && !isSuccess(outcome);
    this.#tracks.set(id, isFirst ? commonFailureOf(outcome) : null);
    const [oldest] = this.#tracks.keys();
    if (this.#tracks.size > MAX_BATCHES && oldest !== undefined) this.#tracks.delete(oldest);
  }

  #goOn(
    { id, project }: Pick<Batch, "id" | "project">,
    track: NonNullable<Track>,
    outcome: FinalOutcome,
  ): void {
    const { statusCode, code } = track;
    const failure = isSuccess(outcome) ? null : commonFailureOf(outcome);
    if (failure === null || failure.statusCode !== statusCode || failure.code !== code) {
      this.#tracks.set(id, null);
      return;
    }
    track.lineCount++;
    if (track.lineCount < FIRST_LINES) return;
    this.#found.set(id, this.#clock.elapsedMs());
    const [oldest] = this.#found.keys();
    if (this.#found.size > MAX_LISTED && oldest !== undefined) this.#found.delete(oldest);
    const fields = { batch: id, project, lines: FIRST_LINES, status: statusCode, code };
    this.#log.error(fields, "batch.failing_alike");
  }
}

/** Names the failure as the row of the line does, and as the groups of failures of its batch do. */
function commonFailureOf(outcome: FinalOutcome): CommonFailure {
  const { status, code } = failureOf(outcome);
  return { lineCount: 1, statusCode: status, code, message: shortText(messageOf(outcome)) };
}

function messageOf(outcome: FinalOutcome): unknown {
  if ("body" in outcome && outcome.body !== null) return errorIn(outcome.body)?.["message"];
  if (outcome.kind === "answered" || outcome.kind === "overloaded") return null;
  return noAnswerOf(outcome).message;
}

const shortText = (value: unknown) =>
  typeof value === "string" || typeof value === "number"
    ? beginning(String(value), MAX_MESSAGE_CHARACTERS)
    : null;
