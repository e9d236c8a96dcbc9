import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { createServer as createHttpServer, type RequestListener } from "node:http";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { listening } from "../support/listening.ts";
import { PlainServer } from "../support/plain-server.ts";
import { freePort } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const folder = forAllTests(temporaryFolder("batchd-elsewhere-")).path;
const input = join(folder, "input.jsonl");
writeFileSync(input, `${chatLines(3).join("\n")}\n`);
const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));

const at = (server: PlainServer, ...args: readonly string[]) =>
  runCommand(args, {
    BATCHD_URL: "",
    BATCHD_API_KEY: "sk-batchd",
    OPENAI_BASE_URL: server.url,
    OPENAI_API_KEY: "sk-openai",
  });

describe("a server without the extensions of batchd", () => {
  test("runs a whole batch, and gets the key of OpenAI", async () => {
    const plain = await PlainServer.before(service.url);
    const output = join(folder, "plain.jsonl");
    const { code, stderr } = await at(plain, "submit", input, "-o", output);
    expect(readFileSync(output, "utf8").trimEnd().split("\n")).toHaveLength(3);
    expect(stderr).toMatch(/^batch_\w+ completed: 3 of 3 lines$/m);
    expect(code).toBe(0);
    expect(new Set(plain.keys)).toEqual(new Set(["Bearer sk-openai"]));
  });

  test.each(["pause", "resume", "retry", "delete"])(
    "%s says that it is not there",
    async (name) => {
      const plain = await PlainServer.before(service.url);
      const { id } = await service.submit([chatLine("a", "Hi")]);
      const { code, stdout, stderr } = await at(plain, name, id);
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).toMatch(/^batchd: http:\S+ does not have .*: it is an extension of batchd/);
    },
  );

  test("filters and tables are made here, and what is not there is named", async () => {
    const plain = await PlainServer.before(service.url);
    const done = await service.run([chatLine("a", "Hi")]);
    upstream.hold();
    const running = await service.submit([chatLine("a", "Hi")]);
    await service.events.reached("batch.started", { batch: running.id });
    const table = join(folder, "plain.csv");
    const [listed, csv, early, deliver] = await Promise.all([
      at(plain, "list", "--status", "in_progress"),
      at(plain, "results", done.id, "--format", "csv", "-o", table),
      at(plain, "results", running.id),
      at(plain, "deliver", done.id, "share"),
    ]);
    upstream.release();
    expect(listed.stdout).toContain(running.id);
    expect(listed.stdout).not.toContain(done.id);
    expect([csv.code, readFileSync(table, "utf8")]).toEqual([
      0,
      expect.stringMatching(/^"custom_id"/),
    ]);
    for (const { code, stdout, stderr } of [early, deliver]) {
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).toMatch(/^batchd: http:\S+ does not have .*: it is an extension of batchd/);
    }
  });

  test("rows whose ids and members are others have no number of a line in a table", async () => {
    const plain = await PlainServer.before(service.url);
    const { id } = await service.run([chatLine("a", "Hi")]);
    const custom_id = "a-000000000001";
    plain.content = [
      { id: "vllm-383d1c59835645aeb2e07d004d62a826", custom_id },
      { custom_id, id: "b" },
      { id: "batch_req_a", custom_id },
    ]
      .map((row) => `${JSON.stringify({ ...row, response: null, error: null })}\n`)
      .join("");
    const { stdout } = await at(plain, "results", id, "--format", "csv");
    const rows = stdout.split("\r\n").slice(1, -1);
    expect(rows).toEqual(Array(3).fill(`"${custom_id}"${",".repeat(13)}`));
  });

  test("an option of batchd is refused, and a batch that ignores it is cancelled", async () => {
    const plain = await PlainServer.before(service.url);
    const refused = await at(plain, "submit", input, "--priority", "3");
    expect(refused.stderr).toContain("does not have --priority: it is an extension of batchd");

    plain.onExtension = "ignore";
    upstream.hold();
    const ignored = await at(plain, "submit", input, "--priority", "3");
    upstream.release();
    expect(ignored.stderr).toMatch(/has ignored --priority, which only batchd knows; batch_\w+ is/);
    expect([refused, ignored].map(({ stderr }) => stderr.includes("no batch was made"))).toEqual([
      true,
      false,
    ]);

    const steps = join(folder, "steps.yaml");
    writeFileSync(steps, "name: one\nsteps: [{ name: a, endpoint: /v1/chat/completions }]");
    upstream.hold();
    const chained = await at(plain, "pipeline", "run", steps, input);
    upstream.release();
    expect(chained.stderr).toMatch(/^batchd: the input file stays at the server as file-\w+$/m);
    for (const { code, stderr } of [ignored, chained]) {
      const id = /batch_\w+/.exec(stderr)?.[0] ?? "";
      expect((await service.openai.batches.retrieve(id)).status).toMatch(/^cancel/);
      expect(code).toBe(1);
    }
    expect(refused.code).toBe(1);
  });
});

