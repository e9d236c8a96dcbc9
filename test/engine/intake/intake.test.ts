/** Validation comes to an end, and judges by the limits in force. The faults of each line are facts of `conformance/`. */
import { mkdir, rename, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { createBatch } from "../../support/batches.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { chatLines, startTestService, type TestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

const LEASE_OVER_MS = 31_000;

/** A folder in the place of a file: reading it fails, although it is not gone. */
async function makeUnreadable({ dataDir }: TestService, fileId: string) {
  const path = join(dataDir, "blobs/files", fileId);
  // Among the blobs it would be garbage, and swept.
  const aside = join(dataDir, "aside");
  await rename(path, aside);
  await mkdir(path);
  return async () => {
    await rmdir(path);
    await rename(aside, path);
  };
}

/** Resolves after so many failed validations, once the lease of the last one is about to run out. */
async function failures(service: TestService, clock: FakeClock, count: number): Promise<void> {
  for (let failed = 1; failed <= count; failed++) {
    if (failed > 1) clock.advance(LEASE_OVER_MS);
    await service.events.reached("loop.pass_failed", { loop: "intake", count: failed });
    // The loop that has failed is asleep by then.
    await nextTurn();
  }
}

test("a batch whose validation fails five times fails, and other batches go on meanwhile", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ clock, upstreamUrl: upstream.url });
  const input = await service.upload(chatLines(2));
  await makeUnreadable(service, input);
  const { id } = await createBatch(service.openai, input);

  await failures(service, clock, 1);
  expect((await service.run(chatLines(2))).request_counts?.completed).toBe(2);
  await failures(service, clock, 5);
  expect((await service.openai.batches.retrieve(id)).status).toBe("validating");
  clock.advance(LEASE_OVER_MS);
  const batch = await service.ended(id);

  expect(batch.status).toBe("failed");
  expect(batch.errors?.data).toMatchObject([{ code: "internal_error", line: null }]);
  expect(service.events.count("batch.given_up", { batch: id })).toBe(1);
});

test("a validation that fails four times, and then not, costs the batch nothing", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ clock, upstreamUrl: upstream.url });
  const input = await service.upload(chatLines(2));
  const mend = await makeUnreadable(service, input);
  const { id } = await createBatch(service.openai, input);

  await failures(service, clock, 4);
  await mend();
  clock.advance(LEASE_OVER_MS);

  expect((await service.ended(id)).request_counts?.completed).toBe(2);
});

test("a file that is larger than a limit lowered since its upload fails its batch, and a raised one lets it pass", async () => {
  await using upstream = await startUpstream();
  const upstreams = [{ name: "one", base_url: upstream.url, models: ["*"] }];
  const limited = (limits: object) => ({ upstreams, limits });
  await using service = await startTestService({ config: limited({}) });
  const input = await service.upload(chatLines(3));
  const { bytes } = await service.openai.files.retrieve(input);

  service.reconfigure(limited({ max_file_bytes: bytes - 1 }));
  const refused = await service.ended((await createBatch(service.openai, input)).id);
  expect(refused.errors?.data).toMatchObject([{ code: "file_too_large", line: null }]);
  expect(refused.errors?.data?.[0]?.message).toContain(String(bytes - 1));

  service.reconfigure(limited({ max_file_bytes: bytes, max_requests_per_batch: 2 }));
  const tooMany = await service.ended((await createBatch(service.openai, input)).id);
  expect(tooMany.errors?.data).toMatchObject([{ code: "too_many_requests", line: null }]);

  service.reconfigure(limited({ max_file_bytes: bytes }));
  const batch = await service.ended((await createBatch(service.openai, input)).id);
  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
});
