/** Keys on two servers of one PostgreSQL: what one is told holds for both, also without nudges. */
import { describe, expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { Fleet, type Member } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { clockWrongBy } from "../support/wrong-clock.ts";

const ADMIN = "key-of-the-operator";

const postgres = forAllTests(await sharePostgres("keys on several servers"));

const auth = { keys: [{ name: "operator", key: ADMIN, scopes: ["admin"] }] };
const as = (key: string) => ({ authorization: `Bearer ${key}` });
const statusWith = async ({ url }: Member, key: string) =>
  (await fetch(`${url}/v1/files`, { headers: as(key) })).status;

/** Resolves once the server answers so. */
const becomes = (server: Member, key: string, status: number) =>
  expect.poll(() => statusWith(server, key)).toBe(status);

describe.skipIf(postgres === null).each([true, false])("with database.listen: %s", (listen) => {
  test("a key is taken, and refused after its revocation, by every server soon", async () => {
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl, config: { auth, database: { listen } } });
    const [a, b] = [await fleet.api(), await fleet.api()];
    const made = await fetch(`${a.url}/v1/admin/keys`, {
      method: "POST",
      headers: as(ADMIN),
      body: JSON.stringify({ name: "nightly" }),
    });
    const { id, key } = (await made.json()) as { id: string; key: string };
    expect(await statusWith(a, key)).toBe(200);
    await becomes(b, key, 200);
    await fetch(`${b.url}/v1/admin/keys/${id}`, { method: "DELETE", headers: as(ADMIN) });
    expect(await statusWith(b, key)).toBe(401);
    await becomes(a, key, 401);
  });
});

test.skipIf(postgres === null)(
  "the command makes a key in the database of a fleet that is running",
  async () => {
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl, config: { auth } });
    const server = await fleet.api();
    const command = new BatchdProcess(
      ["keys", "create", "--name", "ci", "--data-dir", fleet.dataDir],
      { BATCHD_DATABASE_URL: databaseUrl },
    );
    const { code, stdout, stderr } = await command.exited();
    expect([code, stderr]).toEqual([0, expect.stringContaining("made key_")]);
    await becomes(server, stdout.trim(), 200);
  },
);

test.skipIf(postgres === null).each([-48, 48])(
  "a key of the command has its lifetime, and a project its date, where the clock of the machine is off by %i h",
  async (hours) => {
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl, config: { auth } });
    const env = clockWrongBy(hours * 3_600_000);
    const server = await fleet.api({ env });
    const args = ["create", "--name", "ci", "--expires-in", "12h", "--data-dir", fleet.dataDir];
    const command = new BatchdProcess(["keys", ...args], {
      BATCHD_DATABASE_URL: databaseUrl,
      ...env,
    });
    const key = (await command.exited()).stdout.trim();
    await becomes(server, key, 200);
    const admin = (path: string, init = {}) =>
      fetch(`${server.url}/v1/admin/${path}`, { headers: as(ADMIN), ...init });
    const made = { method: "POST", body: JSON.stringify({ name: "search" }) };
    const project = (await (await admin("projects", made)).json()) as { created_at: number };
    const keys = (await (await admin("keys")).json()) as { data: { expires_at: number }[] };
    const nowSeconds = Date.now() / 1_000;
    expect(Math.abs(project.created_at - nowSeconds)).toBeLessThan(600);
    const endsInSeconds = (keys.data[0]?.expires_at ?? 0) - nowSeconds;
    expect(Math.abs(endsInSeconds - 12 * 3_600)).toBeLessThan(600);
  },
);

test.skipIf(postgres === null)(
  "the command needs the address of the database alone, before the first server and beside others",
  async () => {
    const databaseUrl = await postgres!.createEmptyDatabase();
    using elsewhere = temporaryFolder("batchd-elsewhere-");
    const keys = (...args: string[]) =>
      runCommand(["keys", ...args, "--data-dir", elsewhere.path, "--database-url", databaseUrl]);
    const created = await keys("create", "--name", "first");
    expect([created.code, created.stderr]).toEqual([0, expect.stringContaining("made key_")]);
    await using fleet = new Fleet({ databaseUrl });
    const server = await fleet.api();
    const key = created.stdout.trim();
    expect(await statusWith(server, key)).toBe(200);
    const [id = ""] = /key_\w+/.exec((await keys("list")).stdout) ?? [];
    expect(await keys("revoke", id)).toMatchObject({ code: 0, stderr: "" });
    await becomes(server, key, 401);
  },
);