describe("over a bad network", () => {
  test("a download goes on where it broke off, and a file is whole or not there", async () => {
    const plain = await PlainServer.before(service.url);
    const { id } = await service.openai.files.create({
      file: new File([readFileSync(input)], "input.jsonl"),
      purpose: "batch",
    });
    plain.brokenDownloads = 2;
    const output = join(folder, "copy.jsonl");
    const { code, stderr } = await at(plain, "files", "download", id, "-o", output);
    expect(code).toBe(0);
    expect(stderr.match(/broke off its answer .*; file-\w+ goes on after/g)).toHaveLength(2);
    expect(readFileSync(output)).toEqual(readFileSync(input));
    expect(plain.ranges).toEqual([undefined, ...plain.ranges.slice(1)]);
    expect(plain.ranges.slice(1).every((range) => /^bytes=\d+-$/.test(range ?? ""))).toBe(true);

    const missing = join(folder, "missing.jsonl");
    expect((await at(plain, "files", "download", "file-none", "-o", missing)).code).toBe(1);
    expect(existsSync(missing)).toBe(false);
  });

  test("a wait survives kill -9 of the server and its next start", async () => {
    const port = String(await freePort());
    const dataDir = join(folder, "restarted");
    const serve = () =>
      new BatchdProcess([
        "serve",
        "--port",
        port,
        "--data-dir",
        dataDir,
        "--upstream",
        upstream.url,
      ]);
    upstream.hold();
    await using first = serve();
    const url = await first.listening();
    await using waiting = new BatchdProcess(["submit", input, "--wait"], { BATCHD_URL: url });
    await waiting.loggedLike(/in_progress/);
    await first.kill();
    await waiting.loggedLike(/cannot reach .*; trying again/);
    await using second = serve();
    await second.listening();
    upstream.release();
    const { code, stderr } = await waiting.exited();
    expect(stderr).toMatch(/^batch_\w+ completed: 3 of 3 lines$/m);
    expect(code).toBe(0);
  });
});

/** Returns a port that was free a moment ago: the second start needs the port of the first. */
test("a large file goes up in parts, and comes down again as it was", async () => {
  const large = join(folder, "large.jsonl");
  const line = `${chatLine("a", "x".repeat(100_000))}\n`;
  const content = Buffer.from(line.repeat(Math.ceil((65 * 1024 * 1024) / line.length)));
  writeFileSync(large, content);
  const env = { BATCHD_URL: service.url };
  const up = await new BatchdProcess(["files", "upload", large], env).exited();
  expect(up).toMatchObject({ code: 0, stderr: "" });
  await service.events.reached("upload.completed", { file: up.stdout.trim() });
  const copy = join(folder, "large-copy.jsonl");
  const args = ["files", "download", up.stdout.trim(), "-o", copy];
  expect(await new BatchdProcess(args, env).exited()).toMatchObject({ code: 0 });
  expect(readFileSync(copy).equals(content)).toBe(true);
});

