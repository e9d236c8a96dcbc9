/** What is left of uploads that have ended: a day later nothing, at first what a client needs that lost an answer. */
import { join } from "node:path";
import Database from "better-sqlite3";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("ended uploads"));

const HOUR_MS = 60 * 60 * 1000;
/** Stands in all that a client writes. */
const NAME = "needle-7f3a.jsonl";

interface Place {
  readonly dataDir: string;
  readonly databaseUrl: string | null;
}

/** Runs a statement on the database of a server that has stopped. */
async function onDatabase({ dataDir, databaseUrl }: Place, statement: string): Promise<unknown[]> {
  if (databaseUrl === null) {
    const db = new Database(join(dataDir, "batchd.sqlite"));
    const prepared = db.prepare(statement);
    const rows = prepared.reader ? prepared.all() : [prepared.run()];
    db.close();
    return rows;
  }
  return query(databaseUrl, statement);
}

const create = ({ openai }: TestService) =>
  openai.uploads.create({ filename: NAME, purpose: "user_data", bytes: 4, mime_type: "a/b" });

/** Makes an upload of each kind. */
async function makeUploads(service: TestService) {
  const { openai } = service;
  const completed = await create(service);
  const part = await openai.uploads.parts.create(completed.id, { data: new File(["text"], NAME) });
  await openai.uploads.complete(completed.id, { part_ids: [part.id] });
  const cancelled = await create(service);
  await openai.uploads.parts.create(cancelled.id, { data: new File(["text"], NAME) });
  await openai.uploads.cancel(cancelled.id);
  const pending = await create(service);
  return { completed: completed.id, cancelled: cancelled.id, pending: pending.id };
}

/** Says what the server answers to one who cancels the upload. */
const ofCancelling = ({ openai }: TestService, id: string): Promise<string> =>
  openai.uploads.cancel(id).then(
    ({ status }) => status,
    (error: Error) => error.message,
  );

describe.each([
  ["SQLite", null, true],
  ["PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  test.skipIf(!canRun)(
    "nothing is left of an upload a day after its time, and until then its end is known",
    async () => {
      using folder = temporaryFolder("batchd-uploads-");
      const databaseUrl = (await database?.createDatabase()) ?? null;
      const place = { dataDir: folder.path, databaseUrl };
      const config = databaseUrl === null ? {} : { database_url: databaseUrl };
      const start = () => startTestService({ dataDir: folder.path, config });
      const age = (hours: number) =>
        onDatabase(place, `update uploads set expires_at_ms = expires_at_ms - ${hours * HOUR_MS}`);
      const rows = () => onDatabase(place, "select id from uploads");
      let ids: Awaited<ReturnType<typeof makeUploads>>;
      {
        await using service = await start();
        ids = await makeUploads(service);
      }
      await age(24);
      {
        await using service = await start();
        await service.events.reached("upload.expired", { upload: ids.pending });
        expect(await ofCancelling(service, ids.completed)).toMatch(
          "is already completed: its file",
        );
        expect(await ofCancelling(service, ids.cancelled)).toBe("cancelled");
        expect(await ofCancelling(service, ids.pending)).toMatch("is already expired");
      }
      await age(1);
      {
        await using service = await start();
        for (const id of Object.values(ids)) {
          await expect.poll(() => ofCancelling(service, id)).toMatch("No such Upload object");
        }
        await create(service);
      }
      expect(await rows()).toHaveLength(1);
    },
  );
});
