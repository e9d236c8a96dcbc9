/**
 * The lines of a chunk, read from its input.
 *
 * Where a file mixes models, a chunk is made of many short extents with the lines of other chunks between them.
 * Extents that lie close together are read as one, because a read costs more than the bytes between them; what is
 * kept of it are copies of the extents alone, since lines hold on to their bytes until they are answered.
 */
import type { InputExtent } from "../batch/batch.ts";
import { LineSplitter, type SplitLine } from "../batch/split.ts";
import type { Blobs } from "../blobs/blobs.ts";

/** Skipped rather than left out of a read. */
const MAX_GAP_BYTES = 64 * 1024;
/** Of extents read as one, with the gaps between them. */
const MAX_READ_BYTES = 4 * 1024 * 1024;

/** For each extent its lines, in order. A read that fails is thrown on. */
export async function* readLines(
  { blobs, key }: { readonly blobs: Blobs; readonly key: string },
  extents: readonly InputExtent[],
): AsyncGenerator<Iterable<SplitLine>> {
  for (const group of groupsOf(extents)) {
    const start = group[0]?.start ?? 0;
    const bytes = await blobs.readRange(key, { start, end: group.at(-1)?.end ?? start });
    for (const extent of group) {
      const own = bytes.subarray(extent.start - start, extent.end - start);
      yield linesOf(group.length === 1 ? own : Buffer.from(own), extent);
    }
  }
}

/** Neighbours that one read serves. */
function groupsOf(extents: readonly InputExtent[]): InputExtent[][] {
  const groups: InputExtent[][] = [];
  for (const extent of extents) {
    const group = groups.at(-1);
    const gapBytes = extent.start - (group?.at(-1)?.end ?? Number.NEGATIVE_INFINITY);
    const readBytes = extent.end - (group?.[0]?.start ?? 0);
    if (group !== undefined && gapBytes <= MAX_GAP_BYTES && readBytes <= MAX_READ_BYTES) {
      group.push(extent);
    } else groups.push([extent]);
  }
  return groups;
}

/** Intake has refused overlong lines already. */
function* linesOf(bytes: Buffer, { start, firstLine }: InputExtent): Generator<SplitLine> {
  const splitter = new LineSplitter(bytes.length, { start, firstLine });
  yield* splitter.push(bytes);
  yield* splitter.end();
}