test("a large file whose completion is still being carried out is waited for, and not given up", async () => {
  const large = join(folder, "waited-for.jsonl");
  writeFileSync(large, `${chatLine("a", "x".repeat(65 * 1024 * 1024))}\n`);
  const inUse = { message: "It is being carried out.", code: "idempotency_key_in_use" };
  const calls: string[] = [];
  const server = createHttpServer((request, response) => {
    const call = /[^/]+$/.exec(request.url ?? "")![0];
    calls.push(call);
    const isEarly = call === "complete" && calls.filter((each) => each === call).length <= 4;
    request.resume().on("end", () => {
      const head = { "content-type": "application/json", "retry-after-ms": "1" };
      response.writeHead(isEarly ? 409 : 200, head);
      response.end(JSON.stringify(isEarly ? { error: inUse } : { id: call, file: { id: "made" } }));
    });
  });
  const env = { BATCHD_URL: `http://127.0.0.1:${await listening(server)}/v1` };
  const up = await new BatchdProcess(["files", "upload", large], env).exited();
  expect(up).toMatchObject({ code: 0, stdout: "made\n", stderr: "" });
  expect(calls).toEqual(["uploads", "parts", "parts", ...Array(5).fill("complete")]);
});

test.each([
  ["in parts", 200],
  ["as a whole", 404],
])("a file that changes while it goes up %s is no upload, and is said", async (_, status) => {
  const growing = join(folder, `growing-${status}.jsonl`);
  writeFileSync(growing, `${chatLine("a", "x".repeat(65 * 1024 * 1024))}\n`);
  const server = createHttpServer((request, response) => {
    const { pathname } = new URL(request.url!, "http://server");
    if (pathname === "/v1/uploads") appendFileSync(growing, `${chatLine("b", "more")}\n`);
    request.resume().on("end", () => {
      response.writeHead(pathname === "/v1/uploads" ? status : 200, {
        "content-type": "application/json",
      });
      response.end(JSON.stringify({ id: "made" }));
    });
  });
  const env = { BATCHD_URL: `http://127.0.0.1:${await listening(server)}/v1` };
  const stderr = `batchd: ${growing} changed while it was sent: try again once it is written\n`;
  const ended = await runCommand(["files", "upload", growing], env);
  expect(ended).toMatchObject({ code: 1, stdout: "", stderr });
});

