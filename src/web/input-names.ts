/** The names of the input files of batches, for their list. A name never changes, so each is asked for once. */
import type { BatchObject } from "../contract/batch.ts";
import type { FileObject } from "../contract/file.ts";
import { type Asked, readFor } from "./page.ts";

const MAX_KNOWN = 2_000;

/** The names by project and id; null for files that cannot be read any more. */
const known = new Map<string, string | null>();

export const namesOf = (
  asked: Asked,
  batches: readonly BatchObject[],
): Promise<(string | null)[]> =>
  Promise.all(batches.map(({ input_file_id: id }) => nameOf(asked, id)));

async function nameOf(asked: Asked, id: string): Promise<string | null> {
  const key = JSON.stringify([asked.caller.project, id]);
  const found = known.get(key);
  if (found !== undefined) return found;
  const file = await readFor<FileObject>(
    { ...asked, isPoll: true },
    `/v1/files/${encodeURIComponent(id)}`,
  );
  // A server that is busy knows the name the next time.
  if (!file.ok && file.status !== 404) return null;
  if (known.size >= MAX_KNOWN) known.delete(known.keys().next().value ?? "");
  const name = file.ok ? file.value.filename : null;
  known.set(key, name);
  return name;
}
