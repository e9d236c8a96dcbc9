/** Requests whose clients have left: a client may send the next one at once, a thousand times a second. */
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { heldTable } from "../support/held-table.ts";
import { sharePostgres } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { RawConnection } from "../support/raw-http.ts";
import { startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("requests whose clients have left"));

/** The most lists that have rows at a time (`src/http/list.ts`). */
const READ_AT_ONCE = 16;

const LIST = "GET /v1/batches HTTP/1.1\r\nHost: x\r\n\r\n";

test("do not begin any more where others are begun before them", async () => {
  let aheadMs = 0;
  let stepMs = 0;
  const elapsedMs = () => {
    aheadMs += stepMs;
    return systemClock.elapsedMs() + aheadMs;
  };
  const clock = { ...systemClock, elapsedMs };
  await using service = await startTestService({ clock });
  const connections = await Promise.all(
    Array.from({ length: 40 }, () => RawConnection.open(service.url)),
  );
  for (const connection of connections) {
    connection.send(LIST);
    await connection.answer();
  }
  const begunBefore = service.events.count("request.completed");
  // Now each turn of the event loop has the time to begin one or two requests.
  stepMs = 4;
  const noticed = connections.map(({ socket }) => once(socket, "close"));
  for (const connection of connections) {
    connection.send(LIST);
    connection.socket.end();
  }
  await Promise.all(noticed);
  expect((await fetch(`${service.url}/v1/batches`)).status).toBe(200);
  const begun = service.events.count("request.completed") - begunBefore;
  expect(begun).toBeLessThan(connections.length / 2);
});

describe.skipIf(postgres === null)("requests whose clients have left, on PostgreSQL", () => {
  test("are open until their work has ended, so a project has no more of them than of others", async () => {
    using folder = temporaryFolder("batchd-left-requests-");
    const databaseUrl = await postgres!.createDatabase();
    const config = join(folder.path, "config.json");
    const keys = ["a", "b"].map((name) => ({ name, key: `key-${name}`, project: name }));
    const settings = { data_dir: folder.path, database_url: databaseUrl, auth: { keys } };
    await writeFile(config, JSON.stringify(settings));
    await using server = new BatchdProcess(["serve", "--port", "0", "--config", config], {
      OPEN_FILES: "96",
    });
    const url = await server.listening();
    await using batches = await heldTable(databaseUrl, "batches");
    /** Leaves soon if no answer comes. */
    const list = async (what: string, key: string): Promise<string> => {
      const headers = { authorization: `Bearer ${key}` };
      const signal = AbortSignal.timeout(200);
      return fetch(`${url}/v1/${what}`, { headers, signal }).then(
        async (answer) => `${answer.status} ${await answer.text()}`,
        () => "left",
      );
    };
    await expect
      .poll(() => list("batches", "key-a"))
      .toMatch(/^429 .*Too many requests of the project are open/);
    await expect.poll(() => list("files", "key-b")).toMatch(/^200 /);
    await batches.release();
    await expect.poll(() => list("batches", "key-a")).toMatch(/^200 /);
  });

  test("read no list any more once their turn comes", async () => {
    const databaseUrl = await postgres!.createDatabase();
    await using service = await startTestService({ config: { database_url: databaseUrl } });
    await using batches = await heldTable(databaseUrl, "batches");
    const leftCount = 2 * READ_AT_ONCE;
    for (let n = 0; n < leftCount; n++) {
      using connection = await RawConnection.open(service.url);
      const noticed = once(connection.socket, "close");
      connection.send(LIST);
      connection.socket.end();
      await noticed;
    }
    await batches.release();
    await service.events.reached("request.completed", { path: "/v1/batches", count: leftCount });
    const readCount = service.events.count("request.completed", { status: 200 });
    expect(readCount).toBeLessThanOrEqual(READ_AT_ONCE);
  });
});
