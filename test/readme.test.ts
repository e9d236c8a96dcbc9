/** The walk-throughs of README.md and docs/clients.md, pasted as a new user would. */
import { spawn } from "node:child_process";
import { readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { forAllTests } from "./support/for-all-tests.ts";
import { startTestService } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";

const README = readFileSync(new URL("../README.md", import.meta.url), "utf8");
const CLIENTS = readFileSync(new URL("../docs/clients.md", import.meta.url), "utf8");
const NODE_MODULES = fileURLToPath(new URL("../node_modules", import.meta.url));
const KEY = "sk-walk-through";

const folder = forAllTests(temporaryFolder("batchd-readme-")).path;
const upstream = forAllTests(await startUpstream());
const auth = { keys: [{ name: "reader", key: KEY }] };
const service = forAllTests(
  await startTestService({ upstreamUrl: upstream.url, config: { auth } }),
);

/** The walk-through, with other values for the variables that its reader is told to set. */
function walkThrough(settings: Readonly<Record<string, string>>): string {
  const block = /### curl\n[\s\S]*?```bash\n([\s\S]*?)```/.exec(README)?.[1];
  if (block === undefined) throw new Error("README.md has no walk-through with curl");
  return Object.entries(settings).reduce((script, [name, value]) => {
    const assignment = new RegExp(`^${name}=.*$`, "m");
    if (!assignment.test(script)) throw new Error(`the walk-through does not set ${name}`);
    return script.replace(assignment, `${name}='${value}'`);
  }, block);
}

async function paste(script: string): Promise<{ output: string; exitCode: number | null }> {
  return run("bash", [], script);
}

async function run(command: string, args: readonly string[], input = "") {
  const shell = spawn(command, args, { cwd: folder });
  let output = "";
  for (const stream of [shell.stdout, shell.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
  }
  const ended = new Promise<number | null>((resolve) => shell.on("close", resolve));
  shell.stdin.end(input);
  const exitCode = await ended;
  return { output, exitCode };
}

const settings = () => ({ URL: `${service.url}/v1`, KEY, MODEL: "test-model" });

test("the walk-through shows its progress and ends with the answers", async () => {
  const { output, exitCode } = await paste(walkThrough(settings()));
  expect(output).toMatch(/^batch_\w+ completed "request_counts":\{"total":2,"completed":2,/m);
  expect(output).toMatch(/"custom_id":"capital".*\n.*"custom_id":"sum"/);
  expect(exitCode).toBe(0);
});

test.each([
  ["a key that is wrong", { KEY: "sk-wrong" }, /Incorrect API key provided/],
  ["a server that is not there", { URL: "http://127.0.0.1:1/v1" }, /connect to 127\.0\.0\.1/],
  ["a line without a model", { MODEL: "" }, /"code":"[a-z_]+".*model/],
])("the walk-through says what is wrong and stops at %s", async (_name, wrong, said) => {
  const { output, exitCode } = await paste(walkThrough({ ...settings(), ...wrong }));
  expect(output).toMatch(said);
  expect(exitCode).toBe(1);
});

test("the walk-through shows the errors of lines that the model server refused", async () => {
  const script = walkThrough(settings()).replace("What is 17 + 25?", "[[status 400]]");
  const { output, exitCode } = await paste(script);
  expect(output).toMatch(/"custom_id":"sum".*"status_code":400/);
  expect(exitCode).toBe(0);
});

test("the walk-through with Node.js ends with the answers", async () => {
  const block = /## Node\.js\n[\s\S]*?```js\n([\s\S]*?)```/.exec(CLIENTS)?.[1] ?? "";
  const script = block
    .replace("http://127.0.0.1:8080/v1", settings().URL)
    .replace("not needed", KEY)
    .replace("llama3.2", settings().MODEL);
  writeFileSync(join(folder, "batch.mjs"), script);
  symlinkSync(NODE_MODULES, join(folder, "node_modules"));
  const { output, exitCode } = await run(process.execPath, ["batch.mjs"]);
  expect(output).toMatch(/^completed \{ total: 2, completed: 2, failed: 0 \}/);
  expect(output).toMatch(/^capital → .+\nsum → .+$/m);
  expect(exitCode).toBe(0);
});

test("the request without a batch gets its answer", async () => {
  const block = /## Without a batch\n[\s\S]*?```bash\n([\s\S]*?)```/.exec(CLIENTS)?.[1] ?? "";
  const script = block
    .replace("http://127.0.0.1:8080/v1", settings().URL)
    .replace("not-needed", KEY)
    .replace("llama3.2", settings().MODEL);
  const { output, exitCode } = await paste(script);
  expect(output).toContain('"object":"chat.completion"');
  expect(exitCode).toBe(0);
});
