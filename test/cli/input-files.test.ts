/** The commands that look at an input file without a server agree with the server. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { killAtTestEnd } from "../support/leftovers.ts";
import { BatchdProcess, MAIN } from "../support/process.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const folder = forAllTests(temporaryFolder("batchd-input-")).path;
const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));

/** No server is named, so that a request would fail. */
const batchd = (...args: readonly string[]) =>
  runCommand(args, { BATCHD_URL: "http://127.0.0.1:2" });

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

/** The system finds a file there, and refuses to read its beginning, also for root. */
const UNREADABLE = "/proc/self/mem";

test
  .skipIf(!existsSync(UNREADABLE))
  .each([
    ["validate"],
    ["estimate"],
    ["submit"],
    ["run", "-o", join(folder, "answers.jsonl"), "--upstream", "http://127.0.0.1:2"],
  ])("%s names a file that cannot be read", async (command, ...options) => {
  const { code, stdout, stderr } = await batchd(command, UNREADABLE, ...options);
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  expect(stderr).toMatch(/^batchd: cannot read \/proc\/self\/mem: EIO: .*\n$/);
});

test("validate lists every fault, not only the first hundred, with the place in the file", async () => {
  const path = fileOf("many.jsonl", `{}\n${"{\n".repeat(249)}`);
  const { stdout } = await batchd("validate", path);
  const found = stdout.trimEnd().split("\n");
  expect(found).toHaveLength(250);
  expect(found[249]).toBe(
    `${path}:250: This line is not parseable as valid JSON. (invalid_json_line)`,
  );
});

test.each([
  ["that is CSV", "id,prompt\n1,Hi\n2,Ho\n", "Line 1 looks like CSV."],
  [
    "whose JSON goes over several lines",
    JSON.stringify([{ a: 1 }], null, 2),
    "Line 1 is or begins an array.",
  ],
  ["of a text", "\nHello\nyou", "Line 2 is not JSON."],
  ["with more rows than a batch has", "1,2\n".repeat(50_001), "Line 1 looks like CSV."],
])("validate has one fault for a file %s, in the words of an upload", async (_case, text, hint) => {
  const { code, stdout } = await batchd("validate", fileOf("other-kind", text), "--json");
  const fault = JSON.parse(stdout) as { message: string; line: number | null };
  expect({ code, line: fault.line }).toEqual({ code: 4, line: null });
  expect(fault.message).toContain(hint);
  const form = new FormData();
  form.set("purpose", "batch");
  form.set("file", new File([text], "in.jsonl"));
  const refused = await fetch(`${service.url}/v1/files`, { method: "POST", body: form });
  expect(await refused.json()).toMatchObject({ error: { message: fault.message } });
});

test.each([
  ["a broken first line that is too long for an upload to judge", `${"x".repeat(300_000)}\n`],
  ["a broken line behind a blank one of that length", `${" ".repeat(300_000)}\nx\n`],
])("validate has the fault of %s", async (_case, text) => {
  const { code, stdout } = await batchd("validate", fileOf("long.jsonl", text));
  expect({ code, stdout }).toEqual({
    code: 4,
    stdout: expect.stringContaining("(invalid_json_line)") as string,
  });
});

test("validate says that an upload refuses an array with a request on each line", async () => {
  const path = fileOf("array.jsonl", `[\n${chatLine("a", "Hi")},\n${chatLine("b", "Hi")}\n]\n`);
  const { code, stdout } = await batchd("validate", path);
  expect(code).toBe(4);
  expect(stdout.match(/\(invalid_json_line\)/g)).toHaveLength(3);
  expect(stdout).toContain("array.jsonl: Invalid file format for Batch API. Must be .jsonl");
});

test("validate finds the byte order mark of a file with one line", async () => {
  const path = fileOf("mark.jsonl", `\ufeff${chatLine("a", "Hi")}\n`);
  const { code, stdout } = await batchd("validate", path);
  expect(code).toBe(4);
  expect(stdout).toContain(
    "mark.jsonl:1: This line is not parseable as valid JSON. (HINT: It begins with a byte order mark.",
  );
});

test("a reader that begins after the last fault was written gets every fault", async () => {
  // The faults are more than a pipe takes, and less than may wait in the process.
  const path = fileOf("slow-reader.jsonl", `{}\n${"{\n".repeat(2_499)}`);
  const child = spawn(process.execPath, [MAIN, "validate", path]);
  killAtTestEnd(child);
  // The summary is the last thing that the command writes.
  await once(child.stderr, "data");
  let lines = 0;
  for await (const _ of createInterface(child.stdout)) lines++;
  expect(lines).toBe(2_500);
});

