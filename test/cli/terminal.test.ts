/** The command in a terminal, as its user sees it. */
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { COMMAND, MAIN } from "../support/process.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { TerminalSession } from "../support/terminal.ts";
import { startUpstream } from "../support/upstream.ts";

const HIDE_CURSOR = "\u001b[?25l";
const SHOW_CURSOR = "\u001b[?25h";

const folder = forAllTests(temporaryFolder("batchd-terminal-")).path;
const upstream = forAllTests(await startUpstream());
const prices = [{ model: "*", input: "1000000", output: "0", currency: "USD" }];
const engine = { stop_grace_seconds: 1 };
const service = forAllTests(
  await startTestService({ upstreamUrl: upstream.url, config: { prices, engine } }),
);

const open = (args: readonly string[], env: Readonly<Record<string, string>> = {}) =>
  new TerminalSession(args, { BATCHD_URL: service.url, ...env });

test("a bar shows a batch from its first line to its end", async () => {
  const input = join(folder, "input.jsonl");
  writeFileSync(input, [...chatLines(9), chatLine("bad", "[[status 400]]")].join("\n"));
  upstream.hold();
  const output = join(folder, "answers.jsonl");
  const session = open(["submit", input, "-o", output]);
  await session.shows(/░+ 0% {2}0\/10/);
  expect(session.written).toContain(HIDE_CURSOR);
  upstream.release();
  expect(await session.exitCode).toBe(3);
  expect(session.screen).toMatch(/█+ 100% {2}10\/10 {2}1 failed .*USD/);
  expect(session.screen).toMatch(/^batch_\w+ completed: 10 of 10 lines, 1 failed, [\d.]+ USD$/m);
  expect(session.screen).toMatch(/^ {2}1 line failed: 400$/m);
  expect(session.screen).toContain("answers are in");
  expect(session.written.lastIndexOf(SHOW_CURSOR)).toBeGreaterThan(
    session.written.lastIndexOf(HIDE_CURSOR),
  );
});

test("the lines may be typed, and the command says how they end", async () => {
  const session = open(["submit", "-", "--wait"]);
  await session.shows(/^Type or paste the lines, then Ctrl-D on a line of its own\.$/m);
  session.type(`${chatLine("typed", "Peru")}\n\u0004`);
  expect(await session.exitCode).toBe(0);
  expect(session.screen).toMatch(/^batch_\w+ completed: 1 of 1 line/m);
});

test("a terminal is not sent a table that is no text", async () => {
  const { id } = await service.run([chatLine("a", "Peru")]);
  for (const more of [[], ["-o", "-"], ["--errors"]]) {
    const session = open(["results", id, "--format", "parquet", ...more]);
    expect(await session.exitCode).toBe(1);
    expect(session.screen).toMatch(
      /^batchd: Parquet is no text for a terminal: name a file with -o, or use > or \|$/,
    );
  }
  const session = open(["results", id, "--format", "csv"]);
  expect(await session.exitCode).toBe(0);
  expect(session.screen).toContain('"custom_id","line","status","text"');
  expect(session.screen).not.toContain("u000d");
});

test("a narrow terminal shows the whole text beside a shorter bar", async () => {
  const { id } = await service.submit([...chatLines(9), chatLine("bad", "[[status 400]]")]);
  await service.ended(id);
  const session = new TerminalSession(["watch", id], { BATCHD_URL: service.url }, 40);
  expect(await session.exitCode).toBe(3);
  expect(session.screen).toMatch(/^█{4,16} 100% {2}10\/10 {2}1 failed {2}[\d.]+ USD$/m);
});

test("a line above the bar goes on in the next row of a narrow terminal", async () => {
  upstream.hold();
  const { id } = await service.submit(chatLines(10));
  const session = new TerminalSession(["watch", id], { BATCHD_URL: service.url }, 40);
  await session.shows(/░ 0% {2}0\/10/);
  upstream.release();
  expect(await session.exitCode).toBe(0);
  expect(session.screen.split("\n")).toContain(`${id} completed`);
});

test("a table breaks its rows between two cells where the terminal is too narrow", async () => {
  const { id } = await service.run(chatLines(1));
  const listed = async (cols: number) => {
    const session = new TerminalSession(
      ["list", "--limit", "1"],
      { BATCHD_URL: service.url },
      cols,
    );
    expect(await session.exitCode).toBe(0);
    return session.screen.split("\n").map((line) => line.replace(/[-\d]{10} [:\d]{8}/, "DATE"));
  };
  expect(await listed(100)).toHaveLength(3);
  expect(await listed(80)).toEqual([
    expect.stringMatching(/^ID {38}STATUS {5}CREATED$/),
    "  PROGRESS     MODEL",
    `${id}  completed  DATE UTC`,
    "  1 of 1 line  test-model",
    "There are older ones: --limit 5 shows more.",
  ]);
  const rows = await listed(40);
  expect(rows.slice(3, 6)).toEqual([id, "  completed  DATE UTC", "  1 of 1 line  test-model"]);
});

