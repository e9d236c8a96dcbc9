/** The commands that look at an input file without a server agree with the server. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { BatchdProcess } from "../support/process.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

let folder: string;
let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "batchd-input-"));
  upstream = await startUpstream();
  service = await startTestService({ upstreamUrl: upstream.url });
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

/** No server is named, so that a request would fail. */
const batchd = (...args: readonly string[]) =>
  new BatchdProcess(args, { BATCHD_URL: "http://127.0.0.1:2" }).exited();

function fileOf(name: string, text: string | Buffer): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

const FAULTY = [
  chatLine("a", "Hi"),
  "",
  "{",
  chatLine("a", "again"),
  chatLine("b", "Hi", { model: "another" }),
  chatLine("c", "Hi", { stream: true }),
  chatLine("d", "Hi").replace("chat/completions", "embeddings"),
  '{"custom_id":"e","method":"GET"}',
];

test("validate finds the faults that a batch of the file would list, in the same words", async () => {
  const path = fileOf("faulty.jsonl", FAULTY.join("\n"));
  const [{ code, stdout, stderr }, batch] = await Promise.all([
    batchd("validate", path, "--json"),
    service.run(FAULTY),
  ]);
  const found = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as unknown);
  expect(found).toHaveLength(6);
  expect(found).toEqual(
    batch.errors?.data?.map(({ code, message, param, line }) => ({ line, code, message, param })),
  );
  expect(stderr).toBe("7 lines for /v1/chat/completions, model test-model: 6 faults\n");
  expect(code).toBe(4);
});

test("validate lists every fault, not only the first hundred, with the place in the file", async () => {
  const path = fileOf("many.jsonl", "{\n".repeat(250));
  const { stdout } = await batchd("validate", path);
  const found = stdout.trimEnd().split("\n");
  expect(found).toHaveLength(250);
  expect(found[249]).toBe(
    `${path}:250: This line is not parseable as valid JSON. (invalid_json_line)`,
  );
});

test("validate takes the limits and models of a configuration, and refuses what an upload would", async () => {
  const config = fileOf(
    "limits.yaml",
    'limits: { max_requests_per_batch: 2 }\nupstreams: [{ name: a, base_url: "http://a/v1", models: [small] }]\n',
  );
  const path = fileOf("three.jsonl", chatLines(3).join("\n"));
  const { stdout, code } = await batchd("validate", path, "--config", config);
  expect(stdout.match(/\(model_not_found\)/g)).toHaveLength(3);
  expect(stdout).toContain(
    "three.jsonl: The input file holds 3 requests. A batch may hold at most 2.",
  );
  expect(code).toBe(4);
  const latin = fileOf("latin.jsonl", Buffer.from(chatLine("a", "caf\u00e9"), "latin1"));
  expect((await batchd("validate", latin)).stdout).toContain("Must be utf-8 encoded");
});

test("validate says nothing but a line about a good file", async () => {
  const env = { STDIN_FROM: fileOf("good.jsonl", chatLines(2).join("\n")) };
  const { code, stdout, stderr } = await new BatchdProcess(["validate", "-"], env).exited();
  expect({ code, stdout, stderr }).toEqual({
    ...{ code: 0, stdout: "" },
    stderr: "2 lines for /v1/chat/completions, model test-model: no faults\n",
  });
});

test("estimate prices the tokens of each model, and a sample comes near", async () => {
  const lines = chatLines(400, (n) => "word ".repeat(20 + (n % 10))).map((line, i) =>
    i % 2 === 0 ? line : line.replace("test-model", "other"),
  );
  const path = fileOf("priced.jsonl", lines.join("\n"));
  const [whole, sampled] = await Promise.all([
    batchd("estimate", path, "--price", "1000000/0", "--json"),
    batchd("estimate", path, "--sample", "40", "--json"),
  ]);
  const rowsOf = (text: string) =>
    text
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line) as { lines: number; input_tokens: number; cost: string });
  const rows = rowsOf(whole.stdout);
  expect(rows).toMatchObject([
    { model: "test-model", lines: 200, output_tokens: 200 * 256 },
    { model: "other", lines: 200 },
  ]);
  // A price of a million for a million tokens makes the cost the number of tokens.
  expect(rows.map(({ cost }) => cost)).toEqual(rows.map(({ input_tokens }) => `${input_tokens}`));
  const sum = (all: readonly { lines: number }[]) => all.reduce((n, row) => n + row.lines, 0);
  expect(Math.abs(sum(rowsOf(sampled.stdout)) - 400)).toBeLessThan(40);
});