describe("a server without OpenAI's API", () => {
  /** Runs a command at a server that answers so. */
  async function run(answer: RequestListener, ...args: readonly string[]) {
    const url = `http://127.0.0.1:${await listening(createHttpServer(answer))}/v1`;
    const { code, stdout, stderr } = await runCommand(args, { BATCHD_URL: url });
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    return stderr.replace(url, "URL");
  }

  /** Answers every request with this. */
  const json =
    (body: unknown): RequestListener =>
    (_, response) => {
      response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
    };

  const page = `<!doctype html>${"<p>Hello</p>\n".repeat(10_000)}`;
  const commands = ["list", "show batch_1", "watch batch_1", "files list"];

  test.each(commands)("%s says that the answer is a page, and what to check", async (command) => {
    const stderr = await run(
      (_, response) => {
        response.writeHead(200, { "content-type": "text/html" }).end(page);
      },
      ...command.split(" "),
    );
    expect(stderr).toBe(
      "batchd: URL answers with text/html and not with JSON. Is it a server with OpenAI's API? --url or BATCHD_URL names another one\n",
    );
  });

  test.each([
    ["vLLM", '{"detail":"Not Found"}'],
    ["llama.cpp", '{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'],
    ["Ollama", "404 page not found"],
  ])("%s is no place for a file, and the command asks for another address", async (_, body) => {
    const answer: RequestListener = (request, response) =>
      request.resume().on("end", () => {
        response.writeHead(404, { "content-type": "application/json" }).end(body);
      });
    const advice = /Is it a server with OpenAI's Batch API\? --url or BATCHD_URL names another one/;
    for (const args of [["submit", input], ["list"]]) {
      expect(await run(answer, ...args)).toMatch(advice);
    }
  });

  test.each(commands)("%s says that the answer is other JSON", async (command) => {
    const stderr = await run(json({ status: "ok" }), ...command.split(" "));
    expect(stderr).toMatch(
      /^batchd: URL answers with JSON that .* Is it a server with OpenAI's API/,
    );
  });

  const batch = { id: "batch_1", status: "in_progress", created_at: "yesterday" };
  const counts = { total: "9", completed: null, failed: [] };
  const extension = { failures: [null], waiting: { reason: 7 }, paused: true, cost: "a lot" };
  const misshapen = { ...batch, request_counts: counts, errors: { data: [null] }, model: {} };

  test.each([
    ["show batch_1", misshapen, /^batch_1 {2}in_progress\nprogress +no lines yet\n/],
    ["show batch_1", { ...batch, x_batchd: extension }, /^batch_1 {2}in_progress\n/],
    ["show batch_1", { ...batch, x_batchd: { budget: 5, priority: {} } }, /^batch_1 /],
    [
      "show batch_1",
      { ...batch, metadata: { a: { toString: 1 } } },
      /^metadata +a=\{"toString":1/m,
    ],
    [
      "show batch_1",
      { ...batch, request_counts: { total: 1e300, completed: -3, failed: 0 } },
      /^progress +no lines yet$/m,
    ],
    [
      "show batch_1",
      { ...batch, status: "constructor", x_batchd: { waiting: { reason: "__proto__", since: 1 } } },
      /^batch_1 {2}constructor\n(?:.*\n)*why +waiting: __proto__$/m,
    ],
    ["list", { data: [{ ...misshapen, x_batchd: extension }] }, /^batch_1 +in_progress/m],
    ["files list", { data: [{ id: "file-1", bytes: "2", filename: {} }] }, /^file-1 +-/m],
    ["files show file-1", { id: "file-1", purpose: [] }, /^id +file-1\n/],
    ["deliveries batch_1", { data: [{ ...batch, error: "no" }] }, /^batch_1 /m],
  ])("%s shows what is readable of %j", async (command, answer, shown) => {
    const env = {
      BATCHD_URL: `http://127.0.0.1:${await listening(createHttpServer(json(answer)))}/v1`,
    };
    const { code, stdout, stderr } = await runCommand(command.split(" "), env);
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    expect(stdout).toMatch(shown);
  });

  test("a long id makes its own row of a list wider, and not all others", async () => {
    const long = `batch_${"x".repeat(300)}`;
    const data = [long, "batch_1", "batch_22"].map((id) => ({ id, status: "completed" }));
    const list = json({ object: "list", data, has_more: false });
    const url = `http://127.0.0.1:${await listening(createHttpServer(list))}/v1`;
    const { stdout } = await runCommand(["list"], { BATCHD_URL: url });
    expect(stdout).toMatch(/^ID {8}STATUS.*\nbatch_x{300} {2}completed.*\nbatch_1 {3}completed/);
  });

  test.each(["show batch_1", "list"])("%s refuses a batch without a status", async (command) => {
    const answer = { id: "batch_1", data: [{ id: "batch_1", status: {} }] };
    const stderr = await run(json(answer), ...command.split(" "));
    expect(stderr).toMatch(/^batchd: URL answers with a batch without a status\. /);
  });

  test.each([
    [200, "null"],
    [204, ""],
  ])("an answer that is nothing is none of the API (%i)", async (status, body) => {
    const type = { "content-type": "application/json" };
    for (const command of [["show", "batch_1"], ["list"]]) {
      const stderr = await run((_, answer) => answer.writeHead(status, type).end(body), ...command);
      expect(stderr).toMatch(/^batchd: URL answers with JSON that has neither an id nor a list\. /);
    }
  });

  test("a page that comes with an error is shortened", async () => {
    const stderr = await run((_, response) => void response.writeHead(403).end(page), "list");
    expect(stderr).toMatch(/^batchd: 403 <!doctype html><p>Hello/);
    expect(stderr.length).toBeLessThan(400);
  });

  test.each([200, 500])("an answer without an end is not read to it (%i)", async (status) => {
    let bytes = 0;
    const stderr = await run(
      (_, response) => {
        response.writeHead(status, { "content-type": "application/json" });
        const piece = Buffer.alloc(64 * 1024, " ");
        const write = () => {
          if (response.destroyed) return;
          bytes += piece.length;
          response.write(piece, write);
        };
        write();
      },
      "show",
      "batch_1",
    );
    expect(stderr).toMatch(/^batchd: .*more than 16 MiB where a few kB are expected/);
    expect(bytes).toBeLessThan(100_000_000);
  });

  test("a list whose first page comes for ever comes to an end", async () => {
    const list = {
      object: "list",
      data: [{ id: "batch_1", endpoint: "/v1/embeddings", status: "completed" }],
      has_more: true,
    };
    const stderr = await run(json(list), "list", "--status", "failed");
    expect(stderr).toMatch(/^batchd: URL sends the same page of its list again and again/);
  });
});
