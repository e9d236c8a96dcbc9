/** The places of removed rows: see `../tombstones.ts`. */
import { setImmediate as nextTurn } from "node:timers/promises";
import { type ListWithTombstones, OF_INSTALLATION, TOMBSTONE_KEPT_MS } from "../tombstones.ts";
import { apiKeys, projects } from "./access-schema.ts";
import type { Db } from "./database.ts";
import { type SQL, sql } from "./drizzle.ts";
import { files, tombstones } from "./file-schema.ts";
import { batches } from "./schema.ts";

/** One statement deletes so many tombstones: some 5 ms. */
const FORGETTING_PAGE = 2_000;

const LISTS = {
  batches: { table: batches, project: sql`project`, id: sql`id` },
  files: { table: files, project: sql`project`, id: sql`id` },
  keys: { table: apiKeys, project: sql`${OF_INSTALLATION}`, id: sql`id` },
  projects: { table: projects, project: sql`${OF_INSTALLATION}`, id: sql`name` },
} as const;

/** Returns the place that an object has, or had, in its list. Returns null for an id that the project does not know. */
export function placeOf(
  db: Db,
  list: ListWithTombstones,
  { project, id }: { readonly project: string; readonly id: string },
): number | null {
  const of = LISTS[list];
  // A project that was made anew has a higher number than its tombstone.
  return db.get<{ place: number | null }>(sql`
    select max(place) as place from (
      select sequence as place from ${of.table} where ${of.project} = ${project} and ${of.id} = ${id}
      union all
      select place from ${tombstones} where list = ${list} and project = ${project} and id = ${id})`)
    .place;
}

/** Takes part in the transaction that deletes the rows, before it does. */
export function leaveTombstones(
  db: Db,
  list: ListWithTombstones,
  isMeant: SQL | undefined,
  nowMs: number,
): void {
  const { table, project, id } = LISTS[list];
  db.run(sql`
    insert into tombstones (list, project, id, place, created_at_ms)
    select ${list}, ${project}, ${id}, sequence, ${nowMs} from ${table} where ${isMeant}
    on conflict (project, list, id)
    do update set place = excluded.place, created_at_ms = excluded.created_at_ms`);
}

/** Deletes the old ones page by page: 100,000 files may have expired together. */
export async function forgetTombstones(db: Db, nowMs: number): Promise<void> {
  const page = sql`
    select sequence from tombstones where created_at_ms <= ${nowMs - TOMBSTONE_KEPT_MS}
    limit ${FORGETTING_PAGE}`;
  const forgetPage = () => db.delete(tombstones).where(sql`sequence in (${page})`).run().changes;
  while (forgetPage() === FORGETTING_PAGE) await nextTurn();
}
