/** `batchd run` with an input that is refused, and what the next run finds. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const folder = forAllTests(temporaryFolder("batchd-refused-run-")).path;
const upstream = forAllTests(await startUpstream());
const given = (name: string, text: string) => {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
};
const run = (input: string, output: string, ...more: readonly string[]) =>
  runCommand(["run", input, "-o", output, "--upstream", upstream.url, ...more]);

test("an input that is refused leaves no folder, and so no answers that the next run may replace", async () => {
  const input = given("good.jsonl", chatLines(2).join("\n"));
  const table = given("table.csv", "id,prompt\n1,Hi\n");
  const output = join(folder, "answers.jsonl");
  expect((await run(input, output)).code).toBe(0);
  const answers = readFileSync(output, "utf8");

  const endpoint = ["--endpoint", "/v1/chat/completions"];
  const refused = await run(table, output, "--overwrite", ...endpoint);
  expect({ ...refused, stdout: "" }).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("Line 1 looks like CSV.") as string,
  });
  expect(existsSync(join(folder, ".answers.jsonl.batchd"))).toBe(false);

  const { total } = upstream;
  const again = await run(input, output);
  expect(again).toMatchObject({ code: 1 });
  expect(again.stderr).toContain(
    "answers.jsonl is there already; --overwrite sends all lines again",
  );
  expect(readFileSync(output, "utf8")).toBe(answers);
  expect(upstream.total).toBe(total);
});

test("the folder of a run that was killed before it had a batch is no leave to replace answers", async () => {
  const input = given("early.jsonl", chatLines(1).join("\n"));
  const output = given("early.out.jsonl", "the answers of last week\n");
  mkdirSync(join(folder, ".early.out.jsonl.batchd"));
  const { code, stderr } = await run(input, output);
  expect({ code, stderr }).toMatchObject({
    code: 1,
    stderr: expect.stringContaining(
      "is there already; --overwrite sends all lines again",
    ) as string,
  });
  expect(readFileSync(output, "utf8")).toBe("the answers of last week\n");
});
