/** How much memory the server takes for input that is made to take memory: a process of its own, looked at from outside. */
import { mkdtemp, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLine } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const MEBIBYTE = 1024 * 1024;
/** The process alone takes a third of it; a server that held what it is sent here would take far more. */
const MAX_MEMORY_BYTES = 450 * MEBIBYTE;

const folder = forAllTests(temporaryFolder("batchd-memory-")).path;
const upstream = forAllTests(await startUpstream());
upstream.forget();

async function start(limits = "") {
  const config = join(folder, "batchd.yaml");
  await writeFile(config, `limits: { ${limits} }\n`);
  const dataDir = await mkdtemp(join(folder, "data-"));
  const server = new BatchdProcess([
    "serve",
    "--port",
    "0",
    "--config",
    config,
    "--data-dir",
    dataDir,
    "--upstream",
    upstream.url,
  ]);
  const openai = new OpenAI({ baseURL: `${await server.listening()}/v1`, apiKey: "test" });
  return { server, openai };
}

/** Uploads without ever holding the content, runs it, and waits for the end. */
async function run(
  { server, openai }: Awaited<ReturnType<typeof start>>,
  content: Iterable<string>,
): Promise<OpenAI.Batch> {
  const file = Object.assign(Readable.from(content), { path: "input.jsonl" });
  const input = await openai.files.create({
    file: file as unknown as OpenAI.FileCreateParams["file"],
    purpose: "batch",
  });
  const { id } = await createBatch(openai, input.id);
  await server.batchEnded(id);
  return openai.batches.retrieve(id);
}

const faultsOf = (batch: OpenAI.Batch) => batch.errors?.data?.map(({ line, code }) => [line, code]);

/** A good line with so many bytes of something that no server reads. */
function* longLine(bytes: number): Generator<string> {
  const [head = "", tail = ""] = chatLine("long", "[[big 300]]", { padding: "HERE" }).split("HERE");
  yield head;
  const piece = "x".repeat(64 * 1024);
  for (let written = 0; written < bytes; written += piece.length) yield piece;
  yield `${tail}\n`;
}

const lineOf = (customId: string) => `${chatLine(customId, "Hello", { user: undefined })}\n`;

function* linesWithLongIds(): Generator<string> {
  const stem = "i".repeat(4_000);
  for (let i = 0; i < 45_000; i++) yield lineOf(`${stem}${i}`);
  yield "the end";
}

function* twins(): Generator<string> {
  const line = lineOf("t".repeat(1.25 * MEBIBYTE));
  for (let i = 0; i < 105; i++) yield line;
}

describe("the server stays small", () => {
  test("when a line is nearly as long as a file may be", async () => {
    const { server, openai } = await start();
    await using _server = server;
    const peakBytes = await server.peakMemoryBytes(async () => {
      const first = `${chatLine("a", "Hello")}\n`;
      const batch = await run({ server, openai }, [first, ...longLine(190 * MEBIBYTE)]);
      expect(faultsOf(batch)).toEqual([[2, "line_too_long"]]);
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });

  test("when a file is made of ids", async () => {
    const { server, openai } = await start();
    await using _server = server;
    const peakBytes = await server.peakMemoryBytes(async () => {
      const batch = await run({ server, openai }, linesWithLongIds());
      expect(faultsOf(batch)).toEqual([[45_001, "invalid_json_line"]]);
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });

  test("when a hundred faults quote long ids", async () => {
    const { server, openai } = await start();
    await using _server = server;
    const peakBytes = await server.peakMemoryBytes(async () => {
      const batch = await run({ server, openai }, twins());
      expect(batch.errors?.data).toHaveLength(100);
      expect(JSON.stringify(batch).length).toBeLessThan(100_000);
    });
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });
});

test("a line of 50 MB runs where the configuration allows it", async () => {
  const { server, openai } = await start(`max_line_bytes: ${64 * MEBIBYTE}`);
  await using _server = server;

  const batch = await run({ server, openai }, longLine(50 * MEBIBYTE));

  expect(batch.request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
});
