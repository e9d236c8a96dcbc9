/** `batchd run`: a whole batch in one process, without a server, and again after a crash. */
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { GOOD, refusal } from "../support/given.ts";
import { BatchdProcess, MAIN } from "../support/process.ts";
import { chatLine, chatLines } from "../support/service.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { TerminalSession } from "../support/terminal.ts";
import { startUpstream } from "../support/upstream.ts";

const AT_RENAME = new URL("../support/fixtures/kill-at-rename.ts", import.meta.url).href;

const folder = forAllTests(temporaryFolder("batchd-run-")).path;
const upstream = forAllTests(await startUpstream({ apiKey: "sk-model-server" }));

const ENV = { BATCHD_UPSTREAM_API_KEY: "sk-model-server" };
/** As many refusals in a row open the circuit. They come at once, as a single line would come back after ever longer waits. */
const REFUSALS = 5;

const argsOf = (input: string, output: string, ...more: readonly string[]) => [
  "run",
  input,
  "-o",
  output,
  "--upstream",
  upstream.url,
  ...more,
];

function given(name: string, lines: readonly string[]) {
  const input = join(folder, `${name}.jsonl`);
  writeFileSync(input, lines.join("\n"));
  return { input, output: join(folder, `${name}.out.jsonl`) };
}

