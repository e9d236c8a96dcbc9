/**
 * A database on PostgreSQL, which any number of processes share. Its row `installation` names the place of the blobs. A folder
 * with blobs has a mark of its database, because a replica with another folder of the same path would find no blobs.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { syncFolder } from "../../blobs/file-system.ts";
import { type Clock, sleep } from "../../clock.ts";
import { StoreUnavailable } from "../../store/failures.ts";
import { INSTALLATION_FILE, readOrNull, SQLITE_FILE, writeWhole } from "./data-folder.ts";
import { type Database, type DatabaseDeps, FOLDER_PLACE, type Refusal } from "./database.ts";

/** A server marks its folder within milliseconds. */
const MARK_TRIES = 20;
const MARK_PAUSE_MS = 100;

/** Loads the driver only here, because a server on SQLite has no use for it. */
const loadPostgres = () => import("../../store/postgres/store.ts");

type Postgres = Awaited<ReturnType<typeof loadPostgres>>;
type PostgresOptions = Parameters<Postgres["openPostgresStore"]>[0];
type OpenedPostgres = Extract<
  Awaited<ReturnType<Postgres["openPostgresStore"]>>,
  { readonly ok: true }
>;

export function postgresWith(
  dir: string,
  options: PostgresOptions,
  { closers }: DatabaseDeps,
): Database {
  let opened: OpenedPostgres | null = null;
  const open = async () => {
    if (opened !== null) return opened;
    const { openPostgresStore } = await loadPostgres();
    const result = await openPostgresStore(options);
    if (!result.ok) return result;
    opened = result;
    closers.add("store", () => result.store.close());
    return opened;
  };
  const secondDatabase = (): Refusal | null => {
    const sqlitePath = join(dir, SQLITE_FILE);
    if (!existsSync(sqlitePath)) return null;
    const problem = `database_url is set, but ${sqlitePath} is the database of this folder: leave database_url out, or choose another data_dir`;
    return { ok: false, problem };
  };
  return {
    name: "the database on PostgreSQL",
    isShared: true,
    howToMove: "write the new place into `installation.blob_place`",
    findPlace: () =>
      refusing(options.url, async () => {
        const second = secondDatabase();
        if (second !== null) return second;
        const database = await open();
        if (!database.ok) return database;
        const { id, blobPlace } = await database.installation.read();
        const problem = await foreignFolder(dir, { id, place: blobPlace, clock: options.clock });
        if (problem !== null) return { ok: false, problem };
        const isNew = blobPlace === null;
        return { ok: true, isNew, isPlaceless: isNew, place: blobPlace };
      }),
    open: (place, findProblem) =>
      refusing(options.url, async () => {
        const database = await open();
        if (!database.ok) return database;
        const unfit = await findProblem(database.copying);
        if (unfit !== null) return { ok: false, problem: unfit } as const;
        await database.installation.setBlobPlaceIfNone(place, async (newId) => {
          if (place === FOLDER_PLACE) await markFolder(dir, newId);
        });
        const { id, blobPlace } = await database.installation.read();
        const problem = await foreignFolder(dir, { id, place: blobPlace, clock: options.clock });
        if (problem !== null) return { ok: false, problem };
        if (blobPlace === place) return database;
        const other = `another server has just begun with this database, and its files are in ${blobPlace}`;
        return { ok: false, problem: `${other}, not in ${place}: give both the same storage` };
      }),
    openAlone: () => refusing(options.url, async () => secondDatabase() ?? (await open())),
  };
}

interface Belonging {
  readonly id: string;
  readonly place: string | null;
  readonly clock: Pick<Clock, "after">;
}

/**
 * Returns the reason for which the folder does not belong to the installation `id`, or null. The first server of a new
 * database marks its folder and names the place in one commit. A share may show the mark to another one a moment later.
 */
async function foreignFolder(dir: string, { id, place, clock }: Belonging): Promise<string | null> {
  const path = join(dir, INSTALLATION_FILE);
  let owner = readOrNull(path);
  for (let n = 0; n < MARK_TRIES && owner === null && place === FOLDER_PLACE; n++) {
    await sleep(clock, MARK_PAUSE_MS);
    owner = readOrNull(path);
  }
  if (owner !== null && owner !== id) {
    return `the files in ${dir} belong to another database on PostgreSQL: correct database_url, or choose another folder with --data-dir`;
  }
  if (owner === null && place === FOLDER_PLACE) {
    return `the files of this database are in another folder: there is no ${path}. Replicas need a folder that all of them share`;
  }
  return null;
}

/** The error for a folder that cannot be marked, such as one on a full disk. The database is not at fault. */
class NotMarked extends Error {
  override readonly name = "NotMarked";
}

async function markFolder(dir: string, id: string): Promise<void> {
  const path = join(dir, INSTALLATION_FILE);
  try {
    if (!existsSync(path)) writeWhole(path, id);
    await syncFolder(dir);
  } catch (cause) {
    throw new NotMarked(`cannot write to the data folder ${dir}: ${reasonOf(cause)}`, { cause });
  }
}

async function refusing<T>(url: string, work: () => Promise<T>): Promise<T | Refusal> {
  try {
    return await work();
  } catch (cause) {
    if (cause instanceof NotMarked) return { ok: false, problem: cause.message };
    const place = `the database on PostgreSQL${hostOf(url)}`;
    return { ok: false, problem: `cannot open ${place}: ${reasonOf(cause)}` };
  }
}

/** Something else may answer at a wrong address, and its answer says nothing of it. */
function hostOf(url: string): string {
  const { host, searchParams } = new URL(url);
  const named = searchParams.get("host") ?? host;
  return named === "" ? "" : ` at ${named}`;
}

const INSUFFICIENT_PRIVILEGE = "42501";

/** Since version 15 only the owner of a database may make tables in the schema public. */
const mayMakeTablesIn = (schema: string) =>
  `. The user in database_url has to make tables there: \`grant create, usage on schema ${schema}\` to it`;

/** What the driver and the server say about TLS, each with the keys that change it. */
const TLS_HINTS: readonly (readonly [says: RegExp, hint: string])[] = [
  [
    /^The server does not support SSL connections$/,
    ", which `database.tls` or `sslmode` in database_url asks for",
  ],
  [/pg_hba\.conf .* no encryption$/, ". `database.tls` turns encryption on"],
  [/self-signed certificate|unable to verify/, ". `database.ca_file` names its authority"],
];

/** Only the database says which right or table is missing. An error with several addresses that refused has no message. */
function reasonOf(cause: unknown): string {
  if (cause instanceof StoreUnavailable) return reasonOf(cause.cause);
  const { message, code } = cause as NodeJS.ErrnoException;
  const schema = code === INSUFFICIENT_PRIVILEGE ? / schema (.+)$/.exec(message)?.[1] : undefined;
  const tlsHint = TLS_HINTS.find(([says]) => says.test(message))?.[1] ?? "";
  const hint = schema === undefined ? tlsHint : mayMakeTablesIn(schema);
  return `${message || code || String(cause)}${hint}`;
}
