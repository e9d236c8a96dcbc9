/** What is committed with a segment is the sum of its records, and its bytes are these records. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { NO_USAGE, type Usage } from "../../../src/batch/batch.ts";
import type { BlobReader } from "../../../src/blobs/blobs.ts";
import { PendingRecords } from "../../../src/engine/journal/pending-records.ts";
import { readSegment } from "../../../src/engine/journal/segment.ts";
import { MemoryBudget } from "../../../src/resources/memory-budget.ts";

const priceOf = (output: string) => ({
  currency: "EUR",
  per: 1 as const,
  input: "1",
  cachedInput: "1",
  output,
  perRequest: "0",
});
const PRICES = [null, priceOf("2"), priceOf("3")];
const NAMES = [undefined, { model: "m-1", fingerprint: null }, { model: "m\n2", fingerprint: "x" }];

const usage = fc.record({
  inputTokens: fc.nat({ max: 99 }),
  cachedTokens: fc.constant(0),
  outputTokens: fc.nat({ max: 99 }),
  reasoningTokens: fc.constant(0),
  totalTokens: fc.nat({ max: 99 }),
});
/** Most pieces are small. Some are longer than what is copied. */
const piece = fc.oneof(
  { weight: 9, arbitrary: fc.uint8Array({ maxLength: 20 }) },
  { weight: 1, arbitrary: fc.nat({ max: 9_000 }).map((length) => new Uint8Array(length)) },
);
const record = fc.record({
  lineNumber: fc.integer({ min: 1, max: 1_000_000 }),
  row: fc.array(
    piece.map((bytes) => Buffer.from(bytes)),
    { maxLength: 4 },
  ),
  latencyMs: fc.option(fc.nat({ max: 100_000 }), { nil: undefined }),
  status: fc.option(fc.constantFrom(400, 500)),
  answer: fc.record({
    model: fc.constantFrom("a", "b"),
    price: fc.constantFrom(...PRICES),
    usage,
    names: fc.constantFrom(...NAMES),
  }),
});

const sumOf = <T>(things: readonly T[], count: (thing: T) => number) =>
  things.reduce((sum, thing) => sum + count(thing), 0);
const tokensOf = ({ inputTokens, outputTokens }: Pick<Usage, "inputTokens" | "outputTokens">) =>
  inputTokens + outputTokens;

test("the sums are those of the records, the bytes are read back as these, and no memory stays counted", async () => {
  const property = fc.asyncProperty(fc.array(record, { maxLength: 20 }), async (all) => {
    const memory = new MemoryBudget(() => 1e9);
    const pending = new PendingRecords();
    let durableCount = 0;
    for (const { status, answer, ...each } of all) {
      const succeeded = status === null;
      const room = memory.open("answers", "default");
      void room.add(100);
      pending.add({
        ...each,
        succeeded,
        room,
        failure: succeeded ? undefined : { status, code: null },
        answer: succeeded ? answer : null,
        onDurable: () => void durableCount++,
      });
    }
    const failed = all.filter(({ status }) => status !== null);
    const answers = all.filter(({ status }) => status === null).map(({ answer }) => answer);
    expect([pending.completed, pending.failed]).toEqual([answers.length, failed.length]);
    expect(pending.usage.totalTokens).toBe(sumOf(answers, (each) => each.usage.totalTokens));
    for (const price of PRICES) {
      for (const model of ["a", "b"]) {
        const alike = answers.filter((each) => each.price === price && each.model === model);
        const sum = pending.consumption.get(price)?.get(model);
        expect(sum?.requestCount ?? 0).toBe(alike.length);
        expect(tokensOf(sum ?? NO_USAGE)).toBe(sumOf(alike, (each) => tokensOf(each.usage)));
      }
    }
    for (const status of [400, 500]) {
      const count = pending.failures.find((group) => group.status === status)?.count ?? 0;
      expect(count).toBe(failed.filter((each) => each.status === status).length);
    }
    const timedCount = all.filter(({ latencyMs }) => latencyMs !== undefined).length;
    expect(sumOf(pending.latencyCounts ?? [], (count) => count)).toBe(timedCount);

    const bytes = Buffer.concat(pending.finish());
    expect(pending.bytes).toBe(bytes.length);
    const blobs = { readRange: async () => bytes } as unknown as BlobReader;
    const segment = { blobKey: "segment", bytes: bytes.length, crc32: null };
    const reading = await readSegment(segment, { blobs, isLastTry: false });
    expect(reading).toMatchObject({
      ok: true,
      records: all.map(({ lineNumber, status, answer }) => ({
        lineNumber,
        succeeded: status === null,
        names: (status === null && answer.names) || null,
      })),
    });
    const rows = reading.ok
      ? reading.records.map(({ start, end }) => bytes.subarray(start, end))
      : [];
    expect(rows).toEqual(all.map(({ row }) => Buffer.concat(row)));

    for (const onDurable of pending.onDurable) onDurable();
    pending.release();
    expect([durableCount, memory.heldBytes("answers")]).toEqual([all.length, 0]);
  });
  await fc.assert(property, { numRuns: 50 });
});
