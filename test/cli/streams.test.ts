/** What becomes of output that is read slowly, not to its end, or not at all; and of commands that are interrupted. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { createBatch, uploadLines } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { killAtTestEnd } from "../support/leftovers.ts";
import { listening } from "../support/listening.ts";
import { paste, putCommand } from "../support/paste.ts";
import { BatchdProcess, COMPILE_CACHE, MAIN } from "../support/process.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { TerminalSession } from "../support/terminal.ts";
import { startUpstream } from "../support/upstream.ts";
import { named } from "../support/waits.ts";

const folder = forAllTests(temporaryFolder("batchd-streams-")).path;
const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));
const env = { ...putCommand(folder), BATCHD_URL: service.url };

function fileOf(name: string, lines: readonly string[]): string {
  const path = join(folder, name);
  writeFileSync(path, `${lines.join("\n")}\n`);
  return path;
}

const shell = (script: string) => paste(script, { env, folder });
const start = (args: readonly string[]) => new BatchdProcess(args, { BATCHD_URL: service.url });

/** Starts a command whose streams the test reads, or does not. */
function open(args: readonly string[], more: Record<string, string> = {}) {
  const given = { ...process.env, NODE_COMPILE_CACHE: COMPILE_CACHE, ...env, ...more };
  const child = spawn(process.execPath, [MAIN, ...args], { env: given });
  killAtTestEnd(child);
  return child;
}

/** The unit in which a disk in memory gives room to files. */
const PAGE_BYTES = 4096;

const codeOf = async (child: ChildProcess) => (await once(child, "exit"))[0] as number | null;

test("what the SDK logs does not stand among the results", async () => {
  const { id, output_file_id: output } = await service.run(chatLines(2));
  const child = open(["results", id], { OPENAI_LOG: "debug" });
  const [results, logged] = await Promise.all([text(child.stdout), text(child.stderr)]);
  expect(results).toBe(await (await service.openai.files.content(String(output))).text());
  expect(logged).toContain("sending request");
});

test("output that a full disk does not take is a failure of every command, and is said", async () => {
  const { id } = await service.run(chatLines(1));
  const input = fileOf("full.jsonl", chatLines(1));
  const run = `run ${input} -o - --data-dir ${folder}/run --upstream ${upstream.url}`;
  const commands = ["--help", "openapi", `validate ${input}`, "list --json", `results ${id}`, run];
  const ended = await Promise.all(
    commands.map((command) => shell(`batchd ${command} > /dev/full && echo "exit 0"`)),
  );
  for (const [i, { code, output }] of ended.entries()) {
    expect(output, commands[i]).toContain(
      "batchd: cannot write to standard output: ENOSPC: no space left on device",
    );
    expect(output).not.toMatch(/^ {4}at /m);
    expect({ command: commands[i], code }).toEqual({ command: commands[i], code: 1 });
  }
  expect(existsSync(join(folder, "run"))).toBe(true);
  expect(await shell(`batchd results ${id} -o /dev/full`)).toMatchObject({
    code: 1,
    output: expect.stringContaining("cannot write /dev/full: ENOSPC: no space left on device"),
  });
});

test("the faults of a long file wait for their reader, and not in memory", async () => {
  const LINES = 300_000;
  const input = fileOf("faulty.jsonl", Array<string>(LINES).fill("{}"));
  // All of them at once would take three times as much.
  const child = open(["validate", input], { NODE_OPTIONS: "--max-old-space-size=48" });
  const [faults, code] = await Promise.all([text(child.stdout), codeOf(child)]);
  expect(faults.match(/\n/g)).toHaveLength(LINES + 1);
  expect(code).toBe(4);
});

test("a standard input that finds no room is said with the folder that has none", async () => {
  const path = join(folder, "small-temporary");
  using disk = mountSmallDisk(path, 64 * 1024);
  if (disk === null) return;
  const input = fileOf("roomy.jsonl", chatLines(2_000));
  for (const [place, said] of [
    [path, "ENOSPC: no space left on device"],
    [join(folder, "none"), "ENOENT: no such file or directory"],
  ] as const) {
    const { code, output } = await shell(`TMPDIR=${place} batchd submit - < ${input}`);
    expect(output).toContain(`batchd: cannot keep the input in ${place}: ${said}`);
    expect(code).toBe(1);
  }
  expect(readdirSync(path)).toEqual([]);
});

test("a disk that takes a part of the output is a full disk", async () => {
  const path = join(folder, "small-disk");
  using disk = mountSmallDisk(path, 64 * 1024);
  // A mount needs root, and Linux.
  if (disk === null) return;
  const { code, output } = await shell(`batchd openapi > ${path}/openapi.yaml`);
  expect(output).toContain("cannot write to standard output: ENOSPC");
  expect(code).toBe(1);
});

