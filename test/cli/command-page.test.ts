/** Every command of docs/command.md works when it is pasted. */
import { spawn } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const PAGE = readFileSync(new URL("../../docs/command.md", import.meta.url), "utf8");
const MAIN = fileURLToPath(new URL("../../src/main.ts", import.meta.url));
const CACHE = fileURLToPath(new URL("../../node_modules/.cache/batchd-test", import.meta.url));

let folder: string;
let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "batchd-command-"));
  upstream = await startUpstream();
  const auth = { keys: [{ name: "reader", key: "sk-page" }] };
  service = await startTestService({ upstreamUrl: upstream.url, config: { auth } });
  const command = join(folder, "batchd");
  writeFileSync(command, `#!/bin/sh\nexec "${process.execPath}" "${MAIN}" "$@"\n`);
  chmodSync(command, 0o755);
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

async function paste(script: string): Promise<{ code: number | null; output: string }> {
  const env = {
    ...process.env,
    ...{ PATH: `${folder}:${process.env["PATH"]}`, NODE_COMPILE_CACHE: CACHE },
  };
  const shell = spawn("bash", ["-e"], { cwd: folder, env });
  let output = "";
  for (const stream of [shell.stdout, shell.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
  }
  const ended = new Promise<number | null>((resolve) => shell.on("close", resolve));
  shell.stdin.end(script);
  return { code: await ended, output };
}

test("the page from its first command to its last", async () => {
  const blocks = [...PAGE.matchAll(/```bash\n([\s\S]*?)```/g)].map(([, block = ""]) => block);
  expect(blocks).toHaveLength(7);
  const script = blocks
    .join("\n")
    .replace("http://127.0.0.1:8080", service.url)
    .replace("sk-…", "sk-page")
    .replace("http://localhost:11434/v1", upstream.url);
  const { code, output } = await paste(script);
  expect(output).toContain("2 lines for /v1/chat/completions, model llama3.2: no faults");
  expect(output).toMatch(/^batch_\w+ completed: 2 of 2 lines$/m);
  expect(output).toMatch(/^deleted batch_\w+, its results and its input file$/m);
  expect({ code, output }).toMatchObject({ code: 0 });
  for (const name of ["answers.jsonl", "answers-again.jsonl"]) {
    expect(readFileSync(join(folder, name), "utf8").trimEnd().split("\n")).toHaveLength(2);
  }
  expect(readFileSync(join(folder, "answers.csv"), "utf8")).toMatch(/^"custom_id","status_code",/);
  expect(readFileSync(join(folder, "copy.jsonl"))).toEqual(
    readFileSync(join(folder, "questions.jsonl")),
  );
});
