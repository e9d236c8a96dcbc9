/** What `batchd migrate-to` refuses, and what it does with damage. SQLite and folders stand on both sides where they suffice. */
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { heldTable } from "../support/held-table.ts";
import { move, moveWell } from "../support/move.ts";
import { clerkOf, PASSWORD, sharePostgres } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("moves from and to a PostgreSQL in use"));

async function serve(dataDir: string, databaseUrl = "") {
  const args = ["serve", "--port", "0", "--data-dir", dataDir];
  const batchd = new BatchdProcess(args, { BATCHD_DATABASE_URL: databaseUrl });
  const url = await batchd.listening();
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "test", maxRetries: 0 });
  return { batchd, openai };
}

/** Uploads files to a new data folder, or to one with data. Returns their ids. */
async function filled(dataDir: string, count: number): Promise<string[]> {
  await using service = await startTestService({ dataDir });
  const ids: string[] = [];
  for (let n = 0; n < count; n++) ids.push(await service.upload(chatLines(n + 1)));
  return ids;
}

function folders() {
  const dir = temporaryFolder("batchd-move-");
  const [from, to] = [join(dir.path, "from"), join(dir.path, "to")];
  return { from, to, args: ["--data-dir", from, "--storage", to], ...dir };
}

const refusal = async (args: readonly string[], env: Record<string, string> = {}) => {
  const { code, stderr } = await move(args, env);
  expect(code).toBe(1);
  return stderr;
};

/** Leaves the target as a run does that is killed before its last commit. */
function withoutEnd(dataDir: string): void {
  const database = new Database(join(dataDir, "batchd.sqlite"));
  database.exec("update installation set copied_at_ms = null");
  database.close();
}

test("a folder that a server uses is neither copied nor copied to", async () => {
  using dirs = folders();
  await filled(dirs.from, 1);
  const source = await serve(dirs.from);
  expect(await refusal(dirs.args)).toContain("the source: another batchd is using the data folder");
  await source.batchd.kill("SIGTERM");
  const target = await serve(dirs.to);
  expect(await refusal(dirs.args)).toContain("the target: another batchd is using the data folder");
  await target.batchd.kill("SIGTERM");
  // The target has been served, but nothing is in it.
  await moveWell(dirs.args);
});

test("a source that was never used, and a target with data, are refused", async () => {
  using dirs = folders();
  expect(await refusal(dirs.args)).toContain("no server has used");
  await filled(dirs.from, 1);
  await filled(dirs.to, 1);
  expect(await refusal(dirs.args)).toContain(`SQLite in ${dirs.to} is not empty`);
  rmSync(join(dirs.to, "batchd.sqlite"));
  expect(await refusal(dirs.args)).toContain(`there are files in ${dirs.to}/blobs`);
  expect(await refusal(["--data-dir", dirs.from, "--storage", dirs.from])).toContain("both sides");
});

test("a copy that is complete is not begun again, and one of another installation is not gone on with", async () => {
  using dirs = folders();
  using others = folders();
  await filled(dirs.from, 2);
  await filled(others.from, 2);
  await moveWell(dirs.args);
  expect(await refusal(dirs.args)).toContain("has been a complete copy of");
  withoutEnd(dirs.to);
  const stranger = ["--data-dir", others.from, "--storage", dirs.to];
  expect(await refusal(stranger)).toContain("is a copy of another installation");
});

test("a source that has gone on between two runs arrives as it is at the last one", async () => {
  using dirs = folders();
  const [gone, kept] = await filled(dirs.from, 2);
  await moveWell(dirs.args);
  withoutEnd(dirs.to);
  const { batchd, openai } = await serve(dirs.from);
  await openai.files.delete(gone!);
  await batchd.kill("SIGTERM");
  const [added] = await filled(dirs.from, 1);
  await moveWell(dirs.args);
  const target = await serve(dirs.to);
  const { data } = await target.openai.files.list({ order: "asc" });
  expect(data.map(({ id }) => id)).toEqual([kept, added]);
  await target.batchd.kill("SIGTERM");
});

test("keys that were made at run time open the target, and nothing else does", async () => {
  using dirs = folders();
  await filled(dirs.from, 1);
  const args = ["keys", "create", "--name", "ci", "--data-dir", dirs.from];
  const key = (await runCommand(args)).stdout.trim();
  await moveWell(dirs.args);
  const { batchd, openai } = await serve(dirs.to);
  const client = openai.withOptions({ apiKey: key });
  expect((await client.files.list()).data).toHaveLength(1);
  await expect(openai.files.list()).rejects.toMatchObject({ status: 401 });
  await batchd.kill("SIGTERM");
});

const blobsIn = (dataDir: string) =>
  readdirSync(join(dataDir, "blobs/files")).map((name) => join(dataDir, "blobs/files", name));

function damage(path: string): void {
  const bytes = readFileSync(path);
  bytes[0] = 0x23;
  writeFileSync(path, bytes);
}

test("bytes that changed in an unfinished target are copied again", async () => {
  using dirs = folders();
  const [id] = await filled(dirs.from, 1);
  await moveWell(dirs.args);
  withoutEnd(dirs.to);
  damage(blobsIn(dirs.to)[0]!);
  expect(await moveWell(dirs.args)).not.toContain("by an earlier run");
  const [from, to] = [blobsIn(dirs.from)[0]!, blobsIn(dirs.to)[0]!];
  expect(to.endsWith(id!)).toBe(true);
  expect(readFileSync(to)).toEqual(readFileSync(from));
});