test("a list that is cut says so, and a whole one does not", async () => {
  const input_file_id = await service.upload(chatLines(1));
  const ids = new Set<string>();
  for (const metadata of [{ list: "cut" }, { list: "cut" }]) {
    const asked = { input_file_id, endpoint: "/v1/chat/completions", metadata } as const;
    ids.add((await service.openai.batches.create({ ...asked, completion_window: "24h" })).id);
  }
  const list = async (...args: readonly string[]) => {
    const session = open(args);
    expect(await session.exitCode).toBe(0);
    return session.screen;
  };
  const older = /^There are older ones: --limit 5 shows more\.$/m;
  expect(await list("list", "--limit", "1", "--metadata", "list=cut")).toMatch(older);
  const whole = await list("list", "--limit", "2", "--metadata", "list=cut");
  expect([...ids].every((id) => whole.includes(id))).toBe(true);
  expect(whole).not.toContain("There are older ones");
  expect(await list("files", "list", "--limit", "1")).toMatch(older);
});

test("a terminal that does not say its width shows the whole bar", async () => {
  const { id } = await service.run(chatLines(10));
  const shell = ["sh", "-c", 'stty cols 0 && exec "$@"', "sh", process.execPath, MAIN] as const;
  const session = new TerminalSession(["watch", id], { BATCHD_URL: service.url }, 100, shell);
  expect(await session.exitCode).toBe(0);
  expect(session.screen).toMatch(/^█{24} 100% {2}10\/10 {2}[\d.]+ USD$/m);
});

test("Ctrl-C gives the cursor back and says how to go on", async () => {
  const { id } = await service.submit([chatLine("held", "[[hang]]")]);
  const session = open(["watch", id]);
  await session.shows(/0% {2}0\/1/);
  session.type("\u0003");
  expect(await session.exitCode).toBe(130);
  expect(session.screen).toContain(`To watch it again: batchd watch ${id}`);
  expect(session.written.endsWith(SHOW_CURSOR) || session.written.includes(SHOW_CURSOR)).toBe(true);
  expect((await service.openai.batches.retrieve(id)).status).toBe("in_progress");

  const asking = open(["delete", id]);
  await asking.shows(/Delete batch_\w+ and its results\? \[y\/N\]/);
  asking.type("n\r");
  expect(await asking.exitCode).toBe(1);
  const deleting = open(["delete", id]);
  await deleting.shows(/\[y\/N\]/);
  deleting.type("y\r");
  expect(await deleting.exitCode).toBe(0);
  expect(deleting.screen).toContain(`deleted ${id}`);
});

/** Stops a command that watches a batch, by the terminal of its shell. The upstream holds the answer back. */
async function stoppedInShell(): Promise<TerminalSession> {
  upstream.hold();
  const { id } = await service.submit(chatLines(1));
  const env = { BATCHD_URL: service.url, PS1: "shell> " };
  const session = new TerminalSession([], env, 100, ["/bin/sh", "-i"]);
  await session.shows(/shell>$/);
  session.type(`${COMMAND} watch ${id}\r`);
  await session.shows(/░ 0% {2}0\/1/);
  session.type("\u001a");
  await session.shows(/Stopped[\s\S]*shell>$/);
  return session;
}

test("Ctrl-Z gives the cursor to the shell until the command goes on", async () => {
  const session = await stoppedInShell();
  expect(session.written.lastIndexOf(SHOW_CURSOR)).toBeGreaterThan(
    session.written.lastIndexOf(HIDE_CURSOR),
  );
  const stoppedAt = session.written.length;
  session.type("fg\r");
  await session.shows(/shell> [\s\S]*░ 0% {2}0\/1[\s\S]*shell> fg[\s\S]*░ 0% {2}0\/1/);
  upstream.release();
  await session.shows(/completed: 1 of 1 lines?[\s\S]*shell>$/);
  session.type("exit\r");
  await session.exitCode;
  const goneOn = session.written.slice(stoppedAt);
  expect(goneOn).toContain(HIDE_CURSOR);
  expect(goneOn.lastIndexOf(SHOW_CURSOR)).toBeGreaterThan(goneOn.lastIndexOf(HIDE_CURSOR));
});

