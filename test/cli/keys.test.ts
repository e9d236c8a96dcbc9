/** `batchd keys`, on the database of a configuration, with and without a server that is running on it. */
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { BatchdProcess, type Exit } from "../support/process.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { putTables } from "../support/tables.ts";

const keys = (dataDir: string, ...args: string[]): Promise<Exit> =>
  runCommand(["keys", ...args, "--data-dir", dataDir]);

const serve = (dataDir: string) =>
  new BatchdProcess(["serve", "--port", "0", "--data-dir", dataDir]);

const statusWith = async (url: string, key: string | null) =>
  (
    await fetch(`${url}/v1/files`, {
      headers: key === null ? {} : { authorization: `Bearer ${key}` },
    })
  ).status;

test("a key is made, listed and revoked beside a running server, which follows", async () => {
  using folder = temporaryFolder("batchd-keys-");
  await using server = serve(folder.path);
  const url = await server.listening();
  expect(await statusWith(url, null)).toBe(200);

  const created = await keys(
    folder.path,
    "create",
    "--name",
    "ci",
    "--project",
    "search",
    "--scopes",
    "read",
    "--expires-in",
    "90d",
  );
  expect(created.code).toBe(0);
  const [key = "", rest] = created.stdout.split("\n");
  expect(rest).toBe("");
  expect(created.stderr).toMatch(
    /^batchd: made key_[0-9a-f]{32} \(ci\) of the project search, which may read until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. .*only now\.\n$/,
  );
  await expect.poll(() => statusWith(url, null)).toBe(401);
  expect(await statusWith(url, key)).toBe(200);

  const listed = await keys(folder.path, "list");
  const [, row = ""] = listed.stdout.split("\n");
  const date = String.raw`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`;
  expect(row).toMatch(
    new RegExp(`^key_[0-9a-f]{32} {2}ci +search +read +${date} {2}(never|${date})$`),
  );
  expect(listed.stdout).not.toContain(key.slice(-43));

  const id = row.split(" ")[0] as string;
  const asJson = await keys(folder.path, "list", "--json");
  expect(
    asJson.stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line)),
  ).toEqual([
    expect.objectContaining({ id, object: "key", name: "ci", project: "search", scopes: ["read"] }),
  ]);
  expect(asJson.stdout).not.toContain(key.slice(-43));
  expect(await keys(folder.path, "revoke", id)).toMatchObject({ code: 0, stderr: "" });
  await expect.poll(() => statusWith(url, key)).toBe(401);
  expect(await keys(folder.path, "revoke", id)).toMatchObject({
    code: 1,
    stderr: `batchd: No such key: ${id}\n`,
  });
  const exit = await server.kill("SIGTERM");
  expect(exit.code).toBe(0);
  expect(exit.stderr + listed.stdout).not.toContain(key.slice(-43));
});

test("a key that is made before the first start is in force at it", async () => {
  using folder = temporaryFolder("batchd-keys-");
  const dataDir = `${folder.path}/new`;
  const created = await keys(dataDir, "create", "--name", "first", "--scopes", "admin");
  const { code, stdout, stderr } = created;
  expect(code).toBe(0);
  expect(stderr).toContain(`note: no server has used ${dataDir} yet. The server that is to`);
  await using server = serve(dataDir);
  const url = await server.listening();
  expect(await statusWith(url, null)).toBe(401);
  const answer = await fetch(`${url}/v1/admin/keys`, {
    headers: { authorization: `Bearer ${stdout.trim()}` },
  });
  expect(await answer.json()).toMatchObject({ data: [{ name: "first", scopes: ["admin"] }] });
});

