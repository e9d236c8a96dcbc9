/**
 * The commands of a client against a real server. Those that read a pipe, get a signal or are watched are processes of their
 * own.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const KEY = "sk-command-line";
/** What follows the error of wrong arguments. */
const MORE = "--help has the arguments, the options and examples.\n";
const PRICE = { model: "priced", input: "0", output: "0", per_request: "1", currency: "USD" };

const folder = forAllTests(temporaryFolder("batchd-client-")).path;
const upstream = forAllTests(await startUpstream());
const auth = { keys: [{ name: "shell", key: KEY }] };
const service = forAllTests(
  await startTestService({
    upstreamUrl: upstream.url,
    config: { auth, engine: { stop_grace_seconds: 1 }, prices: [PRICE] },
  }),
);
service.openai.apiKey = KEY;

const variables = () => ({ BATCHD_URL: service.url, BATCHD_API_KEY: KEY });

const start = (args: readonly string[], env: Readonly<Record<string, string>> = {}) =>
  new BatchdProcess(args, { ...variables(), ...env });

const batchd = (...args: readonly string[]) => runCommand(args, variables());

const pathOf = (name: string) => join(folder, name);

function fileOf(name: string, lines: readonly string[]): string {
  writeFileSync(pathOf(name), `${lines.join("\n")}\n`);
  return pathOf(name);
}

const idIn = (stdout: string) => /batch_\w+/.exec(stdout)?.[0] ?? "none";
const rowsOf = (text: string) =>
  text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as { custom_id: string });

describe("submit", () => {
  test("takes lines from a pipe and gives the answers to the next one, and nothing else", async () => {
    const env = { STDIN_FROM: fileOf("piped.jsonl", chatLines(3)) };
    const { code, stdout, stderr } = await start(["submit", "-", "-o", "-"], env).exited();
    expect(rowsOf(stdout).map((row) => row.custom_id)).toEqual(["line-1", "line-2", "line-3"]);
    expect(stderr).toMatch(/^batch_\w+ completed: 3 of 3 lines$/m);
    expect(code).toBe(0);
  });

  test("writes answers and failed lines to two files, and ends with 3 if a line failed", async () => {
    const input = fileOf("some-fail.jsonl", [chatLine("a", "Hi"), chatLine("b", "[[status 400]]")]);
    const { code, stdout, stderr } = await batchd("submit", input, "-o", pathOf("some.jsonl"));
    expect(stdout).toMatch(/^batch_\w+\n$/);
    expect(rowsOf(readFileSync(pathOf("some.jsonl"), "utf8"))).toMatchObject([{ custom_id: "a" }]);
    const failed = readFileSync(pathOf("some.errors.jsonl"), "utf8");
    expect(rowsOf(failed)).toMatchObject([{ custom_id: "b" }]);
    expect(stderr).toContain("1 line failed: 400");
    expect(readdirSync(folder).filter((name) => name.includes(".part"))).toEqual([]);
    expect(code).toBe(3);
  });

  test("lists the faults of a file with their lines, and ends with 4", async () => {
    const input = fileOf("faulty.jsonl", [chatLine("a", "Hi"), "", chatLine("a", "Ho"), "{"]);
    const { code, stderr } = await batchd("submit", input, "-o", pathOf("never.jsonl"));
    expect(stderr).toMatch(/^ {2}line 3: .*\(duplicate_custom_id\)$/m);
    expect(stderr).toMatch(/^ {2}line 4: .*\(invalid_json_line\)$/m);
    expect(existsSync(pathOf("never.jsonl"))).toBe(false);
    expect(code).toBe(4);
  });

  test("passes on model, priority, metadata and window", async () => {
    const line = chatLine("a", "Hi", { model: "" });
    const { stdout, code } = await batchd(
      "submit",
      fileOf("options.jsonl", [line]),
      "--model",
      "test-model",
      "--priority",
      "-3",
      "--metadata",
      "team=search",
      "--metadata",
      "night=a=b",
      "--wait",
      "--json",
    );
    expect(JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? "")).toMatchObject({
      status: "completed",
      metadata: { team: "search", night: "a=b" },
      x_batchd: { priority: -3, default_model: "test-model" },
    });
    expect(code).toBe(0);
  });

  test.each([
    [["--format", "csv"], /^batchd: --format csv is for the results: .* -o\n$/],
    [["--json", "-o", "-"], /^batchd: --json and -o - both write to standard output: .* -o\n$/],
    [["--priority", "11"], /Expected a whole number from -10 to 10\.\n--help /],
  ])("refuses %j, which cannot be done, before it sends anything", async (options, said) => {
    const { data } = await service.openai.files.list();
    const input = fileOf("wrong-options.jsonl", chatLines(1));
    const { code, stdout, stderr } = await batchd("submit", input, ...options);
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(said);
    expect((await service.openai.files.list()).data).toEqual(data);
  });

  test("says that standard input is empty", async () => {
    const { code, stderr } = await start(["submit", "-"], { STDIN_FROM: "/dev/null" }).exited();
    expect({ code, stderr }).toEqual({ code: 1, stderr: "batchd: standard input is empty\n" });
  });
});

