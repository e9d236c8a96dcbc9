/** The part of the store for projects that were made at run time. */

/** The rules of a project as an operator wrote them, in the form of the configuration. */
export type StoredRules = Readonly<Record<string, unknown>>;
