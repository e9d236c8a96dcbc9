import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { LineSplitter, type SplitLine } from "../../src/text/split.ts";
import { piecesOf } from "../support/json-arbitraries.ts";

const FROM_THE_TOP = { start: 0, firstLine: 1 };

function split(pieces: readonly Buffer[], maxLineBytes: number, from = FROM_THE_TOP): SplitLine[] {
  const splitter = new LineSplitter(maxLineBytes, from);
  return [...pieces.flatMap((piece) => [...splitter.push(piece)]), ...splitter.end()];
}

const texts = (lines: readonly SplitLine[]) =>
  lines.map(({ number, bytes }) => [number, bytes === null ? null : bytes.toString("latin1")]);

type SplitPlace = Omit<SplitLine, "bytes">;

/** The same lines, found the slow and obvious way. */
function splitWhole(bytes: Buffer, maxLineBytes: number, from: typeof FROM_THE_TOP) {
  const parts = bytes.toString("latin1").split("\n");
  let start = from.start;
  return parts.flatMap((part, i): (SplitPlace & { text: string | null })[] => {
    const isLast = i === parts.length - 1;
    const line = { number: from.firstLine + i, start, end: start + part.length + (isLast ? 0 : 1) };
    start = line.end;
    if (part.length > maxLineBytes) return [{ ...line, text: null }];
    return /^[ \t\r]*$/.test(part) ? [] : [{ ...line, text: part }];
  });
}

/** Bytes in which newlines and spaces are as common as anything else. */
const linesOfBytes = fc
  .array(fc.oneof(fc.constantFrom(0x0a, 0x0a, 0x0d, 0x20, 0x09, 0x61), fc.nat({ max: 255 })), {
    maxLength: 60,
  })
  .map((bytes) => Buffer.from(bytes));

test("the lines are the same however the stream is cut", () => {
  const cut = linesOfBytes.chain((bytes) => fc.tuple(fc.constant(bytes), piecesOf(bytes)));
  const from = fc.record({ start: fc.nat(), firstLine: fc.integer({ min: 1, max: 1_000_000 }) });
  fc.assert(
    fc.property(cut, fc.integer({ min: 1, max: 12 }), from, ([bytes, pieces], maxLineBytes, at) => {
      const found = split(pieces, maxLineBytes, at).map(({ bytes: line, ...place }) => ({
        ...place,
        text: line === null ? null : line.toString("latin1"),
      }));
      expect(found).toEqual(splitWhole(bytes, maxLineBytes, at));
    }),
    { numRuns: 1_000 },
  );
});

describe("a line", () => {
  test("is numbered as an editor numbers it, with blank lines counted and left out", () => {
    const lines = split([Buffer.from("one\n\n \t\r\nfour\nfive")], 100);
    expect(texts(lines)).toEqual([
      [1, "one"],
      [4, "four"],
      [5, "five"],
    ]);
  });

  test("without a newline at the end of the file counts", () => {
    expect(texts(split([Buffer.from("on"), Buffer.from("e")], 100))).toEqual([[1, "one"]]);
  });

  test("keeps its carriage return, which JSON takes for a space", () => {
    expect(texts(split([Buffer.from("{}\r\n{}\r\n")], 100))).toEqual([
      [1, "{}\r"],
      [2, "{}\r"],
    ]);
  });

  test("that is too long is reported with its place and without its bytes", () => {
    const [long, next] = split([Buffer.from("12345"), Buffer.from("6\nok\n")], 5);
    expect(long).toEqual({ number: 1, start: 0, end: 7, bytes: null });
    expect(next).toMatchObject({ number: 2, start: 7, end: 10 });
  });

  test("of exactly the longest length is taken", () => {
    expect(texts(split([Buffer.from("123"), Buffer.from("45\n")], 5))).toEqual([[1, "12345"]]);
  });
});

test("an empty stream has no lines", () => {
  expect(split([], 5)).toEqual([]);
  expect(split([Buffer.alloc(0)], 5)).toEqual([]);
  expect(split([Buffer.from("\n\n")], 5)).toEqual([]);
});

test("a line that is too long is never held in memory", async () => {
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  const splitter = new LineSplitter(1024, FROM_THE_TOP);
  const pushed = Array.from({ length: 16 }, () => {
    const piece = Buffer.alloc(1024 * 1024, 0x61);
    expect([...splitter.push(piece)]).toEqual([]);
    return new WeakRef(piece.buffer);
  });
  // What a WeakRef was made of stays alive until the current turn is over.
  await new Promise(setImmediate);
  collectGarbage();
  expect(pushed.filter((piece) => piece.deref() !== undefined)).toEqual([]);
  expect([...splitter.end()]).toEqual([
    { number: 1, start: 0, end: 16 * 1024 * 1024, bytes: null },
  ]);
});
