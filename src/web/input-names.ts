/**
 * The names of the input files of batches, for their list. A name never changes, so the polls of open pages ask for each once. A
 * page that is opened asks anew, because a file may have been deleted. The input of an open batch may still be made, so one that
 * is not there is asked for again.
 */
import type { BatchObject } from "../contract/batch.ts";
import type { FileObject } from "../contract/file.ts";
import { type Asked, readFor } from "./page.ts";
import { hasEnded } from "./status.ts";

const MAX_KNOWN = 2_000;

/** The names by project and id; null for files that cannot be read any more. */
const known = new Map<string, string | null>();

export const namesOf = (
  asked: Asked,
  batches: readonly BatchObject[],
): Promise<(string | null)[]> => Promise.all(batches.map((batch) => nameOf(asked, batch)));

async function nameOf(asked: Asked, batch: BatchObject): Promise<string | null> {
  const { input_file_id: id } = batch;
  const key = JSON.stringify([asked.caller.project, id]);
  const found = known.get(key);
  if (asked.isPoll && found !== undefined) return found;
  const file = await readFor<FileObject>(
    { ...asked, isPoll: true },
    `/v1/files/${encodeURIComponent(id)}`,
  );
  // A server that is busy knows the name the next time.
  if (!file.ok && (file.status !== 404 || !hasEnded(batch))) return null;
  if (found === undefined && known.size >= MAX_KNOWN) known.delete(known.keys().next().value ?? "");
  const name = file.ok ? file.value.filename : null;
  known.set(key, name);
  return name;
}