const idsIn = (path: string) =>
  readFileSync(path, "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => (JSON.parse(line) as { custom_id: string }).custom_id);

test("a run that is killed goes on with the lines that have no answer, and leaves nothing behind", async () => {
  const soon = Array.from({ length: 5 }, (_, i) => chatLine(`soon-${i}`, "Hi"));
  const late = Array.from({ length: 5 }, (_, i) => chatLine(`late-${i}`, "[[hang x1]]"));
  const { input, output } = given("killed", [...soon, ...late]);
  const session = new TerminalSession(argsOf(input, output), ENV);
  await session.shows(/ 50% {2}5\/10/);
  await session.kill();
  expect(existsSync(output)).toBe(false);

  const again = new BatchdProcess(argsOf(input, output, "--json"), ENV);
  const { code, stdout, stderr } = await again.exited();
  expect(stderr).toMatch(/^batchd: going on after 5 of 10 lines$/m);
  expect(code).toBe(0);
  // Nothing in it is made of the key.
  const { status, metadata } = JSON.parse(stdout.trimEnd().split("\n").at(-1)!);
  const input_sha256 = createHash("sha256").update(readFileSync(input)).digest("hex");
  expect({ status, metadata }).toEqual({ status: "completed", metadata: { input_sha256 } });
  expect(idsIn(output)).toEqual([...soon, ...late].map((line) => JSON.parse(line).custom_id));
  const sent = [...upstream.received].filter(([line]) => /^(?:soon|late)-/.test(line));
  expect(sent).toHaveLength(10);
  for (const [line, times] of sent)
    expect({ line, times }).toEqual({ line, times: line.startsWith("soon") ? 1 : 2 });
  expect(readdirSync(folder).filter((name) => name.startsWith(".") || /part/.test(name))).toEqual(
    [],
  );
});

test("a run that is killed before it has removed its folder has ended, and is not begun again", async () => {
  const { input, output } = given("removed", [chatLine("once", "Hi")]);
  const run = new BatchdProcess(argsOf(input, output), {
    ...ENV,
    NODE_OPTIONS: `--import ${AT_RENAME}`,
    KILL_AT_RENAME: "after",
    KILL_AT_RENAME_OF: "/[.]removed[.]out[.]jsonl[.]batchd$",
  });
  expect((await run.exited()).signal).toBe("SIGKILL");
  const remains = () => readdirSync(folder).filter((name) => name.startsWith(".removed"));
  expect(remains()).toHaveLength(1);

  const again = await runCommand(argsOf(input, output), ENV);
  expect(again.stderr).toMatch(/is there already; --overwrite sends all lines again/);
  expect({ code: again.code, times: upstream.received.get("once") }).toEqual({ code: 1, times: 1 });
  expect(idsIn(output)).toEqual(["once"]);
  expect(remains()).toEqual([]);
});

test("Ctrl-C keeps what is answered and says how to go on", async () => {
  const { input, output } = given("stopped", [
    chatLine("now", "Hi"),
    chatLine("later", "[[hang x1]]"),
  ]);
  const session = new TerminalSession(argsOf(input, output), ENV);
  await session.shows(/1\/2/);
  session.type("\u0003");
  await session.shows(/Run the same command again to go on/);
  // The second Ctrl-C does not wait for what is in flight.
  session.type("\u0003");
  await session.exitCode;
  const { code } = await new BatchdProcess(argsOf(input, output), ENV).exited();
  expect(code).toBe(0);
  expect(upstream.received.get("now")).toBe(1);
});

test("failed lines are in a file beside the output, and the exit code says so", async () => {
  const { input, output } = given("failing", [
    chatLine("good", "Hi"),
    chatLine("bad", "[[status 400]]"),
  ]);
  const { code, stderr } = await runCommand(argsOf(input, output), ENV);
  expect(code).toBe(3);
  expect(idsIn(output)).toEqual(["good"]);
  expect(idsIn(join(folder, "failing.out.errors.jsonl"))).toEqual(["bad"]);
  expect(stderr).toContain("1 line failed: 400");

  const again = await runCommand(argsOf(input, output), ENV);
  expect(again.stderr).toMatch(/is there already; --overwrite sends all lines again/);
  expect({ code: again.code, times: upstream.received.get("good") }).toEqual({ code: 1, times: 1 });
});

test("an output that would replace the input is refused, whatever it is called", async () => {
  const { input } = given("precious.errors", chatLines(1));
  const content = readFileSync(input, "utf8");
  const link = join(folder, "linked.jsonl");
  symlinkSync(input, link);
  for (const output of [input, link, join(folder, "precious.jsonl")]) {
    for (const command of ["run", "submit"]) {
      const more = command === "run" ? ["--overwrite", "--upstream", upstream.url] : [];
      const args = [command, input, "-o", output, ...more];
      const { code, stderr } = await runCommand(args, ENV);
      expect({ code, stderr }).toEqual({
        code: 1,
        stderr: expect.stringMatching(/^batchd: \S+ is an input; name another file .* -o\n$/),
      });
      const stdio = [openSync(input, "r"), "pipe", "pipe"] as const;
      const piped = spawnSync(process.execPath, [MAIN, ...args.with(1, "-")], {
        stdio: [...stdio],
        env: { ...process.env, ...ENV },
        timeout: 30_000,
      });
      expect(piped.stderr.toString()).toBe(stderr);
    }
  }
  expect(readFileSync(input, "utf8")).toBe(content);
});

test("a folder of one's own is kept, and another input does not get into it", async () => {
  const { input, output } = given("kept", chatLines(1_000));
  const more = ["--data-dir", join(folder, "kept-data")];
  expect((await runCommand(argsOf(input, output, ...more), ENV)).code).toBe(0);
  const total = upstream.total;
  rmSync(output);
  const again = await runCommand(argsOf(input, output, ...more), ENV);
  expect([again.code, again.stderr]).toEqual([
    0,
    expect.stringMatching(/^batchd: going on after 1,000 of 1,000 lines$/m),
  ]);
  expect(existsSync(output)).toBe(true);
  expect(upstream.total).toBe(total);
  const other = given("other", chatLines(2));
  const refused = await runCommand(argsOf(other.input, other.output, ...more), ENV);
  expect(refused.stderr).toMatch(/has a run of another input or with other options/);
});

test("a run with --overwrite whose answers could not be written writes them when it is started again", async () => {
  const { input, output } = given("unwritten", [chatLine("paid", "[[status 400]]")]);
  const inTheWay = join(folder, "unwritten.out.errors.jsonl");
  for (const more of [[], ["--data-dir", join(folder, "unwritten-data")]]) {
    const args = argsOf(input, output, "--overwrite", ...more);
    const before = upstream.received.get("paid") ?? 0;
    mkdirSync(inTheWay);
    const { code, stderr } = await runCommand(args, ENV);
    expect({ code, stderr }).toEqual({ code: 1, stderr: expect.stringMatching(/cannot write/) });
    rmSync(inTheWay, { recursive: true });
    expect((await runCommand(args, ENV)).code).toBe(3);
    expect(idsIn(inTheWay)).toEqual(["paid"]);
    expect(upstream.received.get("paid")).toBe(before + 1);
    rmSync(inTheWay);
  }
});

test("a run in a folder of one's own is begun anew with --overwrite, and where it had failed", async () => {
  const { input, output } = given("anew", chatLines(2));
  const config = join(folder, "anew.yaml");
  const more = ["--data-dir", join(folder, "anew-data")];
  const run = async (model: string, ...flags: readonly string[]) => {
    const entry = { name: "only", base_url: upstream.url, api_key: "sk-model-server" };
    writeFileSync(config, JSON.stringify({ upstreams: [{ ...entry, models: [model] }] }));
    const args = ["run", input, "-o", output, "--config", config, ...more, ...flags];
    return (await runCommand(args, ENV)).code;
  };
  const before = upstream.total;
  expect(await run("another-model")).toBe(4);
  expect(await run("test-model")).toBe(0);
  expect(upstream.total).toBe(before + 2);
  expect(await run("test-model", "--overwrite")).toBe(0);
  expect(upstream.total).toBe(before + 4);
});

test("faults of the input end it with 4 and their lines; a missing upstream is named", async () => {
  const { input, output } = given("faulty", [chatLine("a", "Hi"), "{"]);
  const { code, stderr } = await runCommand(argsOf(input, output), ENV);
  expect(code).toBe(4);
  expect(stderr).toMatch(/^ {2}line 2: .*\(invalid_json_line\)$/m);
  const without = await runCommand(["run", input, "-o", output]);
  expect(without).toMatchObject({ code: 1, stdout: "" });
  const wrong = await runCommand([...argsOf(input, output).slice(0, -1), "h:80"]);
  expect(wrong.stderr).toMatch(/^batchd: --upstream: expected an http.* address, such as/);
  expect(without.stderr).toMatch(/^batchd: no model server is named: --upstream http:.*\n$/);
  const config = join(folder, "batchd.yaml");
  writeFileSync(config, "upstreams: []");
  const unheard = ["run", input, "-o", output, "--config", config, "--concurrency", "2"];
  expect(await runCommand(unheard)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(
      /^batchd: --concurrency is for --upstream: max_concurrency .*\n$/,
    ),
  });
});

