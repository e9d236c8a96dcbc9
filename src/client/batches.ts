/** The commands on batches that a server has. */
import { once } from "node:events";
import { createInterface } from "node:readline/promises";
import type { ResultKind } from "../batch/finished-line.ts";
import { isFinal } from "../batch/status.ts";
import type { ResultFormat } from "../contract/results.ts";
import { printable } from "../printable.ts";
import { complain, note, say, sayJson, sayTable } from "../terminal/lines.ts";
import { date, lines } from "../words.ts";
import { pageSizeFor, sayOlder } from "./cut-list.ts";
import { EXIT, exitCodeOf } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";
import { assertReadable, assertWritable, isFileName } from "./output.ts";
import { resultFileIdOf, writeResults } from "./results.ts";
import type { JsonFlag, Session } from "./session.ts";
import { progressOf, type ShownBatch, sayBatch } from "./shown-batch.ts";
import { hasResults, sayWhatFailed, watch } from "./wait.ts";

export interface ListFlags extends JsonFlag {
  readonly limit: number;
  readonly status?: string;
  readonly endpoint?: string;
  readonly model?: string;
  readonly createdAfter?: number;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly search?: string;
}

/** The largest page of the API. */
const PAGE_MAX = 100;

export async function listBatches(flags: ListFlags, { server, signal }: Session): Promise<number> {
  const limit = pageSizeFor(flags.limit, PAGE_MAX);
  const rows: string[][] = [];
  let seen = 0;
  let isCut = false;
  const query = filterQuery(flags);
  for await (const batch of server.list<ShownBatch>("/batches", { limit, ...query })) {
    signal.throwIfAborted();
    if (flags.search !== undefined && batch.x_batchd === undefined)
      throw new CommandFailure(NO_SEARCH);
    // A server that does not filter may have many more before the next one that matches.
    isCut = seen === flags.limit;
    if (isCut) break;
    if (!matches(batch, flags)) continue;
    seen++;
    if (flags.json) sayJson(batch);
    else rows.push(rowOf(batch));
  }
  if (flags.json) return EXIT.done;
  if (rows.length === 0) {
    const isFiltered = Object.keys(query).length > 0;
    note(isFiltered ? "No batch matches." : "No batches. batchd submit FILE makes one.");
  } else sayTable(["ID", "STATUS", "CREATED", "PROGRESS", "MODEL"], rows);
  if (isCut) sayOlder(flags.limit);
  return EXIT.done;
}

const NO_SEARCH =
  "this server cannot search: leave out --search, and use --status, --model or --metadata, or jq behind --json";

/** The filters as batchd takes them. Another server ignores them. */
const filterQuery = (flags: ListFlags): Record<string, string> => ({
  ...(flags.status !== undefined && { status: flags.status }),
  ...(flags.endpoint !== undefined && { endpoint: flags.endpoint }),
  ...(flags.model !== undefined && { model: flags.model }),
  ...(flags.createdAfter !== undefined && { created_after: String(flags.createdAfter) }),
  ...(flags.search !== undefined && { search: flags.search }),
  ...Object.fromEntries(
    Object.entries(flags.metadata ?? {}).map(([key, value]) => [`metadata[${key}]`, value]),
  ),
});

/** The same filters for a server that has sent all batches. */
function matches(batch: ShownBatch, flags: ListFlags): boolean {
  const { status, endpoint, model, createdAfter, metadata = {} } = flags;
  return (
    (status === undefined || batch.status === status) &&
    (endpoint === undefined || batch.endpoint === endpoint) &&
    (model === undefined || batch.model === model) &&
    (createdAfter === undefined || (batch.created_at ?? 0) > createdAfter) &&
    Object.entries(metadata).every(([key, value]) => batch.metadata?.[key] === value)
  );
}

const rowOf = (batch: ShownBatch): string[] => [
  batch.id,
  batch.x_batchd?.paused ? `${batch.status} (paused)` : batch.status,
  date(batch.created_at),
  progressOf(batch),
  batch.model ?? "-",
];

