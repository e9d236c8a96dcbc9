/**
 * The errors that callers of a store tell apart. An adapter throws them instead of the errors of its driver, so that
 * callers need not know the codes of each database.
 */

/** The database is away, overloaded, or in the middle of a failover: the same call may succeed later. */
export class StoreUnavailable extends Error {
  override readonly name = "StoreUnavailable";
  readonly code = "STORE_UNAVAILABLE";
  /** Whether the change may have been made: the connection was lost during the commit. */
  readonly mayBeMade: boolean;

  constructor(cause: unknown, { mayBeMade = false } = {}) {
    const { code } = cause as NodeJS.ErrnoException;
    const because = code === undefined ? "" : ` (${code})`;
    super(`the database cannot be reached, or cannot serve requests${because}`, { cause });
    this.mayBeMade = mayBeMade;
  }
}

/** The project has so much under way that its call has found no connection of its part: the same call may succeed later. */
export class StoreBusy extends Error {
  override readonly name = "StoreBusy";
  readonly code = "STORE_BUSY";

  constructor(cause: unknown) {
    super("the project has too many calls of the database under way", { cause });
  }
}

/** A rule of the database forbids the row: the same call will never succeed. */
export class StoreRefusal extends Error {
  override readonly name = "StoreRefusal";
  readonly code = "STORE_REFUSAL";

  constructor(cause: unknown) {
    super("a rule of the database forbids the change", { cause });
  }
}

/** The file of the database is damaged: no call can be trusted until the operator has restored it. */
export class StoreDamaged extends Error {
  override readonly name = "StoreDamaged";
  readonly code = "STORE_DAMAGED";

  constructor(path: string, cause: Error) {
    super(
      `the database ${path} is damaged (${cause.message}): stop the server and restore it from a backup, see docs/operating.md`,
      { cause },
    );
  }
}

/** Whether the cause is a damaged database, which the log has named when it was found. */
export const isDamaged = (thrown: unknown): thrown is Error => thrown instanceof StoreDamaged;
