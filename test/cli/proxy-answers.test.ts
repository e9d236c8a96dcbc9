/** Commands whose server is behind a proxy that answers in its place. */
import { existsSync, writeFileSync } from "node:fs";
import { createServer, type RequestListener } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { join } from "node:path";
import { expect, test } from "vitest";
import { privateAuthority } from "../support/certificates.ts";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { listening } from "../support/listening.ts";
import { chatLine } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const folder = forAllTests(temporaryFolder("batchd-proxied-")).path;
const input = join(folder, "input.jsonl");
writeFileSync(input, `${chatLine("a", "Hi")}\n`);
const page = "<!doctype html><h1>Hello</h1>";

/** Runs a command that ends with 1, and returns what it says. */
async function run(answer: RequestListener, ...args: readonly string[]) {
  const url = `http://127.0.0.1:${await listening(createServer(answer))}/v1`;
  const { code, stdout, stderr } = await runCommand(args, { BATCHD_URL: url });
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  return stderr.replace(url, "URL");
}

test.each([
  ["POST", "files", ["submit", input]],
  ["GET", "batches?limit=21", ["list"]],
])(
  "a %s that is sent on to another address says so, and does not go there without its key",
  async (asking, path, command) => {
    const asked: string[] = [];
    const answer: RequestListener = ({ method, url }, response) => {
      asked.push(`${method} ${url}`);
      response.writeHead(301, { location: `https://elsewhere.example${url}` }).end();
    };
    expect(await run(answer, ...command)).toBe(
      `batchd: URL sends requests on to https://elsewhere.example/v1/${path}. Name the address there with --url or BATCHD_URL\n`,
    );
    expect(asked).toEqual([`${asking} /v1/${path}`]);
  },
);

const request_counts = { total: 2, completed: 1, failed: 0 };
test.each([
  ["a download", "files download file-1", {}],
  ["a batch that runs", "results batch_1", { status: "in_progress", request_counts, x_batchd: {} }],
  ["a batch that has ended", "results batch_1", { status: "completed", output_file_id: "file-1" }],
])("a page is not written in place of the answers of %s", async (_, command, batch) => {
  const output = join(folder, "page.jsonl");
  const answer: RequestListener = ({ url }, response) => {
    const isBatch = url === "/v1/batches/batch_1";
    const type = isBatch ? "application/json" : "text/html; charset=utf-8";
    response.writeHead(200, { "content-type": type });
    response.end(isBatch ? JSON.stringify({ id: "batch_1", ...batch }) : page);
  };
  expect(await run(answer, ...command.split(" "), "-o", output)).toMatch(
    /^batchd: URL answers with text\/html; charset=utf-8 and not with the content of a file\. Is it/,
  );
  expect(existsSync(output)).toBe(false);
});

test("a request that is too large for a proxy before the server says so", async () => {
  const answer: RequestListener = (request, response) =>
    request.resume().on("end", () => response.writeHead(413).end(page));
  expect(await run(answer, "submit", input)).toMatch(
    /^batchd: 413 .* \(A proxy before the server takes no request of this size\.\)\n$/,
  );
});

test("a connection that ends without an answer is told from a server that is away", async () => {
  expect(await run((_, response) => void response.destroy(), "list")).toMatch(
    /^batchd: URL closed the connection without an answer \(\w+\)\n$/,
  );
});

test("a certificate of an unknown authority is told from a server that is away", async () => {
  const authority = await privateAuthority();
  const server = createTlsServer(await authority.issue({ ip: "127.0.0.1" }));
  const env = { BATCHD_URL: `https://127.0.0.1:${await listening(server)}` };
  const { code, stderr } = await runCommand(["list"], env);
  expect([code, stderr]).toEqual([
    1,
    expect.stringMatching(
      /^batchd: cannot reach https:\S+ \([A-Z_]+\)\. Its certificate is of an unknown authority: NODE_EXTRA_CA_CERTS names/,
    ),
  ]);
});

test("a server without TLS at an address with https is told from one that is away", async () => {
  const port = await listening(createServer((_, response) => void response.end(page)));
  const { code, stderr } = await runCommand(["list"], { BATCHD_URL: `https://127.0.0.1:${port}` });
  expect([code, stderr]).toEqual([
    1,
    `batchd: cannot reach https://127.0.0.1:${port}/v1 (ERR_SSL_WRONG_VERSION_NUMBER). It answers without TLS: http://127.0.0.1:${port}/v1 may be its address\n`,
  ]);
});

test("a proxy that is used may be what is away", async () => {
  const env = { BATCHD_URL: "http://127.0.0.1:2", NODE_USE_ENV_PROXY: "1" };
  const proxied = { ...env, HTTP_PROXY: "http://127.0.0.1:2" };
  for (const [given, advice] of [
    [proxied, "Are the server and the proxy in HTTP_PROXY running? NO_PROXY names servers"],
    [{ ...proxied, NO_PROXY: "localhost,127.0.0.1" }, "Is the server running? --url"],
  ] as const) {
    const { code, stderr } = await runCommand(["list"], given);
    expect([code, stderr]).toEqual([1, expect.stringContaining(`(ECONNREFUSED). ${advice}`)]);
  }
});

test("a connection that fails without a word has a reason all the same", async () => {
  const answer: RequestListener = (_, response) => void response.writeHead(407).end();
  expect(await run(answer, "list")).toMatch(/^batchd: cannot reach URL \(fetch failed\)\. /);
});

test.each([
  [
    "goes on, and how to watch it, if a proxy wants to sign in",
    200,
    "text/html",
    /^batch_1 in_progress.*\nbatch_1 goes on\. To watch it again: batchd watch batch_1; batchd results batch_1 -o .*page\.jsonl\nbatchd: URL answers with text/,
  ],
  [
    "is not there any more",
    404,
    "application/json",
    /^batch_1 in_progress.*\nbatchd: No batch found/,
  ],
])("a wait that ends before its batch says that it %s", async (_, status, type, said) => {
  const error = { type: "invalid_request_error", message: "No batch found with id 'batch_1'." };
  let looks = 0;
  const answer: RequestListener = (request, response) =>
    request.resume().on("end", () => {
      const isLate = request.method === "GET" && ++looks > 1;
      response.writeHead(isLate ? status : 200, {
        "content-type": isLate ? type : "application/json",
      });
      response.end(JSON.stringify(isLate ? { error } : { id: "batch_1", status: "in_progress" }));
    });
  const url = `http://127.0.0.1:${await listening(createServer(answer))}/v1`;
  const env = { BATCHD_URL: url };
  const submitted = await runCommand(["submit", input, "-o", join(folder, "page.jsonl")], env);
  expect(submitted).toMatchObject({ code: 1, stdout: "batch_1\n" });
  expect(submitted.stderr.replace(url, "URL")).toMatch(said);
});

test("a request that came too soon is told from one that a quota refuses", async () => {
  const refusals = [
    [null, "(Try again later.)"],
    ["insufficient_quota", "(Make room, or ask for a higher quota.)"],
  ];
  for (const [code, advice] of refusals) {
    const server = createServer((_, answer) => {
      answer.writeHead(429, { "content-type": "application/json", "x-should-retry": "false" });
      answer.end(JSON.stringify({ error: { message: "No.", code } }));
    });
    const url = `http://127.0.0.1:${await listening(server)}/v1`;
    const { stderr } = await runCommand(["list", "--url", url], {});
    expect(stderr).toContain(`No. ${advice}`);
  }
});
