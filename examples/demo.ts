/**
 * Runs the main job on the defaults, end to end: 200 chat requests from a JSONL file through batchd to a model server
 * and back. The official OpenAI SDK drives it. Everything runs on this machine and ends by itself.
 */
import {
  createReadStream,
  createWriteStream,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
} from "node:fs";
import { stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";
import type { Batch } from "openai/resources/batches";
import { startServer, stopServers } from "./demo-child.ts";
import { showPipeline } from "./demo-pipeline.ts";
import {
  type Answer,
  type Question,
  showAnswers,
  showFailures,
  showFiles,
  showNext,
  showNumbers,
} from "./demo-report.ts";
import {
  bad,
  bytes,
  count,
  dim,
  good,
  print,
  progress,
  row,
  seconds,
  title,
} from "./demo-screen.ts";

const BATCH_LIMIT_MS = 60_000;
const POLL_EVERY_MS = 100;
const LOG_END_LINES = 8;

const inputPath = fileURLToPath(new URL("chat.jsonl", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "batchd-demo-"));
const outputPath = join(folder, "output.jsonl");
const errorPath = join(folder, "errors.jsonl");
const dataDir = join(folder, "data");
const serverLogPath = join(folder, "batchd.log");

const readLines = <T>(path: string): T[] =>
  readFileSync(path, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as T);

async function startBoth() {
  const modelServer = await startServer({
    name: "the demo model server",
    command: [fileURLToPath(import.meta.resolve("./demo-model-server.ts"))],
    logPath: join(folder, "model-server.log"),
  });
  const options = ["--port", "0", "--data-dir", dataDir, "--upstream", modelServer.url];
  const batchd = await startServer({
    name: "batchd",
    command: [fileURLToPath(import.meta.resolve("../src/main.ts")), "serve", ...options],
    logPath: serverLogPath,
  });
  row("Models", `${modelServer.url}   ${dim("demo model server (canned answers, no real model)")}`);
  row("batchd", `${batchd.url}/v1   ${dim("SQLite and files, nothing else to install")}`);
  print();
  return { modelServer, batchd };
}

async function runBatch(client: OpenAI, questions: readonly Question[]): Promise<Batch> {
  const file = await client.files.create({ file: createReadStream(inputPath), purpose: "batch" });
  const size = `${count(questions.length)} lines, ${bytes(file.bytes)}`;
  row("1 Upload", `${relative(process.cwd(), inputPath)}, ${size}   ${dim(file.id)}`);
  const created = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { from: "npm run demo" },
  });
  row("2 Create", `/v1/chat/completions, 24h   ${dim(created.id)}`);
  return followToEnd(client, created.id, questions.length);
}

async function followToEnd(client: OpenAI, id: string, total: number): Promise<Batch> {
  const bar = progress("3 Run", total);
  const deadlineAtMs = Date.now() + BATCH_LIMIT_MS;
  try {
    for (;;) {
      const batch = await client.batches.retrieve(id);
      const { completed, failed } = batch.request_counts ?? { completed: 0, failed: 0 };
      bar.update(completed + failed, failed);
      if (batch.status === "completed") return batch;
      if (["failed", "expired", "cancelled"].includes(batch.status)) {
        const reason = batch.errors?.data?.[0]?.message ?? "no reason given";
        throw new Error(`The batch ended as ${batch.status}: ${reason}`);
      }
      if (Date.now() > deadlineAtMs) {
        throw new Error(`The batch is still ${batch.status} after ${seconds(BATCH_LIMIT_MS)}.`);
      }
      await delay(POLL_EVERY_MS);
    }
  } finally {
    bar.stop();
  }
}

async function download(client: OpenAI, fileId: string | null | undefined, path: string) {
  if (!fileId)
    throw new Error("The batch has no output file or no error file; it should have both.");
  const { body } = await client.files.content(fileId);
  if (body === null) throw new Error(`The file ${fileId} came without a body.`);
  await pipeline(Readable.fromWeb(body), createWriteStream(path));
  return (await stat(path)).size;
}

async function downloadBoth(client: OpenAI, batch: Batch) {
  const outputBytes = await download(client, batch.output_file_id, outputPath);
  const errorBytes = await download(client, batch.error_file_id, errorPath);
  const answers = readLines<Answer>(outputPath);
  const failures = readLines<Answer>(errorPath);
  const output = `${count(answers.length)} answers, ${bytes(outputBytes)}`;
  const errors = `${count(failures.length)} failed line, ${bytes(errorBytes)}`;
  row("4 Download", `${output}   and   ${errors}`);
  return { answers, failures };
}

/** Checks the promise of a batch: each line of the input has one answer, in one of the two files. */
function checkAnswers(questions: readonly Question[], lines: readonly Answer[]): void {
  const answered = new Map<string, number>();
  for (const { custom_id } of lines) answered.set(custom_id, (answered.get(custom_id) ?? 0) + 1);
  const missing = questions.filter(({ custom_id }) => !answered.has(custom_id));
  const repeated = [...answered].filter(([, times]) => times > 1);
  if (missing.length + repeated.length > 0 || answered.size !== questions.length) {
    throw new Error(`${missing.length} lines have no answer and ${repeated.length} have several.`);
  }
  row(
    "5 Check",
    good(`each of the ${count(questions.length)} custom_ids is answered exactly once`),
  );
}

async function demo(): Promise<void> {
  title(
    "batchd demo",
    "200 chat requests, one input file, two result files, the official OpenAI SDK",
  );
  const questions = readLines<Question>(inputPath);
  const { modelServer, batchd } = await startBoth();
  const client = new OpenAI({ baseURL: `${batchd.url}/v1`, apiKey: "not-needed-here" });
  const startedAtMs = Date.now();
  const batch = await runBatch(client, questions);
  const tookMs = Date.now() - startedAtMs;
  const { answers, failures } = await downloadBoth(client, batch);
  checkAnswers(questions, [...answers, ...failures]);
  showAnswers(questions, answers);
  showFailures(failures);
  await showNumbers(batch, modelServer.url, tookMs);
  await showPipeline(batchd.url, folder);
  await stopServers();
  showFiles({
    answers: outputPath,
    failures: errorPath,
    "server copy": join(dataDir, "blobs", "files", batch.output_file_id ?? ""),
    "server log": serverLogPath,
  });
  showNext();
}

function showLogEnd(): void {
  if (!existsSync(serverLogPath)) return;
  print(`  The log of batchd, ${serverLogPath}, ends with:\n`);
  const lines = readFileSync(serverLogPath, "utf8").trimEnd().split("\n");
  for (const line of lines.slice(-LOG_END_LINES)) print(`  ${dim(line)}`);
}

/** Ends after Ctrl-C and similar signals, without leaving a server or a file behind. */
async function interrupt(): Promise<never> {
  isInterrupted = true;
  await stopServers();
  rmSync(folder, { recursive: true, force: true });
  process.exit(130);
}

let isInterrupted = false;
process.once("SIGINT", () => void interrupt());
process.once("SIGTERM", () => void interrupt());
// The reader of the output has ended, as in `npm run demo | head`.
process.stdout.on("error", () => void interrupt());

try {
  await demo();
} catch (error) {
  if (!isInterrupted) {
    print(`\n  ${bad("The demo failed.")} ${error instanceof Error ? error.message : error}`);
    await stopServers();
    showLogEnd();
    process.exitCode = 1;
  }
} finally {
  await stopServers();
}
