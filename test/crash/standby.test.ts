/**
 * A database whose name leads to a standby for a while, as in the course of a failover. The standby is behind: it has none
 * of the rows that were made since it lost its server.
 */
import type OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { submitLines } from "../support/batches.ts";
import { answeredLines, Fleet, type Member, numbersTo, submit } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { hasPgBouncer, startPgBouncer } from "../support/pgbouncer.ts";
import { query, startPostgres } from "../support/postgres.ts";
import { chatLines } from "../support/service.ts";
import { aFile } from "../support/store-builders.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";

/** They are as many as a process has connections. */
const READS = 10;

const postgres = forAllTests(
  await startPostgres("servers that are led to a standby", { settings: [] }),
);
const server = postgres?.server;

function lead(proxy: TcpProxy, port: number): void {
  proxy.leadTo(port);
  proxy.network = "cut";
  proxy.network = "well";
}

async function promote(databaseUrl: string, port: number): Promise<void> {
  const url = new URL(databaseUrl);
  url.port = String(port);
  await query(url.href, "select pg_promote()");
}

const LINES = 400;
const ANSWERED = 100;
const FAILED = 20;

/** Resumes the batch, once the server has a database again. */
const resume = ({ openai }: Member, id: string) =>
  expect
    .poll(() => openai.post(`/batches/${id}/resume`).then(() => "resumed", String))
    .toBe("resumed");

/** Resolves after a sweep that began after the call. The files that a client has deleted are its last work. */
async function sweepOf({ openai, batchd }: Member): Promise<void> {
  const file = new File(['{"a":1}\n'], "a.jsonl");
  const { id } = await openai.files.create({ file, purpose: "fine-tune" });
  await openai.files.delete(id);
  await batchd.loggedLike(new RegExp(`"file":"${id}".*"event":"file.removed"`));
}