test("a source whose disk is not mounted is not copied, and its server does not take its files for lost", async () => {
  using dirs = folders();
  const [id] = await filled(dirs.from, 1);
  const [blobs, away] = [join(dirs.from, "blobs"), join(dirs.from, "away")];
  renameSync(blobs, away);
  mkdirSync(blobs);
  const notMounted = /batchd\.sqlite knows files, but \S+blobs is empty: mount the disk/;
  expect(await refusal(dirs.args)).toMatch(notMounted);
  await expect(startTestService({ dataDir: dirs.from })).rejects.toThrow(notMounted);

  rmSync(blobs, { recursive: true });
  renameSync(away, blobs);
  await moveWell(dirs.args);
  await using target = await startTestService({ dataDir: dirs.to });
  expect(await target.text(id)).toContain("line-1");
});

test("files that are missing or damaged in the source are named, and hold up nothing", async () => {
  using dirs = folders();
  const [missing, damaged, whole] = await filled(dirs.from, 3);
  const blob = (id: string) => join(dirs.from, "blobs/files", id);
  rmSync(blob(missing!));
  damage(blob(damaged!));
  const { code, stdout, stderr } = await move(dirs.args);
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: expect.stringContaining(`files/${missing} is missing in the source`),
  });
  expect(stderr).toContain(`files/${damaged} is damaged in the source`);
  expect(stderr).not.toContain(whole);
  expect(stdout).toContain("2 blobs have a fault in the source");
});

test("the target has to be named, without a secret on the command line", async () => {
  const s3 = (query: string) => ["--storage", `s3://bucket/prefix/?${query}`];
  expect(await refusal([])).toContain("name the target with --to-config");
  expect(await refusal(s3("region=a"))).toContain("name the folder for SQLite with --to-data-dir");
  expect(await refusal(s3("secret_access_key=b"))).toContain("AWS_SECRET_ACCESS_KEY");
  expect(await refusal([...s3("colour=red"), "--to-data-dir", "x"])).toContain("storage.colour");
  expect(await refusal(["--storage", "gs://bucket/x"])).toContain("s3://BUCKET/PREFIX/");
});

describe.skipIf(postgres === null)("a PostgreSQL that servers use", () => {
  test("is neither copied nor copied to, and its password is not printed", async () => {
    using dirs = folders();
    const url = await postgres!.createDatabase();
    const server = await serve(dirs.from, url);
    const away = ["--data-dir", dirs.from, "--storage", dirs.to];
    const stderr = await refusal(away, { BATCHD_DATABASE_URL: url });
    expect(stderr).toMatch(
      /batchd is running on PostgreSQL at 127\.0\.0\.1:\d+\/\w+: stop .*process \d+/,
    );
    await server.batchd.kill("SIGTERM");
    const { stdout } = await move(away, { BATCHD_DATABASE_URL: url });
    expect(stdout).toMatch(/^done: 0 files/m);
    expect(stdout + stderr).not.toContain(PASSWORD);

    using others = folders();
    await filled(others.from, 1);
    const emptyUrl = await postgres!.createEmptyDatabase();
    const idle = await serve(others.to, emptyUrl);
    const upon = ["--data-dir", others.from, "--database-url", emptyUrl, "--storage", others.to];
    expect(await refusal(upon)).toContain("batchd is running on PostgreSQL");
    await idle.batchd.kill("SIGTERM");
    expect(await moveWell(upon)).toMatch(/^done: 1 files/m);
  });

  test("is copied by a user who may only read and change rows, and the copy takes files and keeps their order", async () => {
    using dirs = folders();
    const url = await postgres!.createDatabase();
    const env = { BATCHD_DATABASE_URL: await clerkOf(url) };
    const source = await serve(dirs.from, env.BATCHD_DATABASE_URL);
    for (let n = 0; n < 3; n++) await upload(source);
    await source.batchd.kill("SIGTERM");
    const newUrl = await postgres!.createEmptyDatabase();
    await moveWell([...dirs.args, "--database-url", newUrl], env);
    const target = await serve(dirs.to, newUrl);
    const before = (await target.openai.files.list()).data;
    await upload(target);
    const after = (await target.openai.files.list()).data;
    expect(after.slice(1)).toEqual(before);
    expect(before).toHaveLength(3);
    await target.batchd.kill("SIGTERM");
  });

  test("is not taken for copied when a server came and went meanwhile", async () => {
    using dirs = folders();
    const url = await postgres!.createDatabase();
    const env = { BATCHD_DATABASE_URL: url };
    const before = await serve(dirs.from, url);
    await upload(before);
    await before.batchd.kill("SIGTERM");
    await using holder = await heldTable(url, "batch_runs");
    const moving = move(dirs.args, env);
    await holder.someoneWaits();
    const meanwhile = await serve(dirs.from, url);
    await upload(meanwhile);
    await meanwhile.batchd.kill("SIGTERM");
    await holder.release();
    const { code, stderr } = await moving;
    expect(code).toBe(1);
    expect(stderr).toMatch(/batchd has run on PostgreSQL at .* meanwhile: stop it, and try again/);
    expect(await moveWell(dirs.args, env)).toMatch(/^done: 2 files/m);
  });
});

async function upload({ openai }: { readonly openai: OpenAI }): Promise<void> {
  const file = new File([`${chatLines(1).join("\n")}\n`], "input.jsonl");
  await openai.files.create({ file, purpose: "batch" });
}