describe("a batch that runs", () => {
  test("goes on after Ctrl-C, and watch ends with 5 once it is cancelled", async () => {
    const input = fileOf("held.jsonl", [chatLine("held", "[[hang]]")]);
    await using waiting = start(["submit", input, "--wait"]);
    await waiting.loggedLike(/^batch_\w+ in_progress/m);
    waiting.signal("SIGINT");
    const left = await waiting.exited();
    const id = idIn(left.stderr);
    expect(left.stderr).toContain(`${id} goes on. To watch it again: batchd watch ${id}`);
    expect(left.code).toBe(130);

    const paused = await batchd("pause", id);
    expect(paused.stdout).toBe(`${id} is paused; batchd resume goes on with it\n`);
    expect((await batchd("show", id)).stdout).toContain("paused (requested) since 20");
    expect(await batchd("resume", id)).toMatchObject({ code: 0, stdout: `${id} goes on\n` });

    await using watching = start(["watch", id]);
    await watching.loggedLike(/in_progress/);
    expect((await batchd("cancel", id)).stdout).toBe(`${id} is cancelling\n`);
    expect((await watching.exited()).code).toBe(5);
  });

  test("after Ctrl-C, the commands that are named ask the same server, and write what was to be written", async () => {
    const input = fileOf("elsewhere.jsonl", [chatLine("elsewhere", "[[hang]]")]);
    const flags = ["--url", service.url, "-o", "my answers.csv", "--format", "csv"];
    await using waiting = start(["submit", input, ...flags], { BATCHD_URL: "http://127.0.0.1:9" });
    await waiting.loggedLike(/^batch_\w+ in_progress/m);
    waiting.signal("SIGINT");
    const { stderr, code } = await waiting.exited();
    const id = idIn(stderr);
    const url = `--url ${service.url}/v1`;
    expect(stderr).toContain(
      `To watch it again: batchd watch ${id} ${url}; batchd results ${id} -o 'my answers.csv' ${url}\n`,
    );
    expect(code).toBe(130);
    await batchd("cancel", id);
  });

  test("has lines that are not in its results once it is cancelled, and results says so", async () => {
    const { id } = await service.submit([chatLine("soon", "Hi"), chatLine("never", "[[hang]]")]);
    await service.openai.get(`/batches/${id}/output?wait=60`).asResponse();
    await batchd("cancel", id);
    await batchd("watch", id);
    const { stdout, stderr } = await batchd("results", id);
    expect(rowsOf(stdout).map((row) => row.custom_id)).toEqual(["soon"]);
    expect(stderr).toBe(
      `batchd: 1 line that failed or never ran is not among them: batchd results ${id} --errors\n`,
    );
    const others = await batchd("results", id, "--errors");
    expect(rowsOf(others.stdout).map((row) => row.custom_id)).toEqual(["never"]);
    expect(others.stderr).toBe("");
  });

  test("shows its results so far", async () => {
    const lines = [chatLine("soon", "Hi"), chatLine("never", "[[hang]]")];
    const { id } = await service.submit(lines);
    await service.openai.get(`/batches/${id}/output?wait=60`).asResponse();
    const { stdout, stderr } = await batchd("results", id);
    expect(rowsOf(stdout).map((row) => row.custom_id)).toEqual(["soon"]);
    expect(stderr).toContain("still runs (in_progress): these are its results so far");
    expect((await batchd("results", id, "--errors")).stderr).toMatch(/no line of .* has failed/);
    expect((await batchd("delete", id, "--input")).stdout).toContain(`deleted ${id}`);
    expect((await batchd("show", id)).stderr).toMatch(/^batchd: No batch found with id/);
  });
});

