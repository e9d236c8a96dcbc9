/** The lines of an ended batch are chosen by the files of its results alone. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { NO_USAGE } from "../../../src/batch/batch.ts";
import { outcomeLine } from "../../../src/batch/outcome.ts";
import { BlobTooShort } from "../../../src/blobs/blobs.ts";
import { type LinesOfSource, linesOfSource } from "../../../src/engine/deriving/source-lines.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";

type Fate = "succeeds" | "fails" | "blank";

const fates = fc.array(fc.constantFrom<Fate>("succeeds", "succeeds", "fails", "blank"), {
  minLength: 1,
  maxLength: 40,
});
const CHOICES = ["all", "failed", "succeeded"] as const;

const lineOf = (number: number, fate: Fate) => (fate === "blank" ? "" : `{"line":${number}}`);

/** The rows of lines in a result file, as batchd writes them. */
const rowOf = (lineNumber: number, status: number): string => {
  const body = Buffer.from(`{"n":${lineNumber}}`);
  const outcome = { kind: "answered", status, requestId: null, body, usage: NO_USAGE } as const;
  const customId = Buffer.from('"id"');
  return Buffer.concat([...outcomeLine({ lineNumber, customId }, outcome)]).toString();
};

async function read(wanted: LinesOfSource, blobs: Parameters<typeof linesOfSource>[1]) {
  const found: { text: string; row: string | null }[] = [];
  for await (const { bytes, row } of linesOfSource(wanted, blobs)) {
    found.push({ text: bytes.toString(), row: row === null ? null : row.toString() });
  }
  return found;
}

test("each chosen line comes once, in order, with the row of its own answer where that is wanted", async () => {
  using folder = await openBlobFolder();
  const cases = fc.record({
    all: fates,
    lines: fc.constantFrom(...CHOICES),
    withAnswers: fc.boolean(),
  });
  const property = fc.asyncProperty(cases, async ({ all, lines, withAnswers }) => {
    const numbered = all.map((fate, i) => ({ number: i + 1, fate }));
    const rowsOf = (fate: Fate, status: number) =>
      numbered.filter((each) => each.fate === fate).map(({ number }) => rowOf(number, status));
    const [output, error] = [rowsOf("succeeds", 200), rowsOf("fails", 400)];
    const files = {
      input: await folder.store(numbered.map((each) => lineOf(each.number, each.fate)).join("\n")),
      output: output.length === 0 ? null : await folder.store(output.join("")),
      error: error.length === 0 ? null : await folder.store(error.join("")),
    };
    const wanted = { lines, files, hasResults: true, withAnswers };
    const chosen = numbered.filter(
      ({ fate }) =>
        fate !== "blank" && (lines === "all" || (lines === "failed") === (fate === "fails")),
    );
    expect(await read(wanted, folder.blobs)).toEqual(
      chosen.map(({ number, fate }) => ({
        text: lineOf(number, fate),
        row:
          withAnswers && fate === "succeeds"
            ? output.find((row) => row.includes(`{"n":${number}}`))
            : null,
      })),
    );
    const counts = await Promise.all(
      CHOICES.map(
        async (each) =>
          (await read({ lines: each, files, hasResults: false, withAnswers: false }, folder.blobs))
            .length,
      ),
    );
    // None ran, so all failed.
    const total = numbered.filter(({ fate }) => fate !== "blank").length;
    expect(counts).toEqual([total, total, 0]);
  });
  await fc.assert(property, { numRuns: 12 });
});

test("an input that has lost its end is a fault, not a shorter input", async () => {
  using folder = await openBlobFolder();
  const input = await folder.store("one\ntwo\n");
  const files = { input: { ...input, bytes: input.bytes + 6 }, output: null, error: null };
  const wanted = { lines: "all", files, hasResults: false, withAnswers: false } as const;
  await expect(read(wanted, folder.blobs)).rejects.toThrow(BlobTooShort);
});