test("the help of a run has the exit codes of a run, which no server goes on with", async () => {
  const { stdout } = await runCommand(["run", "--help"]);
  const codes = stdout.slice(stdout.indexOf("Exit codes:")).matchAll(/^ {2}(\d+) +(.*)$/gm);
  expect(Object.fromEntries([...codes].map(([, code, meaning]) => [code, meaning]))).toEqual({
    0: expect.stringMatching(/^done/),
    1: expect.stringMatching(/could not do it/),
    3: expect.stringMatching(/some lines failed/),
    4: expect.stringMatching(/the batch failed/),
    5: "the window of the batch is over",
    130: "Ctrl-C; the same command goes on where it was",
  });
});

test("a run whose key or address is wrong from the start ends, and says where the key is from", async () => {
  const { input, output } = given("refused", chatLines(REFUSALS));
  const ended = async (args: readonly string[], env: Readonly<Record<string, string>> = {}) => {
    const { code, stderr } = await runCommand(args, env);
    expect(code).toBe(1);
    expect(stderr).toMatch(/^batchd: nothing is answered, .*run the same command again$/m);
    expect(stderr).not.toMatch(/trying again/);
    return stderr;
  };
  const wrong = { BATCHD_UPSTREAM_API_KEY: "sk-wrong" };
  expect(await ended(argsOf(input, output), wrong)).toContain(
    "It got the key in BATCHD_UPSTREAM_API_KEY.",
  );
  expect(await ended(argsOf(input, output))).toContain(
    "It got no key: set BATCHD_UPSTREAM_API_KEY to one.",
  );
  for (const wrong of ["", "/v1/chat/completions"]) {
    const away = argsOf(input, output).map((each) => each.replace(/\/v1$/, wrong));
    const said = await ended(away, ENV);
    expect(said).toMatch(/the address of the model server seems to be wrong/);
    expect(said).toContain(`The API is at --upstream ${upstream.url}.`);
  }
  expect((await runCommand(argsOf(input, output), ENV)).code).toBe(0);
});

