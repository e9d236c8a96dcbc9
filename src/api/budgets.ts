/** Refuses a budget that could not be held, because nothing says what the model of the batch costs. */
import type { Batch } from "../batch/batch.ts";
import { parseLine, textOf } from "../batch/line.ts";
import { type PriceRule, priceFor } from "../batch/price.ts";
import { BlobNotFound, type Blobs } from "../blobs/blobs.ts";
import { PublicError } from "../errors.ts";
import type { Store } from "../store/store.ts";
import { truncate } from "../text/truncate.ts";

/** A longer first line is left to the validation of the batch, which reads every line. */
const FIRST_LINE_BYTES = 64 * 1024;
const NEWLINE = 0x0a;

export interface BudgetDeps {
  readonly store: Pick<Store, "findFile">;
  readonly blobs: Pick<Blobs, "readRange">;
  /** Returns the prices that are configured now. */
  readonly prices: () => readonly PriceRule[];
}

type Budgeted = Pick<Batch, "project" | "inputFileId" | "defaultModel" | "model">;

/** `param` is the place of the budget in the request. Prices of further models are found out by the validation. */
export async function assertPriced(batch: Budgeted, param: string, deps: BudgetDeps) {
  const rules = deps.prices();
  if (rules.length === 0) throw unpriced("The server has no prices", param);
  const model = batch.model ?? (await firstModelOf(batch, deps));
  if (model === null || priceFor(rules, model) !== null) return;
  throw unpriced(`The model '${truncate(model)}' has no price`, param);
}

const unpriced = (what: string, param: string) =>
  new PublicError(
    "invalid_value",
    `Invalid '${param}': ${what}, so the cost of the batch is not known. Leave the budget out, or ask the operator of this server for a price.`,
    { param },
  );

async function firstModelOf(
  { project, inputFileId: id, defaultModel }: Budgeted,
  { store, blobs }: BudgetDeps,
): Promise<string | null> {
  const file = await store.findFile({ project, id });
  if (file === null) return null;
  const end = Math.min(file.bytes, FIRST_LINE_BYTES);
  const bytes = await blobs.readRange(file.blobKey, { start: 0, end }).catch(nullIfDeleted);
  if (bytes === null) return null;
  const lineEnd = bytes.indexOf(NEWLINE);
  if (lineEnd === -1 && end < file.bytes) return null;
  const line = lineEnd === -1 ? bytes : bytes.subarray(0, lineEnd);
  const model = parseLine(line)?.model ?? null;
  return (model === null ? null : textOf(line, model)) || defaultModel;
}

/** The file was deleted after its row was read. */
function nullIfDeleted(error: unknown): null {
  if (error instanceof BlobNotFound) return null;
  throw error;
}
