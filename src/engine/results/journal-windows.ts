/**
 * Reads the journal of a running batch from a line on, in windows that a merge can take one after the other.
 *
 * A reader must cost what it reads, however long the batch is: one page may be wanted of 20,000 chunks. Chunks have their
 * numbers in the order of their first lines, those of a sample apart. So every line before the first one of the next window
 * is in the windows so far. Only the last chunk of each model may have lines on both sides, and is in both windows.
 */
import type { Batch } from "../../batch/batch.ts";
import { isFinal } from "../../batch/status.ts";
import type { ChunkJournal, JournalPart } from "../../store/finalizing.ts";
import type { Store } from "../../store/store.ts";
import { firstLineOf, streamsOf } from "./merge.ts";

/** The chunks of the first window, and of any. A window is twice as long as the one before. */
const FIRST_WINDOW = 4;
const LONGEST_WINDOW = 128;

export interface JournalWindow {
  readonly journals: readonly ChunkJournal[];
  /** The lines from here on are left to the windows that follow. */
  readonly endLine: number;
}

export interface WindowsQuery {
  readonly afterLine: number;
  readonly part: JournalPart;
  readonly store: Pick<Store, "findBatch" | "findJournalStart" | "listJournalPage">;
}

/** The batch has ended or was deleted, so its journal may be gone. */
export class JournalOver extends Error {}

/** Yields the windows of a started batch. Throws {@link JournalOver} once the batch has ended. */
export async function* journalWindows(
  batch: Batch,
  { afterLine, part, store }: WindowsQuery,
): AsyncGenerator<JournalWindow> {
  let firstLine = afterLine + 1;
  let { journals, last: after } = await store.findJournalStart(batch, {
    line: firstLine,
    part,
  });
  for (let limit = FIRST_WINDOW; ; limit = Math.min(2 * limit, LONGEST_WINDOW)) {
    const page = await store.listJournalPage(batch.id, { after, limit, part });
    // Chunks are only removed after the end of their batch.
    const found = await store.findBatch(batch);
    if (found === null || isFinal(found.status)) throw new JournalOver();
    const next = page.length === limit ? page.at(-1) : undefined;
    const window = next === undefined ? page : page.slice(0, -1);
    const endLine = next === undefined ? Number.POSITIVE_INFINITY : firstLineOf(next);
    journals = withoutChunksBefore(firstLine, [...journals, ...window]);
    yield { journals, endLine };
    if (next === undefined) return;
    [firstLine, after, journals] = [endLine, next.chunk.number, [...journals, next]];
  }
}

/** Leaves out the chunks whose lines all come before `line`. */
function withoutChunksBefore(
  line: number,
  journals: readonly ChunkJournal[],
): readonly ChunkJournal[] {
  return streamsOf(journals).flatMap((stream) => {
    const next = stream.findIndex((journal) => firstLineOf(journal) > line);
    return stream.slice(next === -1 ? -1 : Math.max(0, next - 1));
  });
}
