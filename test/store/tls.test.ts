/** Connections to a PostgreSQL with a certificate of an authority that no system trusts. */
import { chmodSync, chownSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Client } from "pg";
import { describe, expect, test } from "vitest";
import { privateAuthority } from "../support/certificates.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, startPostgres } from "../support/postgres.ts";
import { unprivileged } from "../support/postgres-binaries.ts";
import { BatchdProcess } from "../support/process.ts";
import { startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const folder = forAllTests(temporaryFolder("batchd-tls-"));
chmodSync(folder.path, 0o755);
const authority = await privateAuthority();
const caFile = join(folder.path, "ca.pem");
writeFileSync(caFile, authority.cert);
const foreignCaFile = join(folder.path, "foreign-ca.pem");
writeFileSync(foreignCaFile, (await privateAuthority()).cert);

/** Writes what the server presents. Only the user of the server may read the key. */
async function certificateFor(ip: string, issuer = authority) {
  const { cert, key } = await issuer.issue({ ip });
  const paths = { cert: join(folder.path, "server.pem"), key: join(folder.path, "server.key") };
  writeFileSync(paths.cert, cert);
  writeFileSync(paths.key, key, { mode: 0o600 });
  const { uid, gid } = unprivileged();
  if (uid !== undefined) chownSync(paths.key, uid, gid ?? uid);
  return paths;
}

const { cert, key } = await certificateFor("127.0.0.1");
const postgres = forAllTests(
  await startPostgres("the tests of TLS to PostgreSQL", {
    settings: ["ssl=on", `ssl_cert_file=${cert}`, `ssl_key_file=${key}`],
  }),
);

/** Starts a server and returns whether each of its connections is encrypted. */
async function connectionsWith(options: {
  readonly database?: Record<string, unknown>;
  readonly sslmode?: string;
  readonly host?: string;
}): Promise<boolean[]> {
  const plain = await postgres!.createEmptyDatabase();
  const url = new URL(plain);
  if (options.host !== undefined) url.hostname = options.host;
  if (options.sslmode !== undefined) url.searchParams.set("sslmode", options.sslmode);
  await using _ = await startTestService({
    config: { database_url: url.href, database: { ...options.database } },
  });
  const rows = await query<{ ssl: boolean }>(
    plain,
    `select ssl from pg_stat_ssl join pg_stat_activity using (pid)
     where datname = current_database() and application_name = 'batchd'`,
  );
  return [...new Set(rows.map(({ ssl }) => ssl))];
}

describe.skipIf(postgres === null)("the connections to PostgreSQL", () => {
  test.each([
    [
      "encrypted, and the server is checked, with a certificate authority alone",
      { ca_file: caFile },
    ],
    ["encrypted and checked also with `tls: verify`", { ca_file: caFile, tls: "verify" }],
    ["encrypted but not checked with `tls: encrypt`", { tls: "encrypt" }],
  ])("are %s", async (_, database) => {
    expect(await connectionsWith({ database })).toEqual([true]);
  });

  test("are not encrypted by default, or with `tls: off`, whatever the URL says", async () => {
    expect(await connectionsWith({})).toEqual([false]);
    expect(await connectionsWith({ database: { tls: "off" }, sslmode: "require" })).toEqual([
      false,
    ]);
  });

  test("follow `sslmode` where the configuration says nothing", async () => {
    expect(await connectionsWith({ sslmode: "disable" })).toEqual([false]);
    expect(await connectionsWith({ sslmode: "no-verify" })).toEqual([true]);
    await expect(connectionsWith({ sslmode: "verify-full" })).rejects.toThrow(/certificate/);
  });

  test.each(["prefer", "require", "verify-ca"])(
    "check the server with `sslmode=%s`, and nothing but the log is on standard error",
    async (sslmode) => {
      const url = new URL(await postgres!.createEmptyDatabase());
      url.searchParams.set("sslmode", sslmode);
      const config = join(folder.path, `${sslmode}.yaml`);
      writeFileSync(config, JSON.stringify({ database_url: url.href }));
      const { code, stderr } = await new BatchdProcess(
        ["migrate", "--config", config],
        {},
      ).exited();
      expect(code).toBe(1);
      expect(stderr).toContain("certificate");
      expect(stderr).not.toMatch(/warning/i);
    },
  );

  test("are refused to a server of another authority, or with another name", async () => {
    const database = { tls: "verify", ca_file: foreignCaFile };
    await expect(connectionsWith({ database })).rejects.toThrow(/certificate/);
    await expect(connectionsWith({ database: { tls: "verify" } })).rejects.toThrow(/certificate/);
    const named = { database: { ca_file: caFile }, host: "localhost" };
    await expect(connectionsWith(named)).rejects.toThrow(/altnames/);
  });

  test("trust the authority that `ca_file` has by then, so a new one needs no restart", async () => {
    const ca_file = join(folder.path, "renewed-ca.pem");
    writeFileSync(ca_file, authority.cert);
    const database_url = await postgres!.createEmptyDatabase();
    await using service = await startTestService({
      config: { database_url, database: { ca_file } },
    });
    const next = await privateAuthority();
    await certificateFor("127.0.0.1", next);
    writeFileSync(ca_file, next.cert);
    await query(database_url, "select pg_reload_conf()");
    const presentsNext = async () => {
      const checked = new Client({ connectionString: database_url, ssl: { ca: next.cert } });
      return checked.connect().then(
        () => checked.end().then(() => true),
        () => false,
      );
    };
    await expect.poll(presentsNext).toBe(true);

    await query(
      database_url,
      `select pg_terminate_backend(pid) from pg_stat_activity
       where datname = current_database() and application_name = 'batchd'`,
    );

    const list = async () => (await fetch(`${service.url}/v1/files`)).status;
    await expect.poll(list).toBe(200);
  });
});
