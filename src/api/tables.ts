/**
 * Gives clients the result files as tables. A conversion has a thread and up to some hundred megabytes for a very long row,
 * so the number of them is bounded.
 */
import type { Readable } from "node:stream";
import type { StoredFile } from "../batch/batch.ts";
import type { TableFormat } from "../contract/results.ts";
import { PublicError } from "../errors.ts";
import { converted } from "../formats/converted.ts";
import { ClientLimit } from "./client-limit.ts";
import type { Files } from "./files.ts";

const MAX_CONVERSIONS = 4;
const MAX_CONVERSIONS_OF_PROJECT = 2;

export interface TableReading extends Disposable {
  readonly content: AsyncGenerator<Buffer>;
}

export class Tables {
  readonly #files: Pick<Files, "openContent">;
  readonly #conversions = new ClientLimit({
    total: MAX_CONVERSIONS,
    ofProject: MAX_CONVERSIONS_OF_PROJECT,
    message: "Too many clients are downloading tables. Please try again, or ask for jsonl.",
  });

  constructor({ files }: { readonly files: Pick<Files, "openContent"> }) {
    this.#files = files;
  }

  /** Opens a result file as a table. It ends with `disconnected`. The caller must dispose of it. */
  async open(
    file: StoredFile,
    format: TableFormat,
    disconnected: AbortSignal,
  ): Promise<TableReading> {
    const conversion = this.#conversions.acquire(file.project);
    let rows: Readable;
    try {
      rows = await this.#files.openContent(file, { start: 0, end: file.bytes });
    } catch (error) {
      conversion[Symbol.dispose]();
      throw error;
    }
    return {
      content: converted(rows, format, disconnected),
      [Symbol.dispose]() {
        rows.destroy();
        conversion[Symbol.dispose]();
      },
    };
  }
}

/** Throws for a file that has no rows of results. */
export function assertHasResults({ purpose }: StoredFile, format: TableFormat): void {
  if (purpose === "batch_output") return;
  throw new PublicError(
    "invalid_value",
    `Invalid 'format': only files of purpose 'batch_output' can be downloaded as ${format}, and this one has purpose '${purpose}'.`,
    { param: "format" },
  );
}
