/** What people call a batch: the name that its owner has given it, and the name of its input file. */

import type { BatchObject } from "../contract/batch.ts";
import type { FileObject } from "../contract/file.ts";
import { truncate } from "../text/truncate.ts";
import { type Html, html, untrusted, visible } from "./html.ts";
import { type Asked, readFor } from "./page.ts";
import { hasEnded } from "./status.ts";

const MAX_KNOWN = 2_000;

/** The names of input files by project and id; null for those that cannot be read any more. */
const known = new Map<string, string | null>();

const MAX_LENGTH = 60;

/** Returns both names for people; empty when there is neither. */
export function namesOf(batch: BatchObject, inputName: string | null): Html {
  const names = [ownNameOf(batch), inputName].filter((name) => name !== null);
  const [first, second] = names.map((name) => untrusted(name, MAX_LENGTH));
  return html`${first ?? ""}${second === undefined ? "" : html` · ${second}`}`;
}

/** Returns what the tab of a batch is called. */
export const titleOf = (batch: BatchObject, inputName: string | null): string =>
  visible(truncate(ownNameOf(batch) ?? inputName ?? batch.id, MAX_LENGTH));

/** Returns the name in the metadata, else their first value. */
function ownNameOf({ metadata }: BatchObject): string | null {
  const { name = "", ...others } = metadata ?? {};
  return [name, ...Object.values(others)].find((each) => each.trim() !== "") ?? null;
}

/**
 * Returns the name of the input file. It never changes, so the polls of open pages ask for it once. A page that is opened asks
 * anew, because a file may have been deleted. The input of an open batch may still be made, so one that is not there is asked
 * for again.
 */
export async function inputNameOf(asked: Asked, batch: BatchObject): Promise<string | null> {
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
