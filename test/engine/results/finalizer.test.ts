/** A batch is ended once, by the replica that holds its lease; another one that has written results removes them. */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { createBatch } from "../../support/batches.ts";
import { derive } from "../../support/derived.ts";
import { lockBeforeResults, startHeldBatch } from "../../support/held-batch.ts";
import { startReceiver } from "../../support/receiver.ts";
import {
  HEARTBEAT_MS,
  LEASE_OVER_MS,
  type Replicas,
  startReplicas,
} from "../../support/replicas.ts";
import { chatLines, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

const COUNTS = { total: 6, completed: 4, failed: 2 };
/** The rows are more than a result file takes before it is written. */
const someFail = (n: number) => (n % 3 === 0 ? "[[status 400]]" : "[[big 700000]]");

const filesIn = (dataDir: string) => readdir(join(dataDir, "blobs/files"));

/** A batch that replica `a` has begun to finalize, and whose results it cannot write yet. */
async function finalizingAtA({ a }: Replicas) {
  const input_file_id = await a.service.upload(chatLines(6, someFail));
  a.blobs.puts.close("files/");
  const batch = await createBatch(a.service.openai, input_file_id);
  await a.blobs.puts.reached();
  return batch;
}

test.each([
  { when: "before its commit", renews: false },
  { when: "and is told of it while it writes", renews: true },
])("a finalizer that loses its lease $when publishes nothing, and leaves no file", async (each) => {
  await using upstream = await startUpstream();
  await using receiver = await startReceiver();
  await using replicas = await startReplicas({
    upstreamUrl: upstream.url,
    config: {
      webhooks: {
        endpoints: [{ name: "hook", url: receiver.url, secret: "s" }],
        allow_private_hosts: ["127.0.0.1"],
      },
    },
  });
  const { a, b, dataDir } = replicas;
  const { id, input_file_id } = await finalizingAtA(replicas);
  b.clock.advance(LEASE_OVER_MS);
  const batch = await b.service.ended(id);
  expect(batch.request_counts).toEqual(COUNTS);

  if (each.renews) a.clock.advance(HEARTBEAT_MS);
  a.blobs.puts.open();
  await expect.poll(() => a.lostLeases("batch")).toBe(1);

  const own = [input_file_id, batch.output_file_id, batch.error_file_id].toSorted();
  await expect.poll(async () => (await filesIn(dataDir)).toSorted()).toEqual(own);
  // Nor the half of one.
  await expect.poll(() => readdir(join(dataDir, "blobs/.tmp"))).toEqual([]);
  expect(await a.service.openai.batches.retrieve(id)).toEqual(batch);
  expect(a.service.events.count("batch.completed")).toBe(0);
  const { data } = await a.service.openai.files.list();
  expect(data.map((file) => file.id).toSorted()).toEqual(own);
  expect(await a.service.rows(batch.output_file_id)).toHaveLength(4);
  expect(await a.service.rows(batch.error_file_id)).toHaveLength(2);
  while (receiver.seen.length === 0) await setImmediate();
  expect(receiver.seen).toHaveLength(1);
});

test("a finalizer that leaves while it takes rows over from another batch gives the batch back, too", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b } = replicas;
  const firstFails = (n: number) => (n === 1 ? "[[status 400]]" : "[[big 700000]]");
  const input_file_id = await a.service.upload(chatLines(6, firstFails));
  const { id: batch } = await createBatch(a.service.openai, input_file_id);
  await a.service.ended(batch);
  upstream.hold();
  const sent = upstream.total;
  const retry = await derive(a.service, { batch, lines: "failed", merge: true });
  await upstream.reached(sent + 1);
  a.blobs.puts.close("files/");
  upstream.release();
  await a.blobs.puts.reached();
  const leaving = a.service.close();
  a.blobs.puts.open();
  await leaving;
  expect(a.service.events.count("batch.completed")).toBe(1);
  b.clock.advance(1_000);
  const { output_file_id } = await b.service.ended(retry.batch.id);
  expect(await b.service.rows(output_file_id)).toHaveLength(5);
});

test("a finalizer that leaves gives the batch back, and the other replica ends it at once", async () => {
  await using upstream = await startUpstream();
  await using replicas = await startReplicas({ upstreamUrl: upstream.url });
  const { a, b, dataDir } = replicas;
  const { id, input_file_id } = await finalizingAtA(replicas);
  const leaving = a.service.close();
  a.blobs.puts.open();
  await leaving;
  b.clock.advance(1_000);
  const batch = await b.service.ended(id);

  expect(batch.request_counts).toEqual(COUNTS);
  const own = [input_file_id, batch.output_file_id, batch.error_file_id].toSorted();
  expect((await filesIn(dataDir)).toSorted()).toEqual(own);
});

test("a server that closes while its results cannot be published leaves them to the next one", async () => {
  await using held = await startHeldBatch(3);
  const { clock, upstream, service, id } = held;
  const { dataDir } = service;
  const unlock = await lockBeforeResults(held);
  await service.close();
  unlock();

  await using next = await startTestService({ clock, upstreamUrl: upstream.url, dataDir });
  const end = next.ended(id);
  clock.advance(LEASE_OVER_MS);
  const batch = await end;
  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
});
