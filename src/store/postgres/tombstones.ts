/** The places of removed rows: see `../tombstones.ts`. */
import { type ListWithTombstones, OF_INSTALLATION, TOMBSTONE_KEPT_MS } from "../tombstones.ts";
import { apiKeys, projects } from "./access-schema.ts";
import { isSelected } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { type SQL, sql } from "./drizzle.ts";
import { files, tombstones } from "./file-schema.ts";
import { batches } from "./schema.ts";

const FORGETTING_PAGE = 10_000;

const ofInstallation = sql`${OF_INSTALLATION}::text`;

const LISTS = {
  batches: { table: batches, project: batches.project, id: batches.id },
  files: { table: files, project: files.project, id: files.id },
  keys: { table: apiKeys, project: ofInstallation, id: apiKeys.id },
  projects: { table: projects, project: ofInstallation, id: projects.name },
} as const;

/** Returns the place that an object has, or had, in its list. Returns null for an id that the project does not know. */
export async function placeOf(
  db: Db,
  list: ListWithTombstones,
  named: { readonly project: string; readonly id: string },
): Promise<number | null> {
  const of = LISTS[list];
  // A client may have put anything into the id, so both are converted as their columns would.
  const project = sql.param(named.project, tombstones.project);
  const id = sql.param(named.id, tombstones.id);
  // A project that was made anew has a higher number than its tombstone.
  const { rows } = await db.execute<{ place: string | null }>(sql`
    select max(place) as place from (
      select sequence as place from ${of.table} where ${of.project} = ${project} and ${of.id} = ${id}
      union all
      select place from ${tombstones} where list = ${list} and project = ${project} and id = ${id}
    ) as places`);
  const place = rows[0]?.place ?? null;
  return place === null ? null : Number(place);
}

/** Takes part in the transaction that deletes the rows, before it does. */
export async function leaveTombstones(
  db: Db,
  list: ListWithTombstones,
  isMeant: SQL | undefined,
  now: SQL,
): Promise<void> {
  const { table, project, id } = LISTS[list];
  await db.execute(sql`
    insert into tombstones (list, project, id, place, created_at_ms)
    select ${list}::text, ${project}, ${id}, sequence, ${now} from ${table} where ${isMeant}
    on conflict (project, list, id)
    do update set place = excluded.place, created_at_ms = excluded.created_at_ms`);
}

export async function forgetTombstones(database: Database, now: SQL): Promise<void> {
  const forgetPage = async () => {
    const { rowCount } = await database.change((db) =>
      db.delete(tombstones).where(
        isSelected(sql`
          select sequence from tombstones where created_at_ms <= ${now} - ${TOMBSTONE_KEPT_MS}::bigint
          limit ${FORGETTING_PAGE} for update skip locked`),
      ),
    );
    return rowCount;
  };
  while ((await forgetPage()) === FORGETTING_PAGE);
}