test("the log goes on with whole lines once a full disk has room again", async () => {
  const path = join(folder, "log-disk");
  using disk = mountSmallDisk(path, 64 * 1024);
  if (disk === null) return;
  const [log, filler] = [join(path, "log"), join(path, "filler")];
  const config = fileOf("torn.yaml", ["log_level: debug"]);
  const more = `--port 0 --data-dir ${folder}/torn --upstream ${upstream.url}`;
  const serve = `batchd serve --config ${config} ${more} 2> ${log}`;
  const server = spawn("sh", ["-c", `exec ${serve}`], { env: { ...process.env, ...env } });
  killAtTestEnd(server);
  const url = /http:\S+/.exec(String(await once(server.stdout, "data")))?.[0];
  expect(() => writeFileSync(filler, Buffer.alloc(64 * 1024))).toThrow("ENOSPC");
  // The last page of the log takes the beginning of a line.
  const askAndFindRoom = async () => {
    await fetch(`${url}/v1/batches`);
    return -statSync(log).size & (PAGE_BYTES - 1);
  };
  await expect.poll(askAndFindRoom).toBe(0);

  rmSync(filler);
  await fetch(`${url}/v1/files`);
  const lines = () => readFileSync(log, "utf8").trimEnd().split("\n");
  await expect.poll(() => lines().at(-1)).toContain('"path":"/v1/files"');
  const begun = lines().filter((line) => !line.endsWith("}"));
  expect(begun.length).toBeLessThan(2);
  for (const line of lines().filter((each) => !begun.includes(each))) JSON.parse(line);
});

test("a reader that leaves ends the command without a word, and the batch goes on", async () => {
  const { id } = await service.submit([chatLine("held", "[[hang]]")]);
  const script = ["openapi", "list --limit 9999 --json", `show ${id}`, "--help"].map(
    (command) => `batchd ${command} | head -1 > /dev/null; echo "\${PIPESTATUS[@]}"`,
  );
  const { output } = await shell(script.join("\n"));
  expect(output).toBe("0 0\n".repeat(script.length));

  const large = await service.run([chatLine("large", "[[big 1000000]]")]);
  for (const place of ["-", "/dev/stdout"]) {
    const results = `batchd results ${large.id} -o ${place} | head -c 9; echo " \${PIPESTATUS[@]}"`;
    expect((await shell(results)).output).toBe('{"id":"ba 0 0\n');
  }

  const watching = open(["watch", id, "--json"]);
  await once(watching.stdout, "data");
  watching.stdout.destroy();
  await service.openai.post(`/batches/${id}/pause`);
  const [said, code] = await Promise.all([text(watching.stderr), codeOf(watching)]);
  expect(said).toContain(`${id} goes on. To watch it again: batchd watch ${id}`);
  expect(code).toBe(130);
  await service.openai.batches.cancel(id);
});

test("a log that is not read holds up neither the server nor its end", async () => {
  const config = fileOf("log.yaml", ["log_level: debug"]);
  const more = ["--port", "0", "--data-dir", join(folder, "unread"), "--upstream", upstream.url];
  const server = open(["serve", "--config", config, ...more]);
  server.stderr.pause();
  const url = /http:\S+/.exec(String(await once(server.stdout, "data")))?.[0];
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const input_file_id = await uploadLines(openai, chatLines(2_000));
  const runBatch = async () => {
    const { id } = await createBatch(openai, input_file_id);
    const status = async () => (await openai.batches.retrieve(id)).status;
    await expect.poll(status, { timeout: 100_000, interval: 200 }).toBe("completed");
  };
  await runBatch();

  let log = "";
  const dropped = new Promise<void>((resolve) => {
    server.stderr.on("data", (piece: Buffer) => {
      log += piece.toString();
      if (log.includes('"event":"log.lines_dropped"')) resolve();
    });
  });
  server.stderr.resume();
  await named(() => `log.lines_dropped in ${log.slice(-2_000)}`, dropped);
  for (const line of log.trimEnd().split("\n")) JSON.parse(line);
  expect(log.length).toBeLessThan(1_000_000);

  server.stderr.pause();
  await runBatch();
  server.kill("SIGTERM");
  expect(await codeOf(server)).toBe(0);
});

test("Ctrl-C ends a command that waits for an answer", async () => {
  const asked = Promise.withResolvers<void>();
  const silent = createServer(() => asked.resolve());
  const url = `http://127.0.0.1:${await listening(silent)}`;
  await using listing = new BatchdProcess(["list"], { BATCHD_URL: url });
  await asked.promise;
  listing.signal("SIGINT");
  expect(await listing.exited()).toMatchObject({ code: 130, stderr: "batchd: interrupted\n" });
});

test("Ctrl-C leaves nothing of a standard input that has not ended", async () => {
  const kept = join(folder, "kept");
  mkdirSync(kept);
  const reading = open(["validate", "-"], { TMPDIR: kept });
  reading.stdin.write(`${chatLine("a", "Hi")}\n`);
  await expect
    .poll(() => readdirSync(kept).filter((name) => name.startsWith("batchd-input-")))
    .toHaveLength(1);
  reading.kill("SIGINT");
  const [said, code] = await Promise.all([text(reading.stderr), codeOf(reading)]);
  expect([said, code]).toEqual(["batchd: interrupted\n", 130]);
  expect(readdirSync(kept)).toEqual([]);
});