describe("lines of a batch", () => {
  test("a sample ends the wait with 6, and what failed is run again and merged", async () => {
    const lines = [...chatLines(3), chatLine("flaky", "[[status 400 x1]]")];
    const input = fileOf("sampled.jsonl", lines);
    const sampled = await batchd("submit", input, "--sample", "1", "--wait");
    const id = idIn(sampled.stdout);
    expect(sampled.stderr).toMatch(/paused \(sample\): 1 of 4 lines\nTo go on: batchd resume \w+/);
    expect(sampled.code).toBe(6);
    const soFar = await batchd("results", id);
    expect(soFar.stderr).toMatch(/ is paused \(sample\): these are its results so far\n$/);
    await batchd("resume", id);
    const toldAtEnd = expect.stringMatching(/batchd results \w+ --errors\n.*: batchd retry \w+\n$/);
    expect(await batchd("watch", id)).toMatchObject({ code: 3, stderr: toldAtEnd });
    const output = pathOf("merged.jsonl");
    const retried = await batchd("retry", id, "--merge", "-o", output);
    expect(retried.code).toBe(0);
    const ids = rowsOf(readFileSync(output, "utf8")).map((row) => row.custom_id);
    expect(ids.join()).toBe("line-1,line-2,line-3,flaky");
  });
});

test("a budget ends the wait with 6, and resume gives the batch a higher one", async () => {
  const lines = ["a", "b", "c"].map((id) => chatLine(id, "Hi", { model: "priced" }));
  const input = fileOf("priced.jsonl", lines);
  const { code, stdout, stderr } = await batchd("submit", input, "--budget", "2", "--wait");
  const id = idIn(stdout);
  expect(stderr).toContain("paused (budget)");
  expect(stderr).toContain(`To go on: batchd resume ${id} --budget MORE`);
  expect((await batchd("show", id)).stdout).toMatch(/^budget +2$/m);
  expect(code).toBe(6);
  expect((await batchd("resume", id, "--budget", "3")).stdout).toBe(`${id} goes on\n`);
  const watched = await batchd("watch", id);
  expect(watched.stderr).toContain("completed: 3 of 3 lines, 3 USD");
  expect(watched.code).toBe(0);
});

test("a retry has what was set for the old batch, and options say otherwise", async () => {
  const input = fileOf("kept.jsonl", [chatLine("bad", "[[status 400]]", { model: "priced" })]);
  const set = ["--metadata", "team=red", "--priority", "-3", "--budget", "2"];
  const submitted = await batchd("submit", input, ...set, "--wait");
  const id = idIn(submitted.stdout);
  const retried = async (...args: readonly string[]) => {
    const { stdout } = await batchd("retry", id, "--json", ...args);
    return JSON.parse(stdout) as object;
  };
  expect(await retried()).toMatchObject({
    completion_window: "24h",
    metadata: { team: "red" },
    x_batchd: { priority: -3, budget: "2", from: { batch: id } },
  });
  const options = ["--metadata", "try=2", "--priority", "0", "--budget", "1.5"];
  expect(await retried(...options)).toMatchObject({
    metadata: { team: "red", try: "2" },
    x_batchd: { priority: 0, budget: "1.5" },
  });
});

