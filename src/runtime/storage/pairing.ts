/**
 * Decides whether a database and a place of blobs belong together. A server that starts with the blobs of another database
 * would take them for garbage and its own ones for lost, and the data of both would be gone. So a start asks twice: what can be
 * seen from outside before anything is made, and what the rows say once the database is open.
 */
import { type CopyStore, isUnfinishedCopy } from "../../store/copying.ts";
import { type BlobPlace, cannotUse, isAway } from "./blob-place.ts";
import type { Database, FoundPlace, Purpose } from "./database.ts";

export const UNFINISHED =
  "the database is an unfinished copy of another one: run `batchd migrate-to` again until it ends, or begin anew with an empty database and an empty place for files";

/** A database and the place that may be the one of its blobs. */
export interface Pairing {
  readonly database: Database;
  readonly found: FoundPlace;
  readonly place: BlobPlace;
  readonly purpose: Purpose;
}

/** Returns what is wrong as seen from outside, before the database is opened, or null. */
export async function misplacement({
  database,
  found,
  place,
  purpose,
}: Pairing): Promise<string | null> {
  if (found.isNew && purpose === "copy from") return `no server has used ${database.name} yet`;
  if (found.place !== null && found.place !== place.name) {
    return `the files of this database are in ${found.place}, and storage now names ${place.name}: change it back, or copy all files and then ${database.howToMove}`;
  }
  const reached = await reach(place, found);
  if (reached.problem !== null) return reached.problem;
  if (!found.isNew || reached.sign === null) return null;
  // Another replica may have started meanwhile.
  const foundAgain = await database.findPlace();
  if (foundAgain.ok && !foundAgain.isNew && foundAgain.place === place.name) return null;
  if (purpose === "copy to") return `${reached.sign}: the place must be empty and unused`;
  return `${database.name} is missing, but ${reached.sign}: restore the database, or ${place.howToBeginAnew} to begin anew`;
}

/** Returns what is wrong as the rows of the open database have it, or null. */
export async function mismatch(
  { database, found, place, purpose }: Pairing,
  copying: CopyStore,
): Promise<string | null> {
  if (purpose === "serve" && isUnfinishedCopy(await copying.readInstallation())) return UNFINISHED;
  // Asked before the place: a server that counts here has left its sign there.
  const isServed = purpose === "serve" && (await copying.isServed());
  if (purpose !== "copy to" && (await isUntouched(place))) {
    if (await copying.needsBlobs()) {
      return `${database.name} knows files, but ${place.path} is empty: ${place.howToFind} or restore the files that belong there, or begin anew with an empty database`;
    }
    if (isServed) {
      return `${database.name} has other servers, and none of them has used ${place.path}: ${place.howToFind}, which is to be theirs`;
    }
  }
  // An operator may have copied its blobs there.
  const isStranger = found.isPlaceless && !found.isNew && !(await copying.needsBlobs());
  const sign = isStranger ? await place.findSign() : null;
  if (sign === null) return null;
  return `${database.name} knows no files, but ${sign}: name the database that belongs there, or ${place.howToBeginAnew}`;
}

/**
 * Whether no server has used the place, as where a disk is not mounted or a bucket of the same name is at another address. A
 * server would take all files for lost, and end every batch without them. A copy would have none of them.
 */
const isUntouched = async (place: BlobPlace): Promise<boolean> =>
  !(await place.wasUsed()) && place.isEmpty();

/**
 * A server waits for its own place when that does not answer. It must first see that a place is free before it takes it.
 */
async function reach(place: BlobPlace, { isPlaceless }: FoundPlace) {
  try {
    return { sign: await place.findSign(), problem: null };
  } catch (cause) {
    const mayWait = !isPlaceless && isAway(cause);
    return { sign: null, problem: mayWait ? null : cannotUse(place, cause) };
  }
}