describe.skipIf(!server)("on PostgreSQL", () => {
  test("after a failover that lost a claim, its former holder changes nothing, and each line is answered once", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    const config = { log_level: "debug" };
    await using fleet = new Fleet({ databaseUrl: proxy.urlOf(databaseUrl), config });
    const api = await fleet.api();
    const id = await submit(api, LINES);
    await api.openai.post(`/batches/${id}/pause`);
    const former = await fleet.worker();
    former.upstream.holdAfter(ANSWERED);
    const statusOf = async () => (await api.openai.batches.retrieve(id)).status;
    await expect.poll(statusOf).toBe("in_progress");
    await using standby = await server!.startStandby();
    await resume(api, id);
    await former.upstream.reachedLines(ANSWERED + 1);
    await former.batchd.logged("journal.flushed");
    former.batchd.signal("SIGSTOP");

    await promote(databaseUrl, standby.port);
    lead(proxy, standby.port);
    await resume(api, id);
    const next = await fleet.worker();
    next.upstream.holdAfter(ANSWERED);
    await next.upstream.reachedLines(ANSWERED + 1);
    await next.batchd.logged("journal.flushed");
    former.batchd.signal("SIGCONT");
    former.upstream.release();
    await former.batchd.loggedLike(/"chunk.ended"|("journal.flushed".*){2}/s);

    next.upstream.release();
    await expect.poll(statusOf).toBe("completed");
    expect(await answeredLines(api, id)).toEqual(numbersTo(LINES));
    expect(new Set(next.upstream.received.values())).toEqual(new Set([1]));
  });

  test("a failover that lost the end of a batch costs no answer that the standby knows of", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    const config = { log_level: "debug" };
    await using fleet = new Fleet({ databaseUrl: proxy.urlOf(databaseUrl), config });
    const api = await fleet.api();
    const worker = await fleet.worker();
    worker.upstream.holdAfter(ANSWERED);
    const id = await submit(api, LINES);
    const batch = () => api.openai.batches.retrieve(id);
    await expect.poll(async () => (await batch()).request_counts?.completed).toBe(ANSWERED);
    await using standby = await server!.startStandby();
    worker.upstream.release();
    await expect.poll(async () => (await batch().catch(() => null))?.status).toBe("completed");
    await sweepOf(api);

    await promote(databaseUrl, standby.port);
    lead(proxy, standby.port);
    await expect.poll(async () => (await batch().catch(() => null))?.status).toBe("in_progress");
    await expect.poll(async () => (await batch().catch(() => null))?.status).toBe("completed");
    expect(await answeredLines(api, id)).toEqual(numbersTo(LINES));
    const timesSent = [...worker.upstream.received.values()];
    expect(timesSent.filter((times) => times === 1)).toHaveLength(ANSWERED);
  });

  test("a failover that lost the end of a batch costs no answer whose file its client had deleted meanwhile", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    const config = { log_level: "debug" };
    await using fleet = new Fleet({ databaseUrl: proxy.urlOf(databaseUrl), config });
    const api = await fleet.api();
    const { openai } = api;
    const { upstream } = await fleet.worker();
    const batch = (id: string) => openai.batches.retrieve(id).catch(() => null);
    const statusOf = async (id: string) => (await batch(id))?.status;
    const failsOnce = (n: number) => (n <= FAILED ? "[[status 400 x1]] " : "");
    const lines = chatLines(LINES, (n) => `${failsOnce(n)}Say ${n}`);
    const source = await submitLines(openai, lines);
    await expect.poll(() => statusOf(source.id)).toBe("completed");
    const { total } = upstream;
    upstream.holdAfter(total);
    const from = { batch: source.id, lines: "failed", merge: true };
    const { endpoint, completion_window } = source;
    const body = { endpoint, completion_window, x_batchd: { from } };
    const merged = await openai.post<OpenAI.Batch>("/batches", { body });
    await upstream.reached(total + 1);
    const { output_file_id, error_file_id } = (await batch(source.id))!;
    const files = [merged.input_file_id, output_file_id!, error_file_id!];
    for (const id of files) await openai.files.delete(id);
    // A sweep beside the copy of the database would take long, and those behind it would rest.
    await sweepOf(api);
    await using standby = await server!.startStandby();
    upstream.release();
    await expect.poll(() => statusOf(merged.id)).toBe("completed");
    await sweepOf(api);

    await promote(databaseUrl, standby.port);
    lead(proxy, standby.port);
    await expect.poll(() => statusOf(merged.id)).toBe("in_progress");
    await expect.poll(() => statusOf(merged.id)).toBe("completed");
    expect(await answeredLines(api, merged.id)).toEqual(numbersTo(LINES));
  });

  test("nothing is read from a standby, also from connections that began before its server was back", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    await using fleet = new Fleet({ databaseUrl: proxy.urlOf(databaseUrl) });
    const { url, openai } = await fleet.api();
    await using standby = await server!.startStandby();
    const read = async (path: string) => (await fetch(url + path)).status;
    await expect.poll(() => read("/ready")).toBe(200);
    const file = new File(['{"a":1}\n'], "a.jsonl");
    const { id } = await openai.files.create({ file, purpose: "fine-tune" });
    const reads = () =>
      Promise.all(Array.from({ length: READS }, () => read(`/v1/files/${id}/content`)));

    lead(proxy, standby.port);
    expect(new Set(await reads())).toEqual(new Set([503]));
    proxy.leadTo(Number(new URL(databaseUrl).port));
    expect(new Set(await reads())).toEqual(new Set([200]));
  });

  test("a server is not ready, and its log says why, while the database answers reads and takes no writes", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    await using fleet = new Fleet({ databaseUrl: proxy.urlOf(databaseUrl) });
    const { url, openai, batchd } = await fleet.api();
    const ready = async () => (await fetch(`${url}/ready`)).status;
    // As managed servers do when their disk is nearly full. Only new connections learn of it.
    const become = async (setting: "on" | "off") => {
      const { pathname, port } = new URL(databaseUrl);
      const name = pathname.slice(1);
      await query(
        databaseUrl,
        `begin read write; alter database ${name} set default_transaction_read_only = ${setting}; commit`,
      );
      lead(proxy, Number(port));
    };
    await expect.poll(ready).toBe(200);
    await become("on");
    expect((await openai.files.list()).data).toEqual([]);
    // A connection that was being opened meanwhile may still have the former setting.
    await expect.poll(ready).toBe(503);
    await batchd.loggedLike(/"path":"\/ready","status":503.*read-only transaction/);
    await become("off");
    await expect.poll(ready).toBe(200);
  });

  test.skipIf(!hasPgBouncer())(
    "no blob is garbage for a standby that a pooler leads to",
    async () => {
      const databaseUrl = await postgres!.createDatabase();
      const proxy = await TcpProxy.before(databaseUrl);
      await using pooler = await startPgBouncer(proxy.urlOf(databaseUrl), 1);
      const { url } = pooler;
      const opened = await openPostgresStore({
        url,
        poolSize: 1,
        listens: false,
        clock: systemClock,
      });
      if (!opened.ok) throw new Error(opened.problem);
      const { store } = opened;
      await using standby = await server!.startStandby();
      const file = aFile();
      await store.declareBlobs([file.blobKey], 60_000);
      await store.insertFileIfDeclared(file);

      lead(proxy, standby.port);
      expect(await store.findFile(file)).toBeNull();
      expect(await store.findGarbage([file.blobKey])).toEqual([]);
      await store.close();
    },
  );
});
