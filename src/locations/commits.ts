/**
 * The commit with the results of a batch: its folder, its branch and its message. Trailers say which batch it is, to people
 * and to batchd.
 */
import { truncate } from "../text/truncate.ts";
import { type Delivered, type Parcel, partsOf } from "./location.ts";

/** How often another delivery may take the name of a branch in the moment after a look. */
export const MAX_RACES = 5;

/** The folder of a parcel in a repository, as the parts of its path. */
export const committedParts = (parcel: Parcel) => partsOf(parcel, "runs");

export const committed = (branch: string, commit: string): Delivered => ({
  address: `branch ${branch} at ${commit}`,
});

/** Names the batch of a commit. A delivery looks for it before it makes another commit. */
export const BATCH_TRAILER = "Batch-Id";

const MAX_SUBJECT = 200;
const MAX_VALUE = 500;
const TRAILER_NAME = /^[A-Za-z][A-Za-z0-9-]{0,63}$/;

/** Titles and names of models come from clients. On one line, none of them can look like another trailer. */
const onOneLine = (text: string, length: number) =>
  truncate(text.replaceAll(/[\p{C}\p{Z}]+/gu, " ").trim(), length);

export function commitMessage({ batchId, message }: Parcel): string {
  const others = message.trailers.filter(
    ([name]) => TRAILER_NAME.test(name) && name !== BATCH_TRAILER,
  );
  const trailers = [[BATCH_TRAILER, batchId] as const, ...others];
  const lines = trailers.map(([name, value]) => `${name}: ${onOneLine(value, MAX_VALUE)}`);
  const subject = onOneLine(message.subject, MAX_SUBJECT) || `Results of ${batchId}`;
  return `${subject}\n\n${lines.join("\n")}\n`;
}

const MAX_SLUG = 60;
const SHORT_ID = 8;

/**
 * Returns the names of branches that the results of a batch may have, the preferred one first. The others are for a name
 * that is taken. All of them depend on the batch alone, so a repeated delivery finds its branch.
 */
export function branchNames({ title, batchId }: Parcel): readonly string[] {
  const slug = title
    .normalize("NFC")
    .replaceAll(/[^\p{L}\p{N}._-]+/gu, "-")
    .replaceAll(/([.-])[.-]+/g, "$1")
    .slice(0, MAX_SLUG)
    .toWellFormed()
    .replace(/^[.-]+/, "")
    .replace(/(?:[.-]|\.lock)+$/i, "");
  const names = [slug || batchId, `${slug || "batch"}-${batchId.slice(-SHORT_ID)}`, batchId];
  return [...new Set(names)].map((name) => `batch/${name}`);
}
