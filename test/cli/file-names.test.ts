/** Names of files that a shell, an option or a file system takes for something else. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { writeOutput } from "../../src/client/output.ts";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { paste, putCommand } from "../support/paste.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const folder = forAllTests(temporaryFolder("batchd-names-")).path;
const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));
const env = { ...putCommand(folder), BATCHD_URL: service.url };

const batchd = (...args: readonly string[]) => runCommand(args, { BATCHD_URL: service.url });
const shell = (script: string) => paste(script, { env, folder });

function fileOf(name: string, lines: readonly string[]): string {
  const path = join(folder, name);
  writeFileSync(path, `${lines.join("\n")}\n`);
  return path;
}

/** The longest name that Linux takes. */
const NAME_MAX = 255;

const isTemporary = (name: string) => name.endsWith(".part");

const quoted = (word: string) => `'${word.replaceAll("'", "'\\''")}'`;

test.each([
  ["no/such/folder.jsonl", /^batchd: cannot write to the folder .*no\/such: ENOENT/],
  ["unsent.jsonl/folder.jsonl", /^batchd: cannot write to the folder .*unsent\.jsonl: ENOTDIR/],
])("the place %s for answers is refused before anything is sent", async (path, said) => {
  const input = fileOf("unsent.jsonl", chatLines(1));
  const { code, stderr } = await batchd("submit", input, "-o", join(folder, path));
  expect(stderr).toMatch(said);
  expect(code).toBe(1);
  expect(upstream.total).toBe(0);
});

test("an empty name of a file is refused before anything is sent", async () => {
  const input = fileOf("input.jsonl", chatLines(1));
  const run = ["run", input, "--upstream", upstream.url];
  for (const args of [
    ["submit", ""],
    ["submit", input, "-o", ""],
    ["results", "batch_1", "-o", ""],
    ["files", "upload", ""],
    ["files", "download", "file-1", "-o", ""],
    ["validate", ""],
    ["estimate", ""],
    [...run, "-o", ""],
    ["pipeline", "run", "", input],
  ]) {
    const { code, stderr } = await batchd(...args);
    expect([code, stderr], args.join(" ")).toEqual([
      1,
      expect.stringContaining("Expected the name of a file."),
    ]);
  }
  expect(upstream.total).toBe(0);
});

test("an output that can never be written is refused before anything is sent", async () => {
  const input = fileOf("unsent.jsonl", chatLines(1));
  const tooLong = `${"x".repeat(NAME_MAX - 5)}.jsonl`;
  const errorsTooLong = `${"x".repeat(NAME_MAX - 12)}.jsonl`;
  const folderTooLong = `${"x".repeat(NAME_MAX - 17)}.jsonl`;
  const ran = await batchd("run", input, "--upstream", upstream.url, "-o", folderTooLong);
  expect([ran.code, ran.stderr]).toEqual([
    1,
    expect.stringMatching(/^batchd: the name \.x+\.jsonl\.batchd-done is too long: .* -o\n$/),
  ]);
  for (const [name, said] of [
    ["new-folder/", "new-folder/ is a folder; name a file in it"],
    [tooLong, "is too long: name a shorter one with -o"],
    [errorsTooLong, ".errors.jsonl is too long: name a shorter one with -o"],
  ] as const) {
    const output = `${folder}/${name}`;
    for (const args of [
      ["submit", input],
      ["run", input, "--upstream", upstream.url],
    ]) {
      const { code, stderr } = await batchd(...args, "-o", output);
      expect([code, stderr]).toEqual([1, expect.stringContaining(said)]);
    }
  }
  expect(upstream.total).toBe(0);
});

test("answers and lines that failed get the longest names that their file system takes", async () => {
  const input = fileOf("long.jsonl", [chatLine("a", "Hi"), chatLine("b", "[[status 400]]")]);
  const stem = "é".repeat((NAME_MAX - ".errors.jsonl".length) / 2);
  const { code } = await batchd("submit", input, "-o", join(folder, `${stem}.jsonl`));
  expect(code).toBe(3);
  for (const [ending, id] of [
    [".jsonl", "a"],
    [".errors.jsonl", "b"],
  ]) {
    const text = readFileSync(join(folder, `${stem}${ending}`), "utf8");
    expect(JSON.parse(text)).toMatchObject({ custom_id: id });
  }
  expect(readdirSync(folder).filter(isTemporary)).toEqual([]);
});

test("two commands with one process number, as in two containers, write long names that begin alike side by side", async () => {
  const both = ["1", "2"].map((shard) => ({
    shard,
    path: join(folder, `${"x".repeat(100)}${shard}.jsonl`),
    source: new PassThrough(),
  }));
  const written = Promise.allSettled(both.map(({ path, source }) => writeOutput(source, path)));
  for (const { source, shard } of both) source.write(`${shard}\n`);
  const temporaries = () => readdirSync(folder).filter(isTemporary);
  await expect.poll(() => temporaries().length).toBeGreaterThan(0);
  for (const { source } of both) source.end();
  await written;
  expect(temporaries()).toEqual([]);
  for (const { path, shard } of both) expect(readFileSync(path, "utf8")).toBe(`${shard}\n`);
});

test("a file whose name begins with a dash is found under the name that the command proposes", async () => {
  const name = basename(fileOf("-dash.jsonl", chatLines(1)));
  const refused = await shell(`batchd validate ${name}`);
  const [, proposed] = /^If you mean the file: (.*)$/m.exec(refused.output) ?? [];
  expect(await shell(`batchd validate ${proposed}`)).toMatchObject({ code: 0 });
  expect((await shell("batchd validate -none.jsonl")).output).not.toContain("If you mean");
});

test("a command that names a file can be pasted, whatever the file is called", async () => {
  for (const name of ["-bad.jsonl", "two words.jsonl", "it's $HOME.jsonl", "日本.jsonl"]) {
    fileOf(name, ['{"custom_id":"a"}']);
    const refused = await shell(`batchd submit -- ${quoted(name)}`);
    const [, command = ""] = /(batchd validate .*) says what is wrong/.exec(refused.output) ?? [];
    expect(await shell(command), command).toMatchObject({
      code: 4,
      output: expect.stringContaining(`${name}:1: `),
    });
  }
});
