/**
 * The part of a store that copies it: rows as they are, with their numbers, so that ids, cursors and the order of lists
 * hold in the copy. `batchd migrate-to` alone uses it, while no server uses either database.
 *
 * Each database has an id of its own, and a copy knows the id of its origin. An unfinished copy must not be served,
 * because the sweep would take the blobs whose rows are not there yet for garbage.
 *
 * Rows have the same names and values in every adapter. An adapter converts what it stores in another form.
 */

/** The tables that are copied, each after those that its rows name. */
export const COPIED_TABLES = [
  "files",
  "uploads",
  "uploadParts",
  "batches",
  "batchProgress",
  "chunks",
  "segments",
  "modelUsage",
  "webhookDeliveries",
  "batchDeliveries",
  "batchRuns",
  "idempotencyKeys",
  "tombstones",
  "apiKeys",
  "keyRequirement",
  "projects",
] as const;

export type CopiedTable = (typeof COPIED_TABLES)[number];

/** The columns of a row, as values that JSON has. */
export interface Row extends Readonly<Record<string, unknown>> {
  readonly sequence: number;
}

/** The last number that each table has given to a row, which may be deleted. */
export type Counters = Readonly<Record<CopiedTable, number>>;

export interface InstallationFacts {
  /** A name that no other installation has. */
  readonly id: string;
  /** The id of the installation that this one is a copy of; null for one that began empty. */
  readonly originId: string | null;
  /** The time at which the copy was complete; null before. */
  readonly copiedAtMs: number | null;
}

export interface CopyStore {
  readInstallation(): Promise<InstallationFacts>;
  /** Makes this database an unfinished copy. */
  beginCopy(originId: string): Promise<void>;
  endCopy(): Promise<void>;
  /** Describes the processes that may be using the database besides this one, one text each. */
  findUsers(): Promise<string[]>;
  /** Whether another process serves the database. Each has used the place of the blobs before. */
  isServed(): Promise<boolean>;
  /** Whether the store needs the checksum of every segment, which versions before 0.2 did not write. */
  readonly needsChecksums: boolean;
  /**
   * Whether a row needs a blob: a file that clients see, or an open batch, which needs its input also when clients have
   * deleted that.
   */
  needsBlobs(): Promise<boolean>;
  countRows(table: CopiedTable): Promise<number>;
  /** Returns rows with higher numbers than `after`, in their order. */
  readRows(table: CopiedTable, after: number, limit: number): Promise<Row[]>;
  insertRows(table: CopiedTable, rows: readonly Row[]): Promise<void>;
  /** Deletes the rows of all tables. */
  deleteRows(): Promise<void>;
  readCounters(): Promise<Counters>;
  setCounters(counters: Counters): Promise<void>;
}

export const isUnfinishedCopy = ({ originId, copiedAtMs }: InstallationFacts): boolean =>
  originId !== null && copiedAtMs === null;
