/** Commands about batches that the server refuses, whose input has faults, or whose answers are not written at their end. */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const folder = temporaryFolder("batchd-refused-");
let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  upstream = await startUpstream();
  service = await startTestService({ upstreamUrl: upstream.url });
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  folder[Symbol.dispose]();
});

const batchd = (...args: readonly string[]) => runCommand(args, { BATCHD_URL: service.url });

function fileOf(name: string, lines: readonly string[]): string {
  const path = join(folder.path, name);
  writeFileSync(path, `${lines.join("\n")}\n`);
  return path;
}

test("a file whose batch was refused is named with the commands that use it again, as they were given, and delete it", async () => {
  const input = fileOf("refused.jsonl", chatLines(1));
  const output = join(folder.path, "the answers.csv");
  const given = ["--metadata", "team=search and ads", "--priority", "-3", "--output", output];
  const refused = await batchd("submit", input, ...given, "--window", "1h");
  expect(refused.code).toBe(1);
  expect(refused.stderr).toMatch(/^batchd: completion_window: Invalid value: '1h'\. .*\n$/m);
  const command = (what: string) =>
    new RegExp(`^To ${what}: batchd (.*)$`, "m").exec(refused.stderr)?.[1] ?? "";
  const again = command("make a batch of it without --window 1h");
  const words = (again.match(/'[^']*'|\S+/g) ?? []).map((word) => word.replaceAll("'", ""));
  const made = await batchd(...words);
  expect([made.code, made.stderr]).toEqual([0, expect.stringContaining("completed: 1 of 1")]);
  expect(readFileSync(output, "utf8")).toMatch(/^"custom_id",/);
  const batch = await service.openai.batches.retrieve(made.stdout.trim());
  expect(batch).toMatchObject({
    metadata: { team: "search and ads" },
    x_batchd: { priority: -3 },
  });
  const deleted = await batchd(...command("delete it").split(" "));
  expect([deleted.code, deleted.stdout]).toEqual([0, expect.stringMatching(/^deleted file-/)]);
});

test("a budget that is left out of the command that goes on is named", async () => {
  const input = fileOf("budget.jsonl", chatLines(1));
  const refused = await batchd("submit", input, "--budget", "5", "--dedupe", "--wait");
  expect([refused.code, refused.stderr]).toEqual([
    1,
    expect.stringMatching(
      /^To make a batch of it without --budget 5: batchd submit file-\S+ --endpoint \S+ --dedupe --wait$/m,
    ),
  ]);
});

test("what no server takes is refused before the upload", async () => {
  const input = fileOf("early.jsonl", chatLines(1));
  const before = await service.openai.files.list();
  for (const options of [
    ["--window", "5x"],
    ["--window", "31d"],
    ["--model", ""],
    ["--sample", "1001"],
    ["--metadata", `long=${"x".repeat(513)}`],
    ["--metadata", `${"k".repeat(65)}=v`],
    Array.from({ length: 17 }, (_, i) => ["--metadata", `key${i}=v`]).flat(),
  ]) {
    const { code, stderr } = await batchd("submit", input, ...options);
    expect([code, stderr]).toEqual([1, expect.stringMatching(/Expected|at most/)]);
  }
  expect((await service.openai.files.list()).data).toEqual(before.data);
});

test("a batch that failed has no results, and what an output file holds is kept", async () => {
  const input = fileOf("faulty.jsonl", ['{"custom_id":1}']);
  const failed = await batchd("submit", input, "--wait", "--endpoint", "/v1/embeddings");
  expect(failed.code).toBe(4);
  const id = failed.stdout.trim();
  const output = fileOf("answers.jsonl", ["an earlier answer"]);
  expect(await batchd("results", id, "-o", output)).toMatchObject({
    code: 1,
    stderr: `batchd: ${id} failed, so it has no results: batchd show ${id} lists the faults of its input\n`,
  });
  expect(readFileSync(output, "utf8")).toBe("an earlier answer\n");
});

test("what an output file holds is not replaced by nothing", async () => {
  const input = fileOf("answered.jsonl", chatLines(1));
  const made = await batchd("submit", input, "--wait");
  const id = made.stdout.trim();
  const output = fileOf("errors.jsonl", ["an earlier error"]);
  const told = `batchd: no line of ${id} has failed`;
  expect(await batchd("results", id, "--errors", "-o", output)).toMatchObject({
    code: 1,
    stderr: `${told}, so ${output} is not written\n`,
  });
  expect(readFileSync(output, "utf8")).toBe("an earlier error\n");
  expect(await batchd("results", id, "--errors")).toMatchObject({
    code: 0,
    stdout: "",
    stderr: `${told}\n`,
  });
});

test("faults that a failed batch does not list any more are said to be more", async () => {
  const input = fileOf("faults.jsonl", [...chatLines(1), ...Array<string>(150).fill("{}")]);
  const failed = await batchd("submit", input, "--wait");
  expect([failed.code, failed.stderr]).toEqual([
    4,
    expect.stringContaining("and at least 80 more"),
  ]);
  const headers = { accept: "text/html" };
  const page = await fetch(`${service.url}/batches/${failed.stdout.trim()}`, { headers });
  expect(await page.text()).toContain("<p>The first 100 faults.");
});

test("a wait whose answers cannot be written names the command that writes them without another batch", async () => {
  const input = fileOf("paid.jsonl", [chatLine("paid", "Hi"), chatLine("bad", "[[status 400]]")]);
  const output = join(folder.path, "paid-answers.csv");
  mkdirSync(join(folder.path, "paid-answers.errors.csv"));
  const { code, stdout, stderr } = await batchd("submit", input, "-o", output, "--format", "jsonl");
  expect({ code, stderr }).toEqual({ code: 1, stderr: expect.stringMatching(/^batchd: cannot/m) });
  const later = /^The answers stay at the server: batchd (.*)$/m.exec(stderr)?.[1];
  expect(later).toBe(`results ${stdout.trim()} -o ${output} --format jsonl`);
});

test("a wait for answers that ends at a pause names the commands that write them in the end", async () => {
  const input = fileOf("paused.jsonl", chatLines(3));
  const output = join(folder.path, "paused-answers.jsonl");
  const { code, stderr } = await batchd("submit", input, "--sample", "1", "-o", output);
  expect(code).toBe(6);
  const rest = /^To go on: (.*)$/m.exec(stderr)?.[1]?.split("; ") ?? [];
  expect(rest).toHaveLength(3);
  for (const command of rest) {
    expect(await batchd(...command.split(" ").slice(1))).toMatchObject({ code: 0 });
  }
  expect(readFileSync(output, "utf8").trimEnd().split("\n")).toHaveLength(3);
});
