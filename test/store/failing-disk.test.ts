/** A disk that fails below the database: nothing is lost, and all goes on by itself. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import Database from "better-sqlite3";
import { describe, expect, test } from "vitest";
import { BatchdProcess } from "../support/process.ts";
import { canTrace } from "../support/programs.ts";
import { startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { AGAIN, MAX_TURN_MS, startWatched } from "../support/watched-server.ts";

const filesOfDatabase = (dataDir: string) => {
  const path = join(dataDir, "batchd.sqlite");
  return ["-P", path, "-P", `${path}-wal`];
};

/** Has calls of the server, and of its processes, fail. Resolves once they do. */
async function failing(server: BatchdProcess, fault: string, files: readonly string[] = []) {
  const args = ["-f", "-p", String(server.pid), ...files];
  const tracer = spawn("strace", [...args, "-e", `inject=${fault}`], { stdio: "pipe" });
  let traced = "";
  tracer.stderr.on("data", (text) => {
    traced += String(text);
  });
  await expect.poll(() => traced).toContain("attached");
  return {
    hasFailed: () => traced.includes("INJECTED"),
    stop: async () => {
      tracer.kill("SIGINT");
      await once(tracer, "close");
    },
  };
}

/** A look at all of these takes two tenths of a second at least. */
const MANY_ROWS = `
  with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < 300000)
  insert into idempotency_keys (project, key, created_at_ms, fingerprint, answer)
  select 'p', 'key-' || n, ${Date.now()}, 'f', 'a' from numbers`;

function change(dataDir: string, statements: string): void {
  const database = new Database(join(dataDir, "batchd.sqlite"));
  database.exec(`begin immediate; ${statements}; commit`);
  database.close();
}

describe.skipIf(!canTrace("the tests on a failing disk"))("where strace is", () => {
  test.each([
    ["one read", ":when=1"],
    ["every read", ""],
  ])(
    "a disk that fails %s of a large database is no damage, and stops nothing",
    AGAIN,
    async (_, when) => {
      using folder = temporaryFolder("batchd-failed-read-");
      const dataDir = join(folder.path, "data");
      await (await startTestService({ dataDir })).close();
      change(dataDir, MANY_ROWS);
      await using watched = await startWatched(dataDir, []);
      const status = async () => (await fetch(`${watched.url}/v1/files`)).status;
      expect(await status()).toBe(200);
      const disk = await failing(
        watched.server,
        `pread64:error=EIO${when}`,
        filesOfDatabase(dataDir),
      );
      // A commit of another process makes the server read its pages again.
      change(dataDir, "create table other (n); drop table other");
      await expect.poll(disk.hasFailed).toBe(true);
      await disk.stop();

      await expect.poll(status).toBe(200);
      expect(await watched.longestTurnMs()).toBeLessThan(MAX_TURN_MS);
      expect((await watched.server.kill("SIGTERM")).stderr).not.toContain("database.damaged");
    },
  );

  test.each([
    ["fails a write", "pwrite64:error=EIO", "cannot reach its database"],
    ["fails a sync", "fsync,fdatasync:error=EIO", "cannot reach its database"],
    ["takes no writes", "pwrite64:error=EROFS", "cannot reach its database"],
    ["is full", "pwrite64:error=ENOSPC", "disk of the server is full"],
  ])("a disk that %s is a 503, and the request passes later", async (...named) => {
    const [, fault, message] = named;
    using folder = temporaryFolder("batchd-failed-write-");
    await using server = new BatchdProcess(["serve", "--port", "0", "--data-dir", folder.path]);
    const url = await server.listening();
    const create = () =>
      fetch(`${url}/v1/uploads`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: '{"filename":"f","purpose":"batch","bytes":1,"mime_type":"application/jsonl"}',
      });
    const disk = await failing(server, fault, filesOfDatabase(folder.path));
    const refused = await create();
    expect(refused.status).toBe(503);
    expect(await refused.json()).toEqual({
      error: {
        message: expect.stringContaining(message),
        type: "server_error",
        param: null,
        code: null,
      },
    });
    await disk.stop();
    expect((await create()).status).toBe(200);
    const { stderr } = await server.kill("SIGTERM");
    const lines = stderr.split("\n").filter((line) => line.includes('"status":503'));
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatch(/SQLITE_(?:IOERR|FULL)/);
  });

  test.each([
    ["EIO", "storage of the server does not answer", "5"],
    ["ESTALE", "storage of the server does not answer", "5"],
    ["EDQUOT", "disk of the server is full", null],
  ])(
    "a sync of an upload that fails with %s is a 503, and the upload passes later",
    async (...named) => {
      const [code, message, retryAfter] = named;
      using folder = temporaryFolder("batchd-failed-upload-");
      await using server = new BatchdProcess(["serve", "--port", "0", "--data-dir", folder.path]);
      const url = await server.listening();
      const upload = () => {
        const body = new FormData();
        body.set("purpose", "user_data");
        body.set("file", new Blob(["text"]), "f");
        return fetch(`${url}/v1/files`, { method: "POST", body });
      };
      // SQLite syncs its files with `fdatasync`.
      const disk = await failing(server, `fsync:error=${code}`);
      const refused = await upload();
      expect(refused.status).toBe(503);
      expect(refused.headers.get("retry-after")).toBe(retryAfter);
      expect(await refused.text()).toContain(message);
      await disk.stop();
      expect((await upload()).status).toBe(200);
      expect((await server.kill("SIGTERM")).stderr).toContain(`"code":"${code}"`);
    },
  );
});
