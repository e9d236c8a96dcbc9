import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { multipart, RawConnection, uploadRequest } from "../support/raw-http.ts";
import { chatLine, startTestService } from "../support/service.ts";

const MINUTE_MS = 60_000;
/** It is longer than an unrenewed intent lasts. */
const DRAIN_MINUTES = 15;

test("an upload that a closing API server waits for keeps the right to its blob", async () => {
  const clock = new FakeClock();
  await using service = await startTestService({
    clock,
    role: "api",
    config: { engine: { drain_grace_seconds: 3_600 } },
  });
  const opened = await openSqliteStore({ path: join(service.dataDir, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  const file = { name: "file", filename: "in.jsonl", content: `${chatLine("a", "Hi")}\n` };
  const request = uploadRequest(multipart([{ name: "purpose", content: "batch" }, file]));
  using connection = await RawConnection.open(service.url);
  connection.send(request.slice(0, -50));
  await expect.poll(() => readdirSync(join(service.dataDir, "blobs/.tmp"))).toHaveLength(1);
  const closed = service.close();
  for (let minute = 0; minute < DRAIN_MINUTES; minute++) {
    clock.advance(MINUTE_MS);
    for (let turn = 0; turn < 20; turn++) await nextTurn();
  }
  expect(await opened.store.revokeExpiredIntents(10)).toEqual([]);
  connection.send(request.slice(-50));
  expect((await connection.answer()).status).toBe(200);
  await closed;
  await opened.store.close();
});