test.each([
  ["keys", "list"],
  ["keys", "revoke", "key_1"],
  ["projects", "list"],
  ["projects", "delete", "search", "--yes"],
])("%s %s names a folder that no server has used, and makes nothing there", async (...args) => {
  using folder = temporaryFolder("batchd-keys-");
  const dataDir = `${folder.path}/misspelt`;
  expect(await runCommand([...args, "--data-dir", dataDir])).toMatchObject({
    code: 1,
    stdout: "",
    stderr: `batchd: no server has used ${dataDir} yet: name the folder of the server with --data-dir, or its configuration with --config\n`,
  });
  expect(existsSync(dataDir)).toBe(false);
});

test("a folder whose database is elsewhere, or was lost, is not taken for one that no server has used", async () => {
  using folder = temporaryFolder("batchd-keys-");
  const at = (name: string) => join(folder.path, name);
  mkdirSync(at("shared"));
  writeFileSync(at("shared/batchd.database"), "an-installation");
  mkdirSync(at("lost/blobs"), { recursive: true });
  writeFileSync(at("lost/blobs/file-a"), "content");
  expect((await keys(at("shared"), "list")).stderr).toContain("belong to a database on PostgreSQL");
  expect((await keys(at("lost"), "list")).stderr).toContain("is missing, but there are files in");
});

test("a key is listed and revoked where only its database is at hand, and not its files", async () => {
  using folder = temporaryFolder("batchd-keys-");
  await keys(folder.path, "create", "--name", "ci");
  // A server that keeps files in a bucket says so there. The options of the command cannot name the bucket.
  writeFileSync(join(folder.path, "batchd.storage"), "s3://bucket/files/");
  const [id = ""] = /key_\w+/.exec((await keys(folder.path, "list")).stdout) ?? [];
  expect(await keys(folder.path, "revoke", id)).toMatchObject({ code: 0, stderr: "" });
  const projects = (...args: string[]) =>
    runCommand(["projects", ...args, "--data-dir", folder.path]);
  expect(await projects("create", "search")).toMatchObject({ code: 0, stderr: "" });
  expect(await projects("delete", "search", "--yes")).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("the files of this database are in s3://bucket/files/"),
  });
});

test("every mistake in the options of a new key is named, and nothing is made", async () => {
  using folder = temporaryFolder("batchd-keys-");
  const { code, stdout, stderr } = await keys(
    folder.path,
    "create",
    "--name",
    "a b",
    "--project",
    "",
    "--scopes",
    "read,root",
    "--expires-in",
    "soon",
  );
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  for (const option of ["--name", "--project", "--scopes", "--expires-in"]) {
    expect(stderr).toContain(`batchd: ${option}: `);
  }
  expect(stderr).toContain("--scopes: expected one of read, write, interactive, admin\n");
  for (const kind of ["keys", "projects"]) {
    expect(await runCommand([kind, "list", "--data-dir", folder.path])).toMatchObject({
      code: 0,
      stdout: "",
      stderr: `No ${kind} were made. batchd ${kind} create makes one.\n`,
    });
  }
});

test("a path of the configuration begins where the command is started", async () => {
  using folder = temporaryFolder("batchd-keys-");
  const config = join(folder.path, "batchd.yaml");
  writeFileSync(config, "data_dir: ./no-data-here");
  const { code, stderr } = await runCommand(["keys", "list", "--config", config]);
  expect(code).toBe(1);
  expect(stderr).toContain(`no server has used ${join(process.cwd(), "no-data-here")} yet`);
});

test("a list has a row for each key, however many there are", async () => {
  using folder = temporaryFolder("batchd-keys-");
  const path = join(folder.path, "batchd.sqlite");
  putTables(path);
  const db = new Database(path);
  db.prepare(
    `with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ?)
     insert into api_keys (id, project, name, scopes, digest, created_at_ms)
     select 'key_' || n, 'default', 'name', '["read"]', ?, 1 from numbers`,
  ).run(150_000, "0".repeat(64));
  db.close();
  const { code, stdout, stderr } = await keys(folder.path, "list");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  expect(stdout.split("\n")).toHaveLength(150_000 + 2);
});