export async function showBatch(id: string, flags: JsonFlag, { server }: Session): Promise<number> {
  const batch = await server.batch(id);
  if (flags.json) sayJson(batch);
  else sayBatch(batch);
  return EXIT.done;
}

export async function watchBatch(id: string, flags: JsonFlag, session: Session): Promise<number> {
  const batch = await watch(id, session, flags);
  if (batch === null) return EXIT.interrupted;
  sayWhatFailed(batch, flags, session.server);
  return exitCodeOf(batch);
}

export interface ResultsFlags {
  readonly output?: string;
  readonly errors?: boolean;
  readonly format: ResultFormat;
}

export async function batchResults(
  id: string,
  { output, errors, format }: ResultsFlags,
  { server, ...session }: Session,
): Promise<number> {
  assertReadable(format, output);
  await assertWritable(output);
  const batch = await server.batch(id);
  // An empty file would replace the answers of an earlier batch, and look like success.
  if (batch.status === "failed" && !hasResults(batch)) {
    throw new CommandFailure(
      `${batch.id} failed, so it has no results: ${server.command("show", batch.id)} lists the faults of its input`,
    );
  }
  const kind = errors ? "error" : "output";
  await assertRows(batch, kind, output);
  await writeResults(server, batch, { ...session, format, kind, to: output });
  const missing = missingLines(batch);
  if (errors) {
    if (missing === 0) complain(`no line of ${batch.id} has failed`);
  } else if (missing > 0) {
    const others = server.command("results", batch.id, "--errors");
    const are = missing === 1 ? "is" : "are";
    complain(`${lines(missing)} that failed or never ran ${are} not among them: ${others}`);
  }
  return EXIT.done;
}

/** Refuses to replace a file by nothing: a script would take it for results. A pipe and standard output get none. */
async function assertRows(batch: ShownBatch, kind: ResultKind, output: string | undefined) {
  const { status } = batch;
  const { completed = 0, failed = 0 } = batch.request_counts ?? {};
  const areThere = isFinal(status)
    ? Boolean(resultFileIdOf(batch, kind))
    : (kind === "error" ? failed : completed) > 0;
  if (areThere || output === undefined || !(await isFileName(output))) return;
  const none = kind === "error" ? "has failed" : "has an answer";
  const soFar = isFinal(status) ? "" : " so far";
  throw new CommandFailure(`no line of ${batch.id} ${none}${soFar}, so ${output} is not written`);
}

/** Counts the lines of the error file. Those that a cancelled or expired batch never sent are there, and have not failed. */
function missingLines({ status, error_file_id: file, request_counts: counts }: ShownBatch): number {
  const { total = 0, completed = 0, failed = 0 } = counts ?? {};
  return isFinal(status) && file ? total - completed : failed;
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
  const what = input ? `${id}, its results and its input file` : `${id} and its results`;
  if (!yes) await confirm(`Delete ${what}?`, signal);
  const deleted = await server.extension("the deletion of a batch", id, (path) =>
    server.delete(path, { id, object: "batch" }, input ? { files: "input" } : {}),
  );
  if (json) sayJson(deleted);
  else say(`deleted ${printable(what)}`);
  return EXIT.done;
}

/** Asks a person. A script is not asked. */
export async function confirm(question: string, signal: AbortSignal): Promise<void> {
  if (!process.stdin.isTTY || !process.stderr.isTTY) return;
  const reader = createInterface({ input: process.stdin, output: process.stderr });
  // The terminal gives Ctrl-C to the reader of the line, and not to the process.
  reader.on("SIGINT", () => process.kill(process.pid, "SIGINT"));
  // A line that ends with Ctrl-D is never answered.
  const closed = once(reader, "close").then(() => null);
  try {
    const asked = reader.question(`${printable(question)} [y/N] `, { signal });
    const answer = await Promise.race([asked, closed]);
    if (answer === null) note("");
    else if (/^y(?:es)?$/i.test(answer.trim())) return;
  } catch {
    // Ctrl-C is a no.
    note("");
  } finally {
    reader.close();
  }
  throw new CommandFailure("nothing was deleted");
}