test("a question that is answered by Ctrl-C or Ctrl-D deletes nothing", async () => {
  const { id } = await service.run(chatLines(1));
  for (const [key, code] of [
    ["\u0003", 130],
    ["\u0004", 1],
  ] as const) {
    const asking = new TerminalSession(["delete", id], { BATCHD_URL: service.url });
    await asking.shows(/\[y\/N\]/);
    asking.type(key);
    expect(await asking.exitCode).toBe(code);
    expect(asking.screen).toContain("nothing was deleted");
  }
  expect((await service.openai.batches.retrieve(id)).status).toBe("completed");
});

test("an empty standard input, and an output that is closed, end in words", async () => {
  const empty = await start(["submit", "-"]).exited();
  expect(empty).toMatchObject({ code: 1, stdout: "" });
  expect(empty.stderr).toBe("batchd: standard input is empty\n");
  const closed = await shell("batchd list >&- 2>&-; echo done");
  expect(closed).toEqual({ code: 0, output: "done\n" });
});

test("a pipeline takes its rows from standard input", async () => {
  const step = ["name: only", "endpoint: /v1/chat/completions", "template:", "  model: m"];
  const steps = fileOf("steps.yaml", [
    ...["name: piped", "steps:", "  -"].slice(0, 2),
    ...step.map((line, i) => `${i === 0 ? "  - " : "    "}${line}`),
    '      messages: [{ role: user, content: "Say {{input.word}}" }]',
  ]);
  const rows = `printf '{"word":"one"}\\n{"word":"two"}\\n'`;
  const { code } = await shell(`${rows} | batchd pipeline run ${steps} - -o answers.jsonl`);
  expect(code).toBe(0);
  expect(readFileSync(join(folder, "answers.jsonl"), "utf8").trimEnd().split("\n")).toHaveLength(2);
  const mixed = await shell(`${rows} | batchd pipeline run ${steps} - -o - --json`);
  expect(mixed).toMatchObject({ code: 1, output: expect.stringContaining("--json and -o - both") });
});

test("answers go to a pipe of the shell, and failed lines are not looked for beside it", async () => {
  const input = fileOf("failing.jsonl", [chatLine("a", "Hi"), chatLine("b", "[[status 400]]")]);
  const script = `batchd submit ${input} -o >(cat) && echo "exit 0"`;
  const { code, output } = await shell(script);
  expect(output).toMatch(/"custom_id":"a".*"echo: Hi"/);
  expect(output).toMatch(/some lines failed; batchd results batch_\w+ --errors has them$/m);
  expect(output).not.toContain("ENOENT");
  expect(code).toBe(3);
});

test("a run into a pipe leaves its failed lines in a file, also where the pipe has a name", async () => {
  const input = fileOf("piped.jsonl", [chatLine("a", "Hi"), chatLine("b", "[[status 400]]")]);
  const run = (output: string) => `batchd run ${input} --upstream ${upstream.url} -o ${output}`;
  const read = "cat batchd-*.errors.jsonl && rm batchd-*.errors.jsonl && ls -A | grep -c ^.batchd-";
  for (const output of [">(cat)", "- | cat"]) {
    const ran = await shell(`set -o pipefail; ${run(output)} && echo "exit 0"`);
    expect(ran).toMatchObject({
      code: 3,
      output: expect.stringMatching(/"custom_id":"a".*"echo: Hi"/),
    });
    expect(ran.output).toMatch(/failed lines are in batchd-[0-9a-f]{12}\.errors\.jsonl/);
    const { output: left } = await shell(read);
    expect(left).toMatch(/^\{"id":[^\n]*"custom_id":"b"[^\n]*\n0$/m);
  }
});

test("answers replace a file that only its owner may read by one like it", async () => {
  const { id } = await service.run([chatLine("a", "[[status 400]]"), chatLine("b", "Hi")]);
  const secret = fileOf("private.jsonl", ["before"]);
  chmodSync(secret, 0o600);
  const read = `batchd results ${id} -o ${secret} && umask 022 && batchd results ${id} -o new.jsonl`;
  expect(await shell(read)).toMatchObject({ code: 0 });
  const modes = [secret, join(folder, "new.jsonl")].map((path) => statSync(path).mode & 0o777);
  expect(modes).toEqual([0o600, 0o644]);
  expect(readFileSync(secret, "utf8")).toContain("echo: Hi");
});

test("a date without a zone is in UTC, wherever the command runs", async () => {
  const { id } = await service.run(chatLines(1));
  const anHourAgo = new Date(Date.now() - 3_600_000).toISOString().slice(0, 16);
  const list = `batchd list --json --limit 1 --created-after ${anHourAgo}`;
  expect((await shell(`TZ=America/New_York ${list}`)).output).toContain(id);
  expect((await shell(`${list}-14:00`)).output).not.toContain(id);
});
