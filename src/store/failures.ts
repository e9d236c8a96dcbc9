/**
 * The errors of a store on another machine. An adapter throws them instead of the errors of its driver, so that callers
 * need not know the codes of each database.
 */

/** The database is away, overloaded, or in the middle of a failover: the same call may succeed later. */
export class StoreUnavailable extends Error {
  override readonly name = "StoreUnavailable";
  readonly code = "STORE_UNAVAILABLE";

  constructor(cause: unknown) {
    super("the database cannot be reached, or cannot serve requests", { cause });
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
