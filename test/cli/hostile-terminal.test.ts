/** Texts of a server, a file or a model that would command a terminal are shown by every command, and never obeyed. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { listening } from "../support/listening.ts";
import { chatLine } from "../support/service.ts";
import { TerminalSession } from "../support/terminal.ts";

/** Writes the clipboard, makes a link, clears the screen, turns red (C1), reverses the text, and overwrites the line. */
const HOSTILE =
  "\u001b]52;c;b3du\u0007\u001b]8;;x:evil\u001b\\\u001b[2J\u009b31m\u202e\u2066\rspoof";
/** What must not come out. Colours, the bar and line ends of the command itself are none of these. */
const RAW = ["\u001b]", "\u001b\\", "\u0007", "\u001b[2J", "\u009b", "\u202e", "\u2066", "\rspoof"];

const BATCH = {
  id: HOSTILE,
  object: "batch",
  endpoint: HOSTILE,
  model: HOSTILE,
  status: HOSTILE,
  created_at: 1,
  input_file_id: HOSTILE,
  output_file_id: HOSTILE,
  metadata: { k: HOSTILE },
  request_counts: { total: 2, completed: 1, failed: 0 },
  errors: { data: [{ line: 1, message: HOSTILE, code: HOSTILE }] },
  x_batchd: {
    waiting: { reason: HOSTILE, upstream_error: HOSTILE },
    cost: { currency: HOSTILE, so_far: "1", projected: null },
    failures: [{ lines: 1, status_code: 400, code: HOSTILE }],
  },
};
const FILE = { id: HOSTILE, object: "file", bytes: 1, filename: HOSTILE, purpose: HOSTILE };
const DELIVERY = { id: HOSTILE, status: "delivered", address: HOSTILE, location: HOSTILE };
const list = (data: object) => ({ object: "list", data: [data], has_more: false });
const refusal = { error: { message: HOSTILE, code: HOSTILE, type: HOSTILE, param: null } };

let asked = 0;
/** The answer to each path; a text is no JSON. */
const ANSWERS: Readonly<Record<string, () => object | string>> = {
  "/v1/batches": () => list(BATCH),
  "/v1/batches/shown": () => BATCH,
  "/v1/batches/watched": () => ({ ...BATCH, status: asked++ === 0 ? "in_progress" : "completed" }),
  "/v1/batches/ended": () => ({ ...BATCH, status: "completed", output_file_id: "file-text" }),
  "/v1/batches/shown/deliveries": () => list(DELIVERY),
  "/v1/batches/garbage": () => HOSTILE,
  "/v1/files": () => list(FILE),
  "/v1/files/file-text/content": () => `${HOSTILE}\n`,
};

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "batchd-hostile-"));
  mkdirSync(join(folder, HOSTILE));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("nothing of a hostile text reaches the screen as it is", async () => {
  const server = createServer(({ url = "" }, response) => {
    const answer = ANSWERS[url.split("?")[0] ?? ""]?.();
    response.writeHead(answer === undefined ? 400 : 200, { "content-type": "application/json" });
    response.end(typeof answer === "string" ? answer : JSON.stringify(answer ?? refusal));
  });
  const url = `http://127.0.0.1:${await listening(server)}`;
  const write = (name: string, text: string) => {
    const path = join(folder, HOSTILE, name);
    writeFileSync(path, text);
    return path;
  };
  const input = write("input.jsonl", `${chatLine(HOSTILE, "Hi", { model: HOSTILE })}\n`);
  const faulty = write("faulty.jsonl", "{}\n");
  const config = write("batchd.yaml", JSON.stringify({ [HOSTILE]: 1 }));
  const name = { name: HOSTILE, steps: [{ name: HOSTILE }] };
  const steps = write("steps.yaml", JSON.stringify(name));
  const upstream = ["--upstream", `${url}/v1`];
  const commands = [
    ["list"],
    ["show", "shown"],
    ["watch", "watched"],
    ["files", "list"],
    ["results", "ended"],
    ["show", "none"],
    ["show", "garbage"],
    ["deliveries", "shown"],
    ["validate", faulty],
    ["keys", "list", "--config", config],
    ["pipeline", "run", steps, input],
    ["run", input, "-o", join(folder, HOSTILE, "answers.jsonl"), ...upstream],
  ];
  const sessions = commands.map((args) => new TerminalSession(args, { BATCHD_URL: url }));
  await Promise.all(sessions.map(({ exitCode }) => exitCode));
  for (const [i, session] of sessions.entries()) expectHarmless(session, commands[i] ?? []);
  const data = join(folder, HOSTILE, "data");
  const serve = ["serve", "--port", "0", "--data-dir", data, ...upstream];
  const session = new TerminalSession(serve);
  await session.shows(/stop with Ctrl-C/);
  await session.shows(/upstreams? (?:do not )?answer/);
  session.type("\u0003");
  await session.exitCode;
  expectHarmless(session, serve);
});

function expectHarmless({ written }: TerminalSession, args: readonly string[]): void {
  const command = args.slice(0, 2).join(" ");
  const shown = args.includes("garbage") ? "something that is not JSON" : "\\u001b]52;c;";
  expect(`${command}: ${written}`).toContain(shown);
  expect({ command, raw: RAW.filter((each) => written.includes(each)) }).toEqual({
    command,
    raw: [],
  });
}
