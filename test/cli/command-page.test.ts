/** Every command of docs/command.md works when it is pasted. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { blocksOf, paste, putCommand } from "../support/paste.ts";
import { startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const folder = forAllTests(temporaryFolder("batchd-command-"));
const upstream = forAllTests(await startUpstream());
const auth = { keys: [{ name: "reader", key: "sk-page" }] };
const service = forAllTests(
  await startTestService({ upstreamUrl: upstream.url, config: { auth } }),
);

test("the page from its first command to its last", async () => {
  const blocks = blocksOf("command.md", "bash");
  expect(blocks).toHaveLength(7);
  const script = blocks
    .join("\n")
    .replace("http://127.0.0.1:8080", service.url)
    .replace("sk-…", "sk-page")
    .replace("http://localhost:11434/v1", upstream.url);
  const { code, output } = await paste(script, {
    folder: folder.path,
    env: putCommand(folder.path),
  });
  expect(output).toContain("2 lines for /v1/chat/completions, model llama3.2: no faults");
  expect(output).toMatch(/^batch_\w+ completed: 2 of 2 lines$/m);
  expect(output).toMatch(/^deleted batch_\w+, its results and its input file$/m);
  expect({ code, output }).toMatchObject({ code: 0 });
  for (const name of ["answers.jsonl", "answers-again.jsonl"]) {
    expect(readFileSync(join(folder.path, name), "utf8").trimEnd().split("\n")).toHaveLength(2);
  }
  expect(readFileSync(join(folder.path, "answers.csv"), "utf8")).toMatch(/^"custom_id","line",/);
  expect(readFileSync(join(folder.path, "copy.jsonl"))).toEqual(
    readFileSync(join(folder.path, "questions.jsonl")),
  );
});
