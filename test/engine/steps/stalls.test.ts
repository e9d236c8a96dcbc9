/** A batch whose chunks are held while none of its lines is under way says why. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type OpenAI from "openai";
import { expect, test } from "vitest";
import type { BatchObject } from "../../../src/contract/batch.ts";
import { RunWatch } from "../../../src/engine/steps/stalls.ts";
import { GOOD } from "../../support/given.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

const startWith = (base_url: string, more: object = {}) =>
  startTestService({
    config: { upstreams: [{ name: "one", base_url, models: ["*"], max_concurrency: 1, ...more }] },
  });

const waitingOf = async ({ openai }: TestService, id: string) => {
  const batch = (await openai.batches.retrieve(id)) as OpenAI.Batch & BatchObject;
  return batch.x_batchd.waiting;
};

test("no_room behind a slow model whose slots are all taken, and nothing for the one that has them", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  await using service = await startWith(upstream.url);
  const { id: first } = await service.submit(chatLines(3));
  await upstream.reached(1);
  const { id } = await service.submit(chatLines(3));
  await service.events.reached("chunk.claimed", { batch: id });
  await expect
    .poll(() => waitingOf(service, id))
    .toMatchObject({ reason: "no_room", upstream_error: null });
  expect(await waitingOf(service, first)).toBeNull();
  upstream.release();
  expect((await service.ended(id)).request_counts?.completed).toBe(3);
});

test("no_room while all lines wait for another try at a server that is full for them alone", async () => {
  let isFull = true;
  await using upstream = await startUpstream({
    answers: ({ model }) => (isFull && model === "full" ? { status: 429, body: {} } : GOOD),
  });
  await using service = await startWith(upstream.url, { max_concurrency: 4 });
  const { id: other } = await service.submit(chatLines(2));
  await service.ended(other);
  const full = chatLines(1).map((line) => line.replaceAll("test-model", "full"));
  const { id } = await service.submit(full);
  await expect
    .poll(() => waitingOf(service, id))
    .toMatchObject({ reason: "no_room", upstream_error: "status 429" });
  isFull = false;
  await service.ended(id);
});

test("nothing for a batch with a line under way at a server that asks for a pause, and no_room for the next one", async () => {
  await using upstream = await startUpstream();
  await using service = await startWith(upstream.url, { max_concurrency: 2 });
  const { id } = await service.submit([
    chatLine("slow", "[[hang]]"),
    chatLine("overloaded", "[[status 429 retry-after-ms 600000]]"),
  ]);
  await service.events.reached("upstream.overloaded");
  const { id: next } = await service.submit(chatLines(3));
  await expect
    .poll(() => waitingOf(service, next))
    .toMatchObject({ reason: "no_room", upstream_error: "status 429" });
  expect(await waitingOf(service, id)).toBeNull();
  await Promise.all([id, next].map((each) => service.openai.batches.cancel(each)));
});

test("retrying after a failure of the work itself, whose next try comes after the end of a lease", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  await using service = await startWith(upstream.url);
  const { id: first } = await service.submit(chatLines(1));
  await upstream.reached(1);
  const { id, input_file_id } = await service.submit(chatLines(600));
  await service.events.reached("chunk.claimed", { batch: id });
  await rm(join(service.dataDir, "blobs", "files", input_file_id));
  upstream.release();
  await service.ended(first);
  await service.events.reached("chunk.failed", { batch: id });
  await expect.poll(() => waitingOf(service, id)).toMatchObject({ reason: "retrying" });
  await service.openai.batches.cancel(id);
});

test("nothing while a line is under way or after one was answered since the last look, nor while only answers are left to be written", () => {
  const watch = new RunWatch();
  watch.attemptBegins();
  watch.look();
  watch.look();
  expect(watch.wait).toBeNull();
  watch.attemptEnded();
  watch.lineAnswered();
  watch.look();
  expect(watch.wait).toBeNull();
  watch.attemptBegins();
  watch.attemptEnded();
  watch.look();
  expect(watch.wait).toEqual({ reason: "no_room", upstreamError: null });
  watch.linesEnded();
  watch.look();
  expect(watch.wait).toBeNull();
});