test("a run without the /v1 of its model server names the address where the API is, also where the server refuses in the words of the API", async () => {
  const error = { message: "Invalid URL", type: "invalid_request_error", param: null, code: null };
  const models = { body: { object: "list", data: [] } };
  await using server = await startUpstream({
    answers: ({ path }) => {
      if (!path.startsWith("/v1/")) return refusal(404, error);
      return path === "/v1/models" ? models : GOOD;
    },
  });
  const { input, output } = given("no-v1", chatLines(REFUSALS));
  const wrong = server.url.replace(/\/v1$/, "");
  const { code, stderr } = await runCommand(["run", input, "-o", output, "--upstream", wrong]);
  expect(stderr).toContain(`(status 404, invalid_request_error)`);
  expect(stderr).toContain(`The API is at --upstream ${server.url}. Correct it`);
  expect(code).toBe(1);
});

test("a run at a model server that lacks the endpoint says that it may be so", async () => {
  const error = { message: "Invalid URL (POST /v1/responses)", type: "invalid_request_error" };
  await using server = await startUpstream({ answers: () => refusal(404, error) });
  const url = "/v1/responses";
  const lines = Array.from({ length: REFUSALS }, (_, n) =>
    JSON.stringify({ custom_id: `${n}`, method: "POST", url, body: { model: "m", input: "Hi" } }),
  );
  const { input, output } = given("no-responses", lines);
  const { code, stderr } = await runCommand(["run", input, "-o", output, "--upstream", server.url]);
  expect(stderr).toMatch(/seems to be wrong, or it lacks the endpoint \(.*status 404/);
  expect(code).toBe(1);
});

test("a run that goes on with the key and the address of its answers waits while an ingress refuses it", async () => {
  const ids = Array.from({ length: REFUSALS }, (_, n) => `late-for-ingress-${n}`);
  const refused = ids.map((id) => chatLine(id, "[[hang x1]]"));
  const { input, output } = given("ingress", [chatLine("first", "Hi"), ...refused]);
  const session = new TerminalSession(argsOf(input, output), ENV);
  await session.shows(/ 16% {2}1\/6/);
  await session.kill();
  upstream.apiKey = "sk-of-the-ingress";
  await using again = new BatchdProcess(argsOf(input, output), ENV);
  await again.loggedLike(/refuses the key that is configured for it/);
  upstream.apiKey = ENV.BATCHD_UPSTREAM_API_KEY;
  const { code } = await again.exited();
  expect({ code, ids: idsIn(output) }).toEqual({ code: 0, ids: ["first", ...ids] });
});

test("a run waits for a model server whose proxy still answers with pages of its own", async () => {
  const pages = chatLines(REFUSALS, () => "[[html 404]]");
  const { input, output } = given("pages", pages);
  const session = new TerminalSession(argsOf(input, output), ENV, 400);
  await session.shows(/seems to be wrong, .* \(.*404\)\)\. It got the address http/);
  session.type("\u0003");
  expect(await session.exitCode).toBe(130);
  rmSync(join(folder, ".pages.out.jsonl.batchd"), { recursive: true });
});

