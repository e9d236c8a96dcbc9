/** Each line of an input is told its first line of the same body, and damage ends the input without a failure. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { EqualBodies } from "../../../src/batch/equal-bodies.ts";
import type { Blobs } from "../../../src/blobs/blobs.ts";
import { type RepeatedLine, RepeatedLines } from "../../../src/engine/results/repeated-lines.ts";
import type { Store } from "../../../src/store/store.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";
import { aBatch } from "../../support/store-builders.ts";

/** Blank lines have numbers, too. */
const textOf = (question: number, i: number) =>
  question === 0 ? "" : `{"custom_id":"id-${i + 1}","body":{"question":${question}}}`;

async function read(blobs: Blobs, inputBlobKey: string, isLastTry = false) {
  const store = {} as Store;
  const deps = { blobs, inputBlobKey, isLastTry, store, onDamaged: () => {} };
  const lines = new RepeatedLines(aBatch(), new EqualBodies(), deps);
  const found: RepeatedLine[] = [];
  for (await lines.fill(); lines.head !== null; await lines.fill()) {
    found.push(lines.head);
    lines.take();
  }
  await lines.close();
  return found.map(({ number, customId, first }) => [number, customId?.toString(), first]);
}

const wantedOf = (questions: readonly number[]) =>
  questions.flatMap((question, i) => {
    const first = questions.indexOf(question);
    return question === 0 ? [] : [[i + 1, `"id-${i + 1}"`, first === i ? null : first + 1]];
  });

test("the first line with a body has none before it, and each other one names that line", async () => {
  using folder = await openBlobFolder();
  const questions = fc.array(fc.nat({ max: 5 }), { maxLength: 60 });
  const property = fc.asyncProperty(questions, async (all) => {
    const { blobKey } = await folder.store(all.map(textOf).join("\n"));
    expect(await read(folder.blobs, blobKey)).toEqual(wantedOf(all));
  });
  await fc.assert(property, { numRuns: 12 });
});

test("bytes that are no line any more end the input, as the numbers behind them mean nothing", async () => {
  using folder = await openBlobFolder();
  const questions = [1, 2, 1, 2];
  const lines = questions.map(textOf);
  for (const damaged of [`${lines[2]?.slice(0, 20)}`, "\0".repeat(50), '{"custom_id":"id-3"}']) {
    const { blobKey } = await folder.store(lines.with(2, damaged).join("\n"));
    expect(await read(folder.blobs, blobKey)).toEqual(wantedOf(questions.slice(0, 2)));
  }
});

test("an input that is gone has no lines, and a failure that may pass is thrown unless this is the last try", async () => {
  using folder = await openBlobFolder();
  expect(await read(folder.blobs, "files/gone")).toEqual([]);
  const failing = {
    read: () => {
      throw Object.assign(new Error("EIO"), { code: "EIO" });
    },
  } as unknown as Blobs;
  await expect(read(failing, "files/any")).rejects.toThrow("EIO");
  expect(await read(failing, "files/any", true)).toEqual([]);
});