describe("what is at the server", () => {
  test("is found by its metadata, its age and its name, and a wrong filter is refused", async () => {
    const body = (name: string) => ({
      input_file_id: "file-none",
      completion_window: "24h" as const,
      endpoint: "/v1/embeddings" as const,
      metadata: { team: "red", name },
    });
    const { id } = await service.openai.batches.create(body("Nightly 100%"));
    await service.openai.batches.create(body("other"));
    const ids = async (...args: readonly string[]) =>
      rowsOf((await batchd("list", "--json", ...args)).stdout).map(
        (row) => (row as { id?: string }).id,
      );
    expect(await ids("--metadata", "team=red", "--search", "NIGHTLY 100%")).toEqual([id]);
    expect(await ids("--metadata", "name=Nightly 100%", "--created-after", "2020-01-31")).toEqual([
      id,
    ]);
    const none = await batchd(
      "list",
      "--created-after",
      "2100-01-01",
      "--endpoint",
      "/v1/embeddings",
    );
    expect([none.code, none.stdout, none.stderr]).toEqual([0, "", "No batch matches.\n"]);
    const wrong = await batchd("list", "--status", "done");
    expect([wrong.code, wrong.stderr]).toEqual([1, expect.stringContaining("in_progress")]);
  });

  test("is listed for people and for programs", async () => {
    const { id } = await service.run(chatLines(1));
    const [list, json, shown] = await Promise.all([
      batchd("list", "--limit", "1"),
      batchd("list", "--limit", "1", "--json"),
      batchd("show", id),
    ]);
    expect(list.stdout).toMatch(/^ID +STATUS +CREATED +PROGRESS +MODEL\nbatch_\w+ +completed /);
    expect(JSON.parse(json.stdout)).toMatchObject({ id, object: "batch", status: "completed" });
    expect(shown.stdout).toMatch(/^progress +1 of 1 line$/m);
  });

  test("comes as CSV with the answers as text, and no cell is a formula", async () => {
    const { id } = await service.run([chatLine("=1+1", 'Say "one, two"')]);
    const { stdout } = await batchd("results", id, "--format", "csv");
    expect(stdout).toMatch(/^"custom_id","line","status","text",.*\r\n"'=1\+1",1,200,"/);
    expect(stdout.trimEnd().split("\r\n")).toHaveLength(2);
  });

  test("files are uploaded, shown, downloaded and deleted", async () => {
    const input = fileOf("stored.jsonl", chatLines(2));
    const uploaded = await batchd("files", "upload", input);
    const id = uploaded.stdout.trim();
    expect(id).toMatch(/^file-\w+$/);
    const [shown, listed, downloaded] = await Promise.all([
      batchd("files", "show", id),
      batchd("files", "list", "--purpose", "batch", "--json"),
      batchd("files", "download", id, "-o", pathOf("copy.jsonl")),
    ]);
    expect(shown.stdout).toMatch(/^name +stored\.jsonl$/m);
    expect(listed.stdout).toContain(`"id":"${id}"`);
    expect(downloaded.code).toBe(0);
    expect(readFileSync(pathOf("copy.jsonl"))).toEqual(readFileSync(input));
    expect(await batchd("files", "delete", id)).toMatchObject({
      code: 0,
      stdout: `deleted ${id}\n`,
    });
  });

  test("a name with escapes for the terminal is printed with them made visible", async () => {
    const hostile = ["\u001b", "\u0007", "\u202e"];
    const [start, bell, reversed] = hostile;
    const name = `${start}]0;owned${bell}${reversed}.jsonl`;
    const file = new File([chatLines(1).join("\n")], name);
    const { id } = await service.openai.files.create({ file, purpose: "batch" });
    const { stdout } = await batchd("files", "show", id);
    expect(stdout).toMatch(/^name +.*owned/m);
    expect(hostile.filter((each) => stdout.includes(each))).toEqual([]);
  });
});

describe("when it cannot", () => {
  test.each([
    ["a wrong key", { BATCHD_API_KEY: "sk-wrong" }, /The key in BATCHD_API_KEY is not one/],
    ["no key", { BATCHD_API_KEY: "", OPENAI_API_KEY: KEY }, /: Missing .*Set BATCHD_API_KEY to/],
    ["two keys", { BATCHD_API_KEY: "sk-a\nsk-b" }, /^batchd: BATCHD_API_KEY is no key: [^-]*$/],
    ["no server", { BATCHD_URL: "http://127.0.0.1:2" }, /cannot reach http:\/\/127\.0\.0\.1:2\/v1/],
    [
      "a proxy that Node.js does not use",
      { BATCHD_URL: "http://batchd.invalid", http_proxy: "http://127.0.0.1:2" },
      /cannot reach .*The proxy in http_proxy is used with NODE_USE_ENV_PROXY=1$/m,
    ],
    ["no address", { BATCHD_URL: "localhost" }, /^batchd: BATCHD_URL must be an address such as/],
  ])("%s: it says so in one line, and what to do", async (_name, env, said) => {
    const { code, stdout, stderr } = await runCommand(["show", "batch_1"], {
      ...variables(),
      ...env,
    });
    expect({ code, stdout, lines: stderr.trimEnd().split("\n").length }).toEqual({
      code: 1,
      stdout: "",
      lines: 1,
    });
    expect(stderr).toMatch(said);
  });

  test.each([
    "show",
    "watch",
    "results",
    "cancel",
    "pause",
    "resume",
    "retry",
    "delete",
    "deliveries",
    "files show",
    "files download",
    "files delete",
  ])("%s of an empty variable is refused, and asks the server nothing", async (command) => {
    for (const id of command === "show" ? ["", " ", ".."] : [""]) {
      const { code, stdout, stderr } = await batchd(...command.split(" "), id);
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).toMatch(
        /^error: .* is invalid for argument '\w+'\. Expected an id\.\n--help /,
      );
    }
  });

  test("a key with a line break of another system at its end is that key", async () => {
    const { code } = await start(["list"], { BATCHD_API_KEY: `${KEY}\r\n` }).exited();
    expect(code).toBe(0);
  });

  test("a misspelled command is answered with the one that was meant", async () => {
    const { code, stderr } = await batchd("lst");
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: `error: unknown command 'lst'\n(Did you mean list?)\n${MORE}`,
    });
  });
});