test("a run with the upstreams of a file waits while they refuse their keys, and names it", async () => {
  const { input, output } = given("waiting", [chatLine("a", "Hi")]);
  const config = join(folder, "refused.yaml");
  const entry = { name: "gpu", base_url: upstream.url, api_key: "sk-wrong", models: ["*"] };
  writeFileSync(config, JSON.stringify({ upstreams: [entry] }));
  const session = new TerminalSession(["run", input, "-o", output, "--config", config], {}, 400);
  await session.shows(/refuses the key that is configured for it .*\. .*\S/);
  session.type("\u0003");
  await session.exitCode;
  expect(session.screen).toContain(`The keys of its upstreams are in ${config}`);
  rmSync(join(folder, ".waiting.out.jsonl.batchd"), { recursive: true });
});

test("a full disk is said, and the run goes on when there is room", async (context) => {
  const path = join(folder, "small");
  const disk = mountSmallDisk(path, 65_536);
  if (disk === null) return context.skip();
  onTestFinished(() => disk[Symbol.dispose]());
  const { input } = given(
    "full",
    chatLines(3, () => "[[big 1000000]]"),
  );
  const output = join(path, "answers.jsonl");
  const resize = (bytes: number) =>
    spawnSync("mount", ["-o", `remount,size=${bytes}`, path]).status;
  const early = await new BatchdProcess(argsOf(input, output), ENV).exited();
  expect(early.code).toBe(1);
  expect(early.stderr).toMatch(/^batchd: cannot open the data in .*the disk is full.*\n$/);

  expect(resize(3_000_000)).toBe(0);
  await using running = new BatchdProcess(argsOf(input, output), ENV);
  await running.loggedLike(/ENOSPC.*; trying again|disk is full; trying again/);
  expect(resize(30_000_000)).toBe(0);
  const { code, stderr } = await running.exited();
  expect(stderr).not.toMatch(/unclean|Error:/);
  expect({ code, stderr }).toMatchObject({ code: 0 });
  expect(idsIn(output)).toHaveLength(3);
});

test("pipes on both sides carry lines in and answers out, and nothing else", async () => {
  const { input } = given("piped", chatLines(3));
  const env = { ...ENV, STDIN_FROM: input };
  const { code, stdout } = await new BatchdProcess(
    argsOf("-", "-", "--format", "csv", "--data-dir", join(folder, "piped")),
    env,
  ).exited();
  expect(code).toBe(0);
  expect(
    stdout
      .trimEnd()
      .split("\r\n")
      .map((row) => row.split(",")[0]),
  ).toEqual(['"custom_id"', '"line-1"', '"line-2"', '"line-3"']);
});

test("an output that ends as a table is one, unless --format says otherwise", async () => {
  const { input } = given("table", [...chatLines(2), chatLine("bad", "[[status 400]]")]);
  const written = async (name: string, ...more: readonly string[]) => {
    const output = join(folder, name);
    const { code } = await new BatchdProcess(argsOf(input, output, ...more), ENV).exited();
    expect(code).toBe(3);
    return [name, name.replace(".", ".errors.")].map((file) =>
      readFileSync(join(folder, file), "latin1"),
    );
  };
  const csv = expect.stringMatching(/^"custom_id",/);
  const parquet = expect.stringMatching(/^PAR1/);
  const jsonl = expect.stringMatching(/^\{"id":/);
  expect(await written("table.csv")).toEqual([csv, csv]);
  expect(await written("table.parquet")).toEqual([parquet, parquet]);
  expect(await written("lines.csv", "--format", "jsonl")).toEqual([jsonl, jsonl]);
});
