/**
 * Makes the lines of a new input out of the lines of an ended batch: as they are, or filled into a template with their answers.
 * Memory holds one line of the source at a time. A line that cannot be made is a fault, and faults end the input.
 */
import type { Batch, Fault } from "../../batch/batch.ts";
import { parseTemplate } from "../../batch/template.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import { MAX_LISTED_FAULTS } from "../../contract/batch.ts";
import type { MemoryBudget } from "../../resources/memory-budget.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import type { IntakeLimits } from "../intake/input-reading.ts";
import { LineFiller } from "./filled-line.ts";
import { type LinesOfSource, linesOfSource } from "./source-lines.ts";

/** A line up to this size takes no room in the budget of memory. */
const SMALL_BYTES = 64 * 1024;
const NEWLINE = Buffer.from("\n");

export interface DerivedLinesDeps {
  readonly blobs: BlobReader;
  readonly memory: MemoryBudget;
  readonly limits: () => Pick<IntakeLimits, "maxLineBytes">;
}

/** The lines of one input, as they are or filled into the template. */
export class DerivedLines {
  readonly faults: Fault[] = [];
  bytes = 0;
  readonly #batch: Batch;
  readonly #deps: DerivedLinesDeps;
  readonly #filler: LineFiller | null;

  constructor(batch: Batch, deps: DerivedLinesDeps) {
    this.#batch = batch;
    this.#deps = deps;
    const json = batch.source?.template ?? null;
    const template = json === null ? null : parseTemplate(JSON.parse(json));
    if (typeof template === "string") throw new Error(`the stored template is ${template}`);
    this.#filler =
      template === null ? null : new LineFiller(template, batch, deps.limits().maxLineBytes);
  }

  /** Yields the bytes of the lines, up to the first fault. Reads on until as many faults are found as are listed. */
  async *of(wanted: LinesOfSource): AsyncGenerator<Buffer> {
    const { blobs, memory } = this.#deps;
    using room = memory.open("lines", this.#batch.project);
    let number = 0;
    for await (const line of linesOfSource(wanted, blobs)) {
      number++;
      const held = line.bytes.length + (line.row?.length ?? 0);
      if (held > SMALL_BYTES) await room.add(held);
      const filled =
        this.#filler === null
          ? { ok: true as const, pieces: [line.bytes] }
          : await this.#filler.fill(line);
      if (!filled.ok) {
        this.faults.push({ ...filled.fault, line: number });
        if (this.faults.length === MAX_LISTED_FAULTS) return;
      } else if (this.faults.length === 0) {
        for (const piece of [...filled.pieces, NEWLINE]) {
          this.bytes += piece.length;
          yield piece;
        }
      }
      room.release();
      const pause = timeForMore();
      if (pause !== null) await pause;
    }
  }
}
