/** Starts a real PgBouncer, which shares few connections among many clients, in front of the PostgreSQL of a test. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, chownSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { killAtTestEnd } from "./leftovers.ts";
import { freePort, query } from "./postgres.ts";
import { unprivileged } from "./postgres-binaries.ts";
import { findProgram, hasProgram } from "./programs.ts";

export interface PgBouncer extends AsyncDisposable {
  /** The address of the database behind it. */
  readonly url: string;
  /** Returns how many connections it has made to PostgreSQL. */
  serverConnectionCount(): Promise<number>;
}

export const hasPgBouncer = () => hasProgram("pgbouncer", "the tests behind PgBouncer");

/** Starts one in transaction mode, with at most `poolSize` connections to the database of `databaseUrl`. */
export async function startPgBouncer(databaseUrl: string, poolSize: number): Promise<PgBouncer> {
  const binary = findProgram("pgbouncer");
  if (binary === null) throw new Error("there is no PgBouncer");
  const server = new URL(databaseUrl);
  const port = await freePort();
  const user = unprivileged();
  const folder = mkdtempSync(join(tmpdir(), "batchd-pgbouncer-"));
  const path = join(folder, "pgbouncer.ini");
  writeFileSync(path, configOf(server, port, poolSize));
  chmodSync(folder, 0o755);
  if (user.uid !== undefined) chownSync(folder, user.uid, user.gid ?? user.uid);
  const child = spawn(binary, [path], {
    ...user,
    cwd: folder,
    stdio: ["ignore", "ignore", "pipe"],
  });
  killAtTestEnd(child);
  const said: string[] = [];
  const isUp = (async () => {
    for await (const line of createInterface({ input: child.stderr })) {
      said.push(line);
      if (line.includes("process up")) return true;
    }
    return false;
  })();
  if (!(await isUp)) throw new Error(`PgBouncer did not start:\n${said.join("\n")}`);
  child.stderr.resume();
  const url = new URL(databaseUrl);
  url.port = String(port);
  return {
    url: url.href,
    serverConnectionCount: () => countServers(url),
    [Symbol.asyncDispose]: async () => {
      if (child.exitCode === null && child.signalCode === null) {
        const exited = once(child, "exit");
        child.kill("SIGKILL");
        await exited;
      }
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

const configOf = ({ hostname, port, username }: URL, listenPort: number, poolSize: number) => `
[databases]
* = host=${hostname} port=${port} user=${username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${listenPort}
unix_socket_dir =
auth_type = any
admin_users = ${username}
pool_mode = transaction
default_pool_size = ${poolSize}
max_client_conn = 200
`;

async function countServers(url: URL): Promise<number> {
  const admin = new URL(url);
  admin.pathname = "/pgbouncer";
  // Its console knows only the simple protocol, in which a statement without values is sent.
  const rows = await query<{ database: string }>(admin.href, "show servers");
  return rows.filter(({ database }) => `/${database}` === url.pathname).length;
}
