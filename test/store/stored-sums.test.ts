/** The sums of stored files and parts, by which SQLite holds quotas, are those of its files after anything that clients do. */
import { join } from "node:path";
import Database from "better-sqlite3";
import { toFile } from "openai";
import { expect, test } from "vitest";
import { BEFORE_STORED_SUMS } from "../support/earlier-versions.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const kept = `select project, file_count, bytes from stored_sums order by project`;
const counted = `
  select project, sum(is_file) as file_count, sum(bytes) as bytes from (
    select project, 1 as is_file, bytes from files where deleted_at_ms is null
    union all select project, 0, part.bytes
    from uploads join upload_parts as part on upload_id = uploads.id where status = 'pending')
  group by project order by project`;

const inDatabase = <T>(dataDir: string, work: (database: Database.Database) => T): T => {
  const database = new Database(join(dataDir, "batchd.sqlite"));
  try {
    return work(database);
  } finally {
    database.close();
  }
};

const sumsIn = (dataDir: string) =>
  inDatabase(dataDir, (database) => ({
    kept: database.prepare(kept).all(),
    counted: database.prepare(counted).all(),
  }));

async function storeAndRemove(service: TestService) {
  const { openai, url, dataDir } = service;
  const upload = async (text: string) =>
    openai.files.create({ file: await toFile(Buffer.from(text), "f"), purpose: "user_data" });
  const gone = await upload("12345");
  await upload("1234567");
  const expired = await upload("123");
  const inParts = async (...parts: readonly string[]) => {
    const fields = { filename: "f", purpose: "user_data", bytes: 4, mime_type: "a/b" } as const;
    const { id } = await openai.uploads.create(fields);
    const part_ids: string[] = [];
    for (const part of parts) {
      const data = await toFile(Buffer.from(part), "p");
      part_ids.push((await openai.uploads.parts.create(id, { data })).id);
    }
    return { id, part_ids };
  };
  const big = await inParts("abcd");
  await openai.uploads.complete(big.id, { part_ids: big.part_ids });
  await openai.uploads.cancel((await inParts("ab", "cd")).id);
  const late = await inParts("abc");
  await inParts("abcde", "f");
  const { id } = await service.submit(chatLines(3));
  const deleted = await service.submit(chatLines(5));
  await service.ended(id);
  await service.ended(deleted.id);
  const answer = await fetch(`${url}/v1/batches/${deleted.id}?files=input`, { method: "DELETE" });
  expect(answer.status).toBe(200);
  await openai.files.delete(gone.id);
  inDatabase(dataDir, (database) => {
    database.prepare("update files set expires_at_ms = 2 where id = ?").run(expired.id);
    database.prepare("update uploads set expires_at_ms = 2 where id = ?").run(late.id);
  });
}

test("the sums of stored files and parts are exact, also in a database of the version before", async () => {
  await using upstream = await startUpstream();
  using folder = temporaryFolder("batchd-sums-");
  const options = { dataDir: folder.path, upstreamUrl: upstream.url };
  const service = await startTestService(options);
  await storeAndRemove(service);
  await service.events.reached("file.expired");
  await service.events.reached("file.removed", { count: 2 });
  await service.events.reached("upload.expired");
  await service.close();
  const { kept, counted } = sumsIn(folder.path);
  expect(counted).toHaveLength(1);
  expect(kept).toEqual(counted);

  inDatabase(folder.path, (database) =>
    database.exec(`
      ${BEFORE_STORED_SUMS}
      insert into files (id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms)
      values ('file-o', 'other', 'batch', 'f', 9, 'x', 'files/file-o', 1);
      insert into uploads (id, project, filename, purpose, bytes, mime_type, status, created_at_ms, expires_at_ms, has_parts)
      select 'upload_' || column1, column1, 'f', 'batch', 9, 'x', column2, 1, ${Number.MAX_SAFE_INTEGER}, 1
      from (values ('other', 'pending'), ('parts', 'pending'), ('ended', 'cancelled'));
      insert into upload_parts (id, upload_id, bytes, blob_key, created_at_ms)
      select 'part_' || project, id, 5, 'parts/' || project, 1 from uploads where project in ('other', 'parts', 'ended')`),
  );
  await (await startTestService(options)).close();
  expect(sumsIn(folder.path).kept).toEqual([
    ...counted,
    { project: "other", file_count: 1, bytes: 14 },
    { project: "parts", file_count: 0, bytes: 5 },
  ]);
});
