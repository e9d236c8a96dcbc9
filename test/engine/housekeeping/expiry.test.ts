import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { createBatch } from "../../support/batches.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { chatLines, startTestService, type TestService } from "../../support/service.ts";
import { idsOn, startTestApi, uploadInput, wireOf } from "../../support/test-http.ts";
import { startUpstream } from "../../support/upstream.ts";

const HOUR_MS = 60 * 60 * 1000;
/** How often the engine looks for what has expired. */
const POLL_EVERY_MS = 1_000;
const MONTH_MS = 30 * 24 * HOUR_MS;
const AN_HOUR = { anchor: "created_at", seconds: 3_600 } as const;

const uploadForAnHour = (service: TestService, lines: readonly string[]) =>
  service.openai.files.create({
    file: new File([`${lines.join("\n")}\n`], "input.jsonl"),
    purpose: "batch",
    expires_after: AN_HOUR,
  });

/** Names of the blobs that hold the content of files, or parts of uploads. */
const blobsIn = (service: TestService, folder: "files" | "parts") =>
  readdir(join(service.dataDir, "blobs", folder)).catch(() => []);

test("a file is gone at the instant it expires, before any request has looked for it", async () => {
  await using api = await startTestApi();
  const kept = await uploadInput(api);
  const id = await uploadInput(api);
  const ask = async (method: string, path: string) => (await api.fetch(path, { method })).status;
  const { expires_at } = await wireOf(await api.fetch(`/v1/files/${id}`));
  api.advance(expires_at * 1000 - Date.now() - 60_000);
  expect(await ask("GET", `/v1/files/${id}/content`)).toBe(200);
  expect(idsOn(await wireOf(await api.fetch("/v1/files")))).toEqual([id, kept]);

  api.advance(120_000);

  expect(idsOn(await wireOf(await api.fetch("/v1/files")))).toEqual([]);
  expect(await ask("GET", `/v1/files/${id}`)).toBe(404);
  expect(await ask("GET", `/v1/files/${id}/content`)).toBe(404);
  expect(await ask("DELETE", `/v1/files/${id}`)).toBe(404);
  expect(api.storedFiles()).toHaveLength(2);
});

test("the bytes of an expired file are removed, and those of others stay", async () => {
  const clock = new FakeClock();
  await using service = await startTestService({ clock });
  const { id } = await uploadForAnHour(service, chatLines(1));
  const kept = await service.upload(chatLines(1));

  clock.advance(HOUR_MS - POLL_EVERY_MS);
  expect((await service.openai.files.retrieve(id)).id).toBe(id);
  clock.advance(POLL_EVERY_MS);

  await service.events.reached("file.removed", { file: id });
  expect(service.events.count("file.expired")).toBe(1);
  expect(await blobsIn(service, "files")).toEqual([kept]);
  expect((await service.openai.files.list()).data.map((file) => file.id)).toEqual([kept]);
});

test("a batch of an expired file fails as if there had never been one", async () => {
  const clock = new FakeClock();
  await using service = await startTestService({ clock });
  const { id } = await uploadForAnHour(service, chatLines(1));
  clock.advance(HOUR_MS);

  const batch = await service.ended((await createBatch(service.openai, id)).id);

  expect(batch).toMatchObject({ status: "failed" });
  expect(batch.errors?.data).toEqual([
    {
      code: "invalid_request",
      message: `Cannot find file ${id}, or project default does not have access to it.`,
      param: "file_id",
      line: null,
    },
  ]);
});

test("result files expire when the batch was asked to let them, counted from their creation", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ clock, upstreamUrl: upstream.url });
  const lines = chatLines(2, (n) => (n === 1 ? "fine" : "[[status 400]]"));
  const input = await service.upload(lines);
  const { id } = await createBatch(service.openai, input, { output_expires_after: AN_HOUR });
  const batch = await service.ended(id);
  const results = [batch.output_file_id, batch.error_file_id].map(String);
  for (const result of results) {
    const file = await service.openai.files.retrieve(result);
    expect(file.expires_at).toBe(file.created_at + 3_600);
  }

  clock.advance(HOUR_MS);

  for (const file of results) {
    await service.events.reached("file.removed", { file });
    await expect(service.openai.files.content(file)).rejects.toMatchObject({ status: 404 });
  }
  expect(await blobsIn(service, "files")).toEqual([input]);
  expect(await service.openai.batches.retrieve(id)).toMatchObject({
    status: "completed",
    output_file_id: results[0],
    error_file_id: results[1],
  });
});

test("result files expire after 30 days when nothing was said", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ clock, upstreamUrl: upstream.url });
  const batch = await service.run(chatLines(1));
  const file = String(batch.output_file_id);
  clock.advance(MONTH_MS - POLL_EVERY_MS);
  expect(await service.rows(file)).toHaveLength(1);
  clock.advance(POLL_EVERY_MS);
  await service.events.reached("file.removed", { file });
});

async function startUpload(service: TestService) {
  const upload = await service.openai.uploads.create({
    filename: "input.jsonl",
    purpose: "batch",
    bytes: 3,
    mime_type: "text/jsonl",
  });
  const part = await service.openai.uploads.parts.create(upload.id, {
    data: new File(["{}\n"], "part"),
  });
  return { upload: upload.id, part: part.id };
}

test("an upload expires after an hour, and its parts are removed", async () => {
  const clock = new FakeClock();
  await using service = await startTestService({ clock });
  const { upload, part } = await startUpload(service);
  clock.advance(HOUR_MS - POLL_EVERY_MS);
  expect(await blobsIn(service, "parts")).toEqual([part]);
  clock.advance(POLL_EVERY_MS);

  await service.events.reached("upload.parts_removed", { upload });
  expect(service.events.count("upload.expired", { upload })).toBe(1);
  expect(await blobsIn(service, "parts")).toEqual([]);
  await expect(service.openai.uploads.complete(upload, { part_ids: [part] })).rejects.toMatchObject(
    { status: 400, error: { message: expect.stringContaining("expired") } },
  );
});

test("the parts of an upload are removed once it is completed or cancelled", async () => {
  await using service = await startTestService({ clock: new FakeClock() });
  const completed = await startUpload(service);
  const cancelled = await startUpload(service);
  const { file } = await service.openai.uploads.complete(completed.upload, {
    part_ids: [completed.part],
  });
  await service.openai.uploads.cancel(cancelled.upload);

  for (const { upload } of [completed, cancelled]) {
    await service.events.reached("upload.parts_removed", { upload });
  }
  expect(await blobsIn(service, "parts")).toEqual([]);
  expect(await service.text(file?.id)).toBe("{}\n");
});

test("what a writer that was killed has left is removed at the next start, however young", async () => {
  const dataDir = await mkdtemp(join(tmpdir(), "batchd-orphans-"));
  const before = await startTestService({ dataDir });
  const kept = await before.upload(chatLines(1));
  await before.close();
  for (const name of ["files/file-half", "parts/part_half", "journal/batch_half/0-1-0"]) {
    const path = join(dataDir, "blobs", name);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, "x");
  }
  await using service = await startTestService({ dataDir });
  await service.events.reached("orphan.removed", { count: 3 });
  expect(await blobsIn(service, "parts")).toEqual([]);
  expect(await blobsIn(service, "files")).toEqual([kept]);
  await service.close();
  await rm(dataDir, { recursive: true });
});
