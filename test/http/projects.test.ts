/** Projects at run time: made, in force everywhere, and deleted with all that they have. */
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { ask, clientOf, configWith, create, post, upload } from "../support/projects.ts";
import { startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const admin = "key-admin";
const put = (url: string, body: object) => post(url, "admin/projects", body, admin);
const remove = (url: string, name: string) =>
  ask(url, `admin/projects/${name}`, { method: "DELETE" }, admin);

/** All rows of all tables, as one text for each. */
function rowsOf(dataDir: string): string[] {
  const db = new Database(join(dataDir, "batchd.sqlite"), { readonly: true });
  const tables = db.prepare("select name from sqlite_master where type = 'table'").all() as {
    name: string;
  }[];
  const rows = tables
    .filter(({ name }) => !name.startsWith("sqlite_"))
    .flatMap(({ name }) =>
      db
        .prepare(`select * from "${name}"`)
        .all()
        .map((row) => `${name} ${JSON.stringify(row)}`),
    );
  db.close();
  return rows;
}

const filesIn = (dir: string): string[] =>
  (readdirSync(dir, { recursive: true }) as string[]).filter((path) =>
    statSync(join(dir, path)).isFile(),
  );

test("a project that is made at run time is held to its rules, and the configuration's stay its own", async () => {
  await using upstream = await startUpstream();
  const upstreams = [{ name: "only", base_url: upstream.url, models: ["*"] }];
  const { auth } = configWith({});
  await using service = await startTestService({
    config: { auth, upstreams, projects: [{ name: "other", quotas: { files: 1 } }] },
  });
  const { url } = service;
  const made = await put(url, { name: "search", weight: 3, quotas: { files: 2 } });
  expect(made.status).toBe(200);
  expect(made.body).toMatchObject({
    ...{ id: "search", object: "project", weight: 3, models: ["*"], deleted_at: null },
    quotas: { files: 2 },
  });
  const statuses = [];
  for (let n = 0; n < 3; n++) statuses.push((await upload(url)).status);
  expect(statuses).toEqual([200, 200, 429]);
  await put(url, { name: "search" });
  expect((await upload(url)).status).toBe(200);
  const listed = await ask(url, "admin/projects", {}, admin);
  expect(listed.body.data).toMatchObject([{ id: "search", weight: 1, quotas: {} }]);
  for (const refused of [await put(url, { name: "other" }), await remove(url, "other")]) {
    expect([refused.status, refused.body.error?.message]).toEqual([
      409,
      expect.stringContaining("in the configuration"),
    ]);
  }
  expect((await remove(url, "search")).status).toBe(409);
  for (const body of [
    { name: "a b" },
    { name: "a", weight: 0 },
    { name: "a", quotas: { lines: 1 } },
    { name: "a", quotas: { cost_per_month: 5 } },
    { name: "a", color: "red" },
    {},
  ]) {
    expect([body, (await put(url, body)).status]).toEqual([body, 400]);
  }
  expect((await post(url, "admin/projects", { name: "a" })).status).toBe(403);
});

test("deleting a project leaves nothing of it behind, in the database or on the disk", async () => {
  await using upstream = await startUpstream();
  using folder = temporaryFolder("batchd-project-");
  const upstreams = [{ name: "only", base_url: upstream.url, models: ["*"] }];
  const keys = [{ name: "operator", key: admin, scopes: ["admin"] }];
  const prices = [{ model: "*", per_request: "1", currency: "EUR" }];
  await using service = await startTestService({
    dataDir: folder.path,
    config: { auth: { keys }, upstreams, prices },
  });
  const { url, events, dataDir } = service;
  await put(url, {
    name: "doomed",
    quotas: { requests_per_minute: 1_000, interactive_at_once: 5 },
  });
  const keyOf = async (project: string) =>
    ((await post(url, "admin/keys", { name: "k", project }, admin)).body as { key?: string })
      .key as string;
  const [doomed, kept] = [await keyOf("doomed"), await keyOf("kept")];
  const run = async (key: string) => {
    const file = (await upload(url, undefined, key)).body.id as string;
    const batch = (await create(url, file, { key })).body.id as string;
    await events.reached("batch.completed", { batch });
    return batch;
  };
  await run(kept);
  const survivor = (await upload(url, undefined, kept)).body.id as string;
  const before = filesIn(join(dataDir, "blobs")).length;
  // A batch that has ended, one that runs, a file, a key of a request, and an upload with a part.
  const ended = await run(doomed);
  upstream.hold();
  const file = (await upload(url, undefined, doomed)).body.id as string;
  const running = (await create(url, file, { key: doomed })).body.id as string;
  await events.reached("chunk.claimed", { batch: running });
  const openai = clientOf(url, doomed);
  const pending = await openai.uploads.create({
    ...{ filename: "a.jsonl", purpose: "batch", bytes: 100, mime_type: "text/jsonl" },
  });
  await openai.uploads.parts.create(pending.id, { data: new File(["part"], "part") });
  expect(rowsOf(dataDir).filter((row) => row.includes('"doomed"')).length).toBeGreaterThan(5);

  expect((await remove(url, "doomed")).status).toBe(200);
  upstream.release();
  const statusWith = async () => (await ask(url, "files", {}, doomed)).status;
  await expect.poll(statusWith, { timeout: 5_000 }).toBe(401);
  const ids = [ended, running, file, pending.id];
  const left = () =>
    rowsOf(dataDir).filter(
      (row) =>
        !row.startsWith("projects ") &&
        (row.includes('"doomed"') || ids.some((id) => row.includes(id))),
    );
  await expect.poll(left, { timeout: 60_000, interval: 200 }).toEqual([]);
  expect(filesIn(join(dataDir, "blobs"))).toHaveLength(before);
  expect((await ask(url, `files/${survivor}`, {}, kept)).status).toBe(200);
  expect((await put(url, { name: "doomed" })).status).toBe(409);
});