test.skipIf(process.platform !== "linux")(
  "a command in the background of a shell does not draw over it",
  async () => {
    const session = await stoppedInShell();
    const stoppedAt = session.written.length;
    session.type("bg\r");
    await session.shows(/shell> bg[\s\S]*shell>/);
    upstream.release();
    await session.shows(/shell> bg[\s\S]*completed: 1 of 1 lines?/);
    expect(session.written.slice(stoppedAt)).not.toMatch(/[░█]/);
    expect(session.written.slice(stoppedAt)).not.toContain(HIDE_CURSOR);
    session.type("exit\r");
    await session.exitCode;
  },
);

test("an answer that would command the terminal is shown and not obeyed", async () => {
  const hostile = "\u001b]0;owned\u0007\u001b[2J\u009b31mred\u202e";
  const { id } = await service.run([chatLine(hostile, "Hi")]);
  const session = open(["results", id], { NO_COLOR: "1" });
  expect(await session.exitCode).toBe(0);
  expect(session.screen.replaceAll("\n", "")).toContain("\\u001b]0;owned\\u0007");
  for (const character of ["\u001b", "\u0007", "\u009b", "\u202e"]) {
    expect(session.written).not.toContain(character);
  }
});

test("colours are for terminals, and NO_COLOR turns them off", async () => {
  const { id } = await service.run(chatLines(1));
  const GREEN = "\u001b[32mcompleted";
  const [coloured, plain] = [open(["show", id]), open(["show", id], { NO_COLOR: "1" })];
  expect([await coloured.exitCode, await plain.exitCode]).toEqual([0, 0]);
  expect(coloured.written).toContain(GREEN);
  expect(plain.written).not.toContain("\u001b[3");
  expect(plain.screen).toBe(coloured.screen);
});

test("serve says where its page, data and upstreams are, and logs for people", async () => {
  const dataDir = join(folder, "served");
  const args = ["serve", "--port", "0", "--data-dir", dataDir, "--upstream", upstream.url];
  const session = open(args);
  await session.shows(/^batchd listening on http:\/\/127\.0\.0\.1:\d+$/m);
  await session.shows(/the upstreams answer/);
  expect(session.screen).toMatch(/^ {2}page {7}http:\/\/127\.0\.0\.1:\d+\/$/m);
  expect(session.screen).toContain(`  data       ${dataDir}`);
  expect(session.screen).toMatch(/^ {2}upstreams {2}upstream \(http:\/\/127\.0\.0\.1:\d+\)$/m);
  session.type("\u0003");
  expect(await session.exitCode).toBe(0);
  expect(session.screen).toMatch(/\d\d:\d\d:\d\d server\.stopping signal=SIGINT /);
  expect(session.screen).not.toContain('{"');
});

const STOP = "\u0013";
const GO_ON = "\u0011";

test("a terminal that is stopped with Ctrl-S holds up neither the server nor its end", async () => {
  const args = ["--port", "0", "--data-dir", join(folder, "stopped"), "--upstream", upstream.url];
  const session = open(["serve", ...args]);
  await session.shows(/the upstreams answer/);
  const url = /listening on (http:\S+)/.exec(session.screen)?.[1];
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const upload = () =>
    openai.files.create({ file: new File([chatLine("a", "Hi")], "a.jsonl"), purpose: "batch" });
  session.type(STOP);
  const { id: first } = await upload();
  const { id: second } = await upload();
  expect(session.screen).not.toContain("file.stored");
  session.type(GO_ON);
  await session.shows(new RegExp(`file=${first}[^]*file=${second}`));

  session.type(STOP);
  await upload();
  session.terminate();
  expect(await session.exitCode).toBe(0);
});

test("a terminal that is stopped with Ctrl-S does not hold up a run", async () => {
  const input = join(folder, "run.jsonl");
  writeFileSync(input, chatLines(20).join("\n"));
  const output = join(folder, "run.out.jsonl");
  upstream.hold();
  const session = open(["run", input, "-o", output, "--upstream", upstream.url]);
  await session.shows(/0% {2}0\/20/);
  session.type(STOP);
  upstream.release();
  await expect.poll(() => existsSync(output), { timeout: 100_000 }).toBe(true);
  expect(session.screen).not.toContain("100%");
  session.type(GO_ON);
  expect(await session.exitCode).toBe(0);
  expect(session.screen).toMatch(/100% {2}20\/20/);
  expect(session.written.lastIndexOf(SHOW_CURSOR)).toBeGreaterThan(
    session.written.lastIndexOf(HIDE_CURSOR),
  );
});
