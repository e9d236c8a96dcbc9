/**
 * Tombstones: the store remembers where a removed row stood in its list. A client may delete the objects of a page and
 * then ask for the page behind the last of them. The sweep may have removed the row by then, so a tombstone keeps its place.
 * A tombstone must never be found without the project of its object: to all others the id is unknown.
 */

/** The lists in which a removed row keeps its place. */
export const LISTS_WITH_TOMBSTONES = ["batches", "files", "keys", "projects"] as const;

export type ListWithTombstones = (typeof LISTS_WITH_TOMBSTONES)[number];

/** The project of keys and of projects, which belong to the installation. */
export const OF_INSTALLATION = "";

/** A client has so long between two pages, as long as it may repeat a request. */
export const TOMBSTONE_KEPT_MS = 24 * 60 * 60 * 1000;
