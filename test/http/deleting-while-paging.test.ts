/** A script deletes each object of a page, and then asks for the page behind the last of them. */
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("deleting while paging"));

const KEYS = [
  { name: "alpha", key: "test", project: "alpha" },
  { name: "beta", key: "key-of-beta", project: "beta" },
];
const PAGE = 2;

async function startService(databaseUrl: string | null) {
  const folder = temporaryFolder("batchd-paging-");
  const service = await startTestService({
    dataDir: folder.path,
    config: { auth: { keys: KEYS }, ...(databaseUrl !== null && { database_url: databaseUrl }) },
  });
  return {
    service,
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]();
      folder[Symbol.dispose]();
    },
  };
}

const listedAfter = async ({ url }: TestService, path: string, after: string, key = "test") => {
  const response = await fetch(`${url}${path}?limit=${PAGE}&after=${after}`, {
    headers: { authorization: `Bearer ${key}` },
  });
  const text = await response.text();
  return { status: response.status, text: text.replaceAll(after, "ID") };
};

async function makeBatches(service: TestService, count: number): Promise<string[]> {
  const ids: string[] = [];
  for (let n = 0; n < count; n++) ids.unshift((await service.submit(chatLines(1))).id);
  return ids;
}

const deleteBatch = (service: TestService, id: string) =>
  service.openai.delete(`/batches/${id}`, { body: undefined });

const DATABASES = [
  { name: "SQLite", isHere: true, url: async () => null },
  { name: "PostgreSQL", isHere: postgres !== null, url: () => postgres!.createDatabase() },
];

describe.each(DATABASES)("on $name", ({ isHere, url }) => {
  test.skipIf(!isHere)("a script that deletes each page sees every batch", async () => {
    await using started = await startService(await url());
    const { service } = started;
    const ids = await makeBatches(service, 5);
    const seen: string[] = [];
    for (let page = await service.openai.batches.list({ limit: PAGE }); ; ) {
      for (const { id } of page.data) {
        seen.push(id);
        await deleteBatch(service, id);
      }
      for (const { id } of page.data) await service.events.reached("batch.removed", { batch: id });
      if (!page.hasNextPage()) break;
      page = await page.getNextPage();
    }
    expect(seen).toEqual(ids);
  });

  test.skipIf(!isHere)("a script that deletes each page sees every file", async () => {
    await using started = await startService(await url());
    const { service } = started;
    // The removal of files begins when a batch is deleted.
    const spare = await makeBatches(service, 2);
    const ids: string[] = [];
    for (let n = 0; n < 4; n++) ids.push(await service.upload(chatLines(1)));
    const seen: string[] = [];
    const { data: inputs } = await service.openai.files.list({ order: "asc", limit: 2 });
    const query = { limit: PAGE, order: "asc", after: inputs[1]!.id } as const;
    for (let page = await service.openai.files.list(query); ; ) {
      for (const { id } of page.data) {
        seen.push(id);
        await service.openai.files.delete(id);
      }
      await deleteBatch(service, spare.pop()!);
      for (const { id } of page.data) await service.events.reached("file.removed", { file: id });
      if (!page.hasNextPage()) break;
      page = await page.getNextPage();
    }
    expect(seen).toEqual(ids);
  });

  test.skipIf(!isHere)(
    "the place of a removed object is as unknown to others as what never was",
    async () => {
      await using started = await startService(await url());
      const { service } = started;
      const [id = ""] = await makeBatches(service, 1);
      const { input_file_id: file } = await service.openai.batches.retrieve(id);
      await service.openai.files.delete(file);
      await deleteBatch(service, id);
      await service.events.reached("batch.removed", { batch: id });
      await service.events.reached("file.removed", { file });
      for (const [path, removed, invented] of [
        ["/v1/batches", id, `batch_${"0".repeat(32)}`],
        ["/v1/files", file, `file-${"0".repeat(22)}`],
      ] as const) {
        expect(await listedAfter(service, path, removed)).toMatchObject({ status: 200 });
        const answer = await listedAfter(service, path, removed, "key-of-beta");
        expect(answer.status).toBe(404);
        expect(answer).toEqual(await listedAfter(service, path, invented, "key-of-beta"));
      }
    },
  );
});
