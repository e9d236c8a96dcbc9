/**
 * The database of an installation, before it is opened. Each knows where the blobs of its rows are. A server that finds them
 * elsewhere must not start, because it would take all blobs for lost and those that it finds for garbage.
 */
import type { Clock } from "../../clock.ts";
import type { Closers } from "../../closers.ts";
import type { CopyStore } from "../../store/copying.ts";
import type { OnDamaged } from "../../store/sqlite/damage.ts";
import type { Store } from "../../store/store.ts";

/** The place of blobs that are in the data folder. Any other place is named by its address. */
export const FOLDER_PLACE = "blobs";

export interface Refusal {
  readonly ok: false;
  readonly problem: string;
}

export type Purpose = "serve" | "copy from" | "copy to";

export interface DatabaseDeps {
  readonly clock: Clock;
  /** Gets what closes the parts. */
  readonly closers: Pick<Closers, "add">;
  /** What this process does with the database; it serves it unless this says otherwise. */
  readonly purpose?: Purpose;
  /** The callback for the first sign that the file of a SQLite database is damaged. */
  readonly onDamaged?: OnDamaged;
  /** The callback for statements that go to a PostgreSQL server. */
  readonly onStatements?: (count: number) => void;
}

export interface FoundPlace {
  readonly ok: true;
  /** Whether the database has never been opened. */
  readonly isNew: boolean;
  /** Whether it has had no place for blobs so far. A place that already is in use then belongs to another database. */
  readonly isPlaceless: boolean;
  /** The place of the blobs; null when the database does not know it. */
  readonly place: string | null;
}

export interface Database {
  /** The name of the database in messages. */
  readonly name: string;
  /** Whether other processes may use the same database and the same blobs. */
  readonly isShared: boolean;
  /** Tells an operator how to move the blobs to another place. */
  readonly howToMove: string;
  findPlace(): Promise<FoundPlace | Refusal>;
  /** Opens the database, whose blobs are in `place` from now on, unless `findProblem` tells why they cannot be there. */
  open(place: string, findProblem: FindProblem): Promise<OpenedDatabase | Refusal>;
  /** Opens the database for work without blobs, wherever they are; null when there is none in the folder yet. */
  openAlone(): Promise<OpenedDatabase | Refusal | null>;
}

type FindProblem = (copying: CopyStore) => Promise<string | null>;

export interface OpenedDatabase {
  readonly ok: true;
  readonly store: Store;
  readonly copying: CopyStore;
}
