import { zstdCompressSync } from "node:zlib";
import fc from "fast-check";
import { expect, test } from "vitest";
import { ZstdFrames } from "../../src/formats/zstd-frames.ts";

/** A frame that can be skipped, with so many bytes. */
const skippable = (bytes: number): Buffer => {
  const frame = Buffer.alloc(8 + bytes, 0x28);
  frame.writeUInt32LE(0x184d2a53, 0);
  frame.writeUInt32LE(bytes, 4);
  return frame;
};

test("frames come out one by one and without skippable ones, wherever the stream is cut", () => {
  const frame = fc.string({ maxLength: 200 }).map((text) => zstdCompressSync(Buffer.from(text)));
  const part = fc.oneof(
    frame.map((bytes) => ({ bytes, isFrame: true })),
    fc.nat(9).map((size) => ({ bytes: skippable(size), isFrame: false })),
  );
  fc.assert(
    fc.property(
      fc.array(part, { maxLength: 6 }),
      fc.integer({ min: 1, max: 40 }),
      (parts, step) => {
        const stream = Buffer.concat(parts.map(({ bytes }) => bytes));
        const wanted = parts.filter(({ isFrame }) => isFrame).map(({ bytes }) => bytes);
        const frames = new ZstdFrames();
        const pieces: Buffer[] = [];
        for (let at = 0; at < stream.length; at += step) {
          pieces.push(...frames.push(stream.subarray(at, at + step)));
        }
        frames.end();
        expect(frames.count).toBe(parts.length);
        expect(Buffer.concat(pieces).equals(Buffer.concat(wanted))).toBe(true);
        const ends = new Set<number>();
        wanted.reduce((sum, { length }) => ends.add(sum + length) && sum + length, 0);
        let start = 0;
        for (const { length } of pieces) {
          expect([...ends].some((end) => end > start && end < start + length)).toBe(false);
          start += length;
        }
      },
    ),
  );
});

test("skippable frames cost no pieces", () => {
  const frames = new ZstdFrames();
  const skipped = Buffer.concat(Array.from({ length: 1_000 }, () => skippable(0)));
  expect([...frames.push(skipped)]).toEqual([]);
  frames.end();
});
