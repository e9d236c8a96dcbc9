/** What becomes of a new batch when the connection to the database breaks during its commit. */
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { createBatch, submitLines, uploadLines } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { losingAnswers } from "../support/lost-answer.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("commits without an answer"));

const LINES = 20;
/** The time for which a server looks for what a commit in doubt has made. */
const CERTAIN_WITHIN_MS = 20_000;

const retrying = (url: string) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "test" });

async function idsIn(openai: OpenAI): Promise<string[]> {
  return (await openai.batches.list()).data.map(({ id }) => id);
}

describe.skipIf(postgres === null)("a client of the official SDK that creates one batch", () => {
  test("has its input once, as a file and as an upload", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    await using service = await startTestService({
      config: { database_url: proxy.urlOf(databaseUrl) },
    });
    const openai = retrying(service.url);
    proxy.loseCommitOf('insert into "files"');
    const input = await uploadLines(openai, chatLines(LINES));
    expect(proxy.isCommitAwaited).toBe(false);

    const bytes = Buffer.from(`${chatLines(LINES).join("\n")}\n`);
    const upload = await openai.uploads.create({
      bytes: bytes.length,
      filename: "input.jsonl",
      mime_type: "application/jsonl",
      purpose: "batch",
    });
    const data = new File([bytes], "part");
    const part = await openai.uploads.parts.create(upload.id, { data });
    proxy.loseCommitOf('insert into "files"');
    const completed = await openai.uploads.complete(upload.id, { part_ids: [part.id] });
    expect([completed.status, proxy.isCommitAwaited]).toEqual(["completed", false]);

    const listed = (await openai.files.list()).data.map(({ id }) => id);
    expect(listed.toSorted()).toEqual([input, completed.file?.id].toSorted());
  });

  test("has its input once, however long the upload has waited before its commit", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    const after: typeof systemClock.after = (ms, fn) =>
      systemClock.after(ms === CERTAIN_WITHIN_MS ? 0 : ms, fn);
    await using service = await startTestService({
      clock: { ...systemClock, after },
      config: { database_url: proxy.urlOf(databaseUrl) },
    });
    const openai = retrying(service.url);
    proxy.loseCommitOf('insert into "files"');
    const input = await uploadLines(openai, chatLines(LINES));
    expect(proxy.isCommitAwaited).toBe(false);
    expect((await openai.files.list()).data.map(({ id }) => id)).toEqual([input]);
  });

  test.each([
    ["was lost", "none"],
    ["is that its end is not known", "unknown"],
  ] as const)(
    "has one, which sends each line once, also when the answer to the commit %s",
    async (_, answer) => {
      await using upstream = await startUpstream();
      const databaseUrl = await postgres!.createDatabase();
      const proxy = await TcpProxy.before(databaseUrl);
      await using service = await startTestService({
        config: {
          database_url: proxy.urlOf(databaseUrl),
          upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
        },
      });
      const input = await service.upload(chatLines(LINES));
      proxy.loseCommitOf('insert into "batches"', answer);
      const { id } = await createBatch(retrying(service.url), input);
      expect(proxy.isCommitAwaited).toBe(false);
      expect((await service.ended(id)).request_counts?.completed).toBe(LINES);
      expect(await idsIn(service.openai)).toEqual([id]);
      expect(upstream.total).toBe(LINES);
    },
  );

  test("has one, also when the connection broke before the commit was made", async () => {
    await using upstream = await startUpstream();
    const databaseUrl = await postgres!.createDatabase();
    await query(
      databaseUrl,
      `create sequence dying;
       create function die_once() returns trigger language plpgsql as $$ begin
         if nextval('dying') = 1 then perform pg_terminate_backend(pg_backend_pid()); end if;
         return null; end $$;
       create constraint trigger die_once after insert on batches deferrable initially deferred
         for each row execute function die_once()`,
    );
    await using service = await startTestService({
      config: {
        database_url: databaseUrl,
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      },
    });
    const { id } = await submitLines(service.openai, chatLines(LINES));
    expect((await service.ended(id)).status).toBe("completed");
    expect(await idsIn(service.openai)).toEqual([id]);
    expect(await query(databaseUrl, "select last_value::int as tries from dying")).toEqual([
      { tries: 2 },
    ]);
  });
});

test("a client that cannot be told whether its batch is there is told so, and its SDK creates no other", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    openStorage: losingAnswers,
  });
  const input = await service.upload(chatLines(LINES));
  const refused = await createBatch(retrying(service.url), input).catch((error: unknown) => error);
  const [id, ...others] = await idsIn(service.openai);
  expect(others).toEqual([]);
  expect(refused).toMatchObject({ status: 503, message: expect.stringContaining(`'${id}'`) });

  const key = { headers: { "Idempotency-Key": "the-same" } };
  const again = await createBatch(retrying(service.url), input, {}, key);
  expect((await idsIn(service.openai)).toSorted()).toEqual([again.id, id].toSorted());
});
