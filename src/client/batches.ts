/** The commands on batches that a server has. */
import { createInterface } from "node:readline/promises";
import { EXIT, exitCodeOf } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";
import { assertWritable } from "./output.ts";
import { type Format, writeResults } from "./results.ts";
import type { Session } from "./session.ts";
import { progressOf, type ShownBatch, sayBatch } from "./shown-batch.ts";
import { complain, note, printable, say, sayJson, sayTable } from "./terminal.ts";
import { watch } from "./wait.ts";
import { date } from "./words.ts";

interface JsonFlag {
  readonly json?: boolean;
}

export interface ListFlags extends JsonFlag {
  readonly limit: number;
  readonly status?: string;
}

/** The largest page of the API. */
const PAGE_MAX = 100;

export async function listBatches(flags: ListFlags, { server }: Session): Promise<number> {
  const limit = Math.min(flags.limit, PAGE_MAX);
  const rows: string[][] = [];
  let seen = 0;
  for await (const each of server.openai.batches.list({ limit })) {
    const batch = each as unknown as ShownBatch;
    const isAsked = flags.status === undefined || batch.status === flags.status;
    if (isAsked && flags.json) sayJson(batch);
    else if (isAsked) rows.push(rowOf(batch));
    if (isAsked && ++seen >= flags.limit) break;
  }
  if (flags.json) return EXIT.done;
  if (rows.length === 0) note("No batches. batchd submit FILE makes one.");
  else sayTable(["ID", "STATUS", "CREATED", "PROGRESS", "MODEL"], rows);
  return EXIT.done;
}

const rowOf = (batch: ShownBatch): string[] => [
  ...[batch.id, batch.x_batchd?.paused ? `${batch.status} (paused)` : batch.status],
  ...[date(batch.created_at), progressOf(batch), batch.model ?? "-"],
];

export async function showBatch(id: string, flags: JsonFlag, { server }: Session): Promise<number> {
  const batch = await server.batch(id);
  if (flags.json) sayJson(batch);
  else sayBatch(batch);
  return EXIT.done;
}

export async function watchBatch(id: string, flags: JsonFlag, session: Session): Promise<number> {
  const batch = await watch(id, session, flags.json === true);
  return batch === null ? EXIT.interrupted : exitCodeOf(batch);
}

export interface ResultsFlags {
  readonly output?: string;
  readonly errors?: boolean;
  readonly format: Format;
}

export async function batchResults(
  id: string,
  { output, errors, format }: ResultsFlags,
  { server, ...session }: Session,
): Promise<number> {
  await assertWritable(output);
  const batch = await server.batch(id);
  const kind = errors ? "errors" : "output";
  await writeResults(server, batch, { ...session, format, kind, to: output });
  const failed = batch.request_counts?.failed ?? 0;
  if (!errors && failed > 0) {
    complain(`${failed} failed lines are not among them: batchd results ${batch.id} --errors`);
  }
  if (batch.status === "failed") {
    complain(`${batch.id} failed: batchd show ${batch.id} lists the faults of its input`);
  }
  return EXIT.done;
}

/** The changes of a batch that a server may do. OpenAI has only the first. */
export type Change = "cancel" | "pause" | "resume";

export interface ChangeFlags extends JsonFlag {
  /** The budget to set before a batch is resumed. */
  readonly budget?: string;
}

export async function changeBatch(
  id: string,
  { change, budget, json }: ChangeFlags & { readonly change: Change },
  { server }: Session,
): Promise<number> {
  if (budget !== undefined) {
    await server.extension("budgets", id, (path) =>
      server.openai.post<ShownBatch>(path, { body: { budget } }),
    );
  }
  const batch =
    change === "cancel"
      ? ((await server.openai.batches.cancel(id)) as unknown as ShownBatch)
      : await server.extension(`${change} for a batch`, id, (path) =>
          server.openai.post<ShownBatch>(`${path}/${change}`),
        );
  if (json) sayJson(batch);
  else say(`${printable(batch.id)} ${after(change, batch)}`);
  return EXIT.done;
}

const after = (change: Change, { status, x_batchd: more }: ShownBatch): string => {
  if (change === "pause" && more?.paused) return "is paused; batchd resume goes on with it";
  if (change === "resume") return "goes on";
  return `is ${printable(status)}`;
};

export interface DeleteFlags extends JsonFlag {
  readonly input?: boolean;
  readonly yes?: boolean;
}

export async function deleteBatch(
  id: string,
  { input, yes, json }: DeleteFlags,
  { server, signal }: Session,
): Promise<number> {
  const what = `${id}, its results${input ? " and its input file" : ""}`;
  if (!yes) await confirm(`Delete ${what}?`, signal);
  const deleted = await server.extension("the deletion of a batch", id, (path) =>
    server.openai.delete<unknown>(path, input ? { query: { files: "input" } } : {}),
  );
  if (json) sayJson(deleted);
  else say(`deleted ${printable(what)}`);
  return EXIT.done;
}

/** Asks a person. A script is not asked. */
export async function confirm(question: string, signal: AbortSignal): Promise<void> {
  if (!process.stdin.isTTY || !process.stderr.isTTY) return;
  const reader = createInterface({ input: process.stdin, output: process.stderr });
  try {
    const answer = await reader.question(`${printable(question)} [y/N] `, { signal });
    if (/^y(?:es)?$/i.test(answer.trim())) return;
  } catch {
    // Ctrl-C is a no.
  } finally {
    reader.close();
  }
  throw new CommandFailure("nothing was deleted");
}
