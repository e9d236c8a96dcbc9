/**
 * A database whose name leads to a standby for a while, as in the course of a failover. The standby is behind: it has none
 * of the rows that were made since it lost its server.
 */
import { afterAll, describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { Fleet } from "../support/fleet.ts";
import { hasPgBouncer, startPgBouncer } from "../support/pgbouncer.ts";
import { startPostgres } from "../support/postgres.ts";
import { aFile } from "../support/store-builders.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";

/** As many as a process has connections. */
const READS = 10;

const postgres = await startPostgres("servers that are led to a standby", { settings: [] });
const server = postgres?.server;
afterAll(() => postgres?.[Symbol.asyncDispose]());

function lead(proxy: TcpProxy, port: number): void {
  proxy.leadTo(port);
  proxy.network = "cut";
  proxy.network = "well";
}

describe.skipIf(!server)("on PostgreSQL", () => {
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