test("validate takes the limits and models of a configuration, and refuses what an upload would", async () => {
  const config = fileOf(
    "limits.yaml",
    'limits: { max_requests_per_batch: 2 }\nupstreams: [{ name: a, base_url: "http://a/v1", models: [small, "t*"] }]\n',
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

test("a first line as long as a server takes it names the endpoint", async () => {
  const line = (id: string, input: string) =>
    JSON.stringify({
      custom_id: id,
      method: "POST",
      url: "/v1/responses",
      body: { model: "test-model", input },
    });
  const path = fileOf(
    "long.jsonl",
    [line("a", "x".repeat(17 * 1024 * 1024)), line("b", "y")].join("\n"),
  );
  const { code, stdout, stderr } = await batchd("validate", path);
  expect({ code, stdout }).toEqual({ code: 0, stdout: "" });
  expect(stderr).toBe("2 lines for /v1/responses, model test-model: no faults\n");
  const submitted = await runCommand(["submit", path, "--json"], { BATCHD_URL: service.url });
  expect(JSON.parse(submitted.stdout)).toMatchObject({ endpoint: "/v1/responses" });
});

test("validate says nothing but a line about a good file", async () => {
  const env = { STDIN_FROM: fileOf("good.jsonl", chatLines(2).join("\n")) };
  const { code, stdout, stderr } = await new BatchdProcess(["validate", "-"], env).exited();
  expect({ code, stdout, stderr }).toEqual({
    code: 0,
    stdout: "",
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

test("estimate says which file has no requests, and that some lines are none", async () => {
  const empty = fileOf("empty.jsonl", "");
  expect(await batchd("estimate", empty)).toMatchObject({
    code: 1,
    stdout: "",
    stderr: `batchd: ${empty} has no requests\n`,
  });
  const path = fileOf("half.jsonl", `${chatLine("a", "hi")}\n{"a": 1}\n`);
  const { code, stdout, stderr } = await batchd("estimate", path);
  expect({ code, lines: stdout.match(/no request$/gm) }).toEqual({
    code: 0,
    lines: ["no request"],
  });
  expect(stderr).toContain(`Some lines are no requests: batchd validate ${path} says why.\n`);
});

test("validate, estimate and submit look into packed files as the server does, whatever their names are", async () => {
  const packed = fileOf("faulty.jsonl.gz", gzipSync(FAULTY.join("\n")));
  const { code, stdout, stderr } = await batchd("validate", packed);
  expect(code).toBe(4);
  expect(stdout).toContain(
    `${packed}:3: This line is not parseable as valid JSON. (invalid_json_line)`,
  );
  expect(stderr).toBe("7 lines for /v1/chat/completions, model test-model: 6 faults\n");

  const lines = chatLines(50).join("\n");
  const named = fileOf("good.jsonl.zst", zstdCompressSync(lines));
  const unnamed = fileOf("good", gzipSync(lines));
  const tokens = ["estimate", "--json", "--sample", "5"];
  const [plain, zstd, gzip] = await Promise.all([
    batchd("estimate", "--json", fileOf("good.jsonl", lines)),
    batchd(...tokens, named),
    batchd(...tokens, unnamed),
  ]);
  expect([zstd.stdout, gzip.stdout]).toEqual([plain.stdout, plain.stdout]);

  const submitted = await new BatchdProcess(["submit", unnamed, "--wait", "--json"], {
    BATCHD_URL: service.url,
  }).exited();
  expect(submitted.code).toBe(0);
  const [last = ""] = submitted.stdout.trimEnd().split("\n").slice(-1);
  expect(JSON.parse(last)).toMatchObject({ status: "completed", request_counts: { total: 50 } });

  const cut = fileOf("cut.jsonl.gz", gzipSync(lines).subarray(0, -20));
  expect(await batchd("validate", cut)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("The gzip file cannot be unpacked"),
  });
  const limits = fileOf("small.yaml", "limits: { max_file_bytes: 4000 }\n");
  expect(await batchd("validate", named, "--config", limits)).toMatchObject({
    code: 4,
    stdout: expect.stringContaining("file_too_large"),
  });
});
