/** Whatever comes over the wire, an exchange ends with an outcome, in words that anybody may read. */
import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { text } from "node:stream/consumers";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { Outcome } from "../../../src/batch/outcome.ts";
import { clientOf, exchangeOf, never, send } from "../../support/client.ts";
import { seededRandom } from "../../support/seeded-random.ts";
import { chatLines, startTestService } from "../../support/service.ts";

const GOOD_BODY = '{"id":"a","usage":{"total_tokens":3}}';
const GOOD = `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${GOOD_BODY.length}\r\n\r\n${GOOD_BODY}`;
const CONTINUE = "HTTP/1.1 100 Continue\r\n\r\n";

/** Answers each request on a connection with the pieces of the moment. */
let pieces: readonly (string | Buffer | "RESET" | "END")[] = [GOOD];
let server: Server;
let url = "";

beforeAll(async () => {
  server = createServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (request) => {
      // The head of a request, and not the rest of a long body.
      if (request.includes("POST /")) void answer(socket);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  url = `http://127.0.0.1:${(server.address() as { port: number }).port}/v1`;
});
afterAll(() => server.close());

async function answer(socket: Socket): Promise<void> {
  for (const piece of pieces) {
    if (piece === "RESET") socket.resetAndDestroy();
    else if (piece === "END") socket.end();
    else socket.write(piece);
    // As a packet of its own.
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function open(settings: object = {}) {
  const client = clientOf(url, { timeout_seconds: 2, idle_timeout_seconds: 0.5, ...settings });
  onTestFinished(() => client.close());
  return client;
}

const BODY = Buffer.from('{"model":"m"}');

async function outcomeOf(given: typeof pieces, client = open()): Promise<Outcome> {
  pieces = given;
  return send(client, { body: BODY });
}

test("a request id of kilobytes is cut, because each row of the results has it", async () => {
  const long = GOOD.replace("\r\n", `\r\nx-request-id: ${"x".repeat(15_000)}\r\n`);
  expect(await outcomeOf([long])).toMatchObject({
    kind: "answered",
    requestId: `${"x".repeat(200)}…`,
  });
});

test("an empty request id is none, so that each row has one of its own", async () => {
  pieces = [GOOD.replace("\r\n", "\r\nx-request-id: \r\n")];
  await using service = await startTestService({ upstreamUrl: url });

  const batch = await service.run(chatLines(2));

  const rows = await service.rows(batch.output_file_id);
  const ids = rows.map(({ response }) => response?.request_id);
  expect(ids).toEqual([
    expect.stringMatching(/^[0-9a-f]{32}$/),
    expect.stringMatching(/^[0-9a-f]{32}$/),
  ]);
  expect(new Set(ids).size).toBe(2);
});

test("an answer to a line is whole if its JSON is, although the connection is reset behind it", async () => {
  const head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
  expect(await outcomeOf([head + GOOD_BODY, "RESET"])).toMatchObject({ kind: "answered" });
  expect(await outcomeOf([head + GOOD_BODY.slice(0, -1), "RESET"])).toMatchObject({
    kind: "broken",
  });
});

test("a charset in the place of a compression is no reason to refuse an answer", async () => {
  pieces = [GOOD.replace("\r\n", "\r\nContent-Encoding: UTF-8\r\n")];
  await using service = await startTestService({ upstreamUrl: url });

  const answer = await fetch(`${service.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: '{"model":"m","messages":[]}',
  });
  expect(await answer.text()).toBe(GOOD_BODY);
  expect(answer.headers.has("content-encoding")).toBe(false);

  const batch = await service.run(chatLines(2));
  expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
});

describe("interim answers that were not asked for do not touch the answer", () => {
  test.each<[string, typeof pieces]>([
    ["100 before it", [CONTINUE, GOOD]],
    ["100 with it", [CONTINUE + GOOD]],
    ["100 with it, without carriage returns", [`HTTP/1.1 100 Continue\n\n${GOOD}`]],
    ["100 in pieces", ["HTT", "P/1.1 100 Con", "tinue\r\nx-a: b\r\n", "\r", "\n", GOOD]],
    ["100 twice, and of HTTP/1.0", [CONTINUE, "HTTP/1.0 100 \r\n\r\n", GOOD]],
    [
      "102 and 103",
      ["HTTP/1.1 102 Processing\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", GOOD],
    ],
    ["all of them", [`${CONTINUE}HTTP/1.1 103 Early Hints\r\n\r\n`, GOOD]],
    ["100 behind 103", ["HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", CONTINUE, GOOD]],
    [
      "100 with 103, in pieces",
      ["HTTP/1.1 1", `03 Early Hints\r\n\r\n${CONTINUE.slice(0, 9)}`, CONTINUE.slice(9) + GOOD],
    ],
    ["a head in pieces", ["H", "TTP/1.1 2", GOOD.slice(10)]],
  ])("%s", async (_name, given) => {
    const client = open();
    for (let i = 0; i < 3; i++) {
      const outcome = await outcomeOf(given, client);
      expect(outcome).toMatchObject({ kind: "answered", status: 200 });
      expect((outcome as { body: Buffer }).body.toString()).toBe(GOOD_BODY);
    }
  });

  test("nor are the same words taken out of a body", async () => {
    const body = JSON.stringify({ text: CONTINUE });
    const head = `HTTP/1.1 200 OK\r\ncontent-length: ${body.length}\r\n\r\n`;
    const at = body.indexOf("HTTP");
    const outcome = await outcomeOf([head, body.slice(0, at), body.slice(at)]);
    expect((outcome as { body: Buffer }).body.toString()).toBe(body);
  });

  test("a batch is answered by a server that sends 100 every time", async () => {
    pieces = [CONTINUE, GOOD];
    await using service = await startTestService({ upstreamUrl: url });
    const batch = await service.run(chatLines(20));
    expect(batch.request_counts).toEqual({ total: 20, completed: 20, failed: 0 });
  });
});

describe("an answer that was not asked for is not the answer to the next request", () => {
  const answerWith = (body: string) => `HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n${body}`;
  const bodiesOf = async (client: ReturnType<typeof open>, given: readonly (typeof pieces)[]) => {
    const bodies: string[] = [];
    for (const each of given) {
      const outcome = await outcomeOf(each, client);
      bodies.push(outcome.kind === "answered" ? outcome.body.toString() : outcome.kind);
    }
    return bodies;
  };

  test("when it comes behind the first one", async () => {
    const client = open();
    const given = [[answerWith('"1"') + answerWith('"0"')], [answerWith('"2"')]];
    expect(await bodiesOf(client, given)).toEqual(['"1"', '"2"']);
  });

  test("when it comes once the next request was sent, without keep_alive", async () => {
    const client = open({ keep_alive: false });
    const answerAgain = (socket: Socket) => {
      let requestCount = 0;
      socket.on("data", () => {
        if (++requestCount > 1) socket.write(answerWith('"0"'));
      });
    };
    server.prependListener("connection", answerAgain);
    onTestFinished(() => void server.off("connection", answerAgain));
    const bodies = ['"1"', '"2"', '"3"'];
    const given = bodies.map((body) => [answerWith(body)]);
    expect(await bodiesOf(client, given)).toEqual(bodies);
  });
});

describe("is no answer, in words of ours", () => {
  test.each<[string, typeof pieces, string]>([
    ["status 099", ["HTTP/1.1 099 Odd\r\ncontent-length: 2\r\n\r\n{}"], "the answer is not HTTP"],
    [
      "status 999",
      ["HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}"],
      "status 999, which HTTP does not have",
    ],
    [
      "status 600",
      ["HTTP/1.1 600 Odd\r\ncontent-length: 2\r\n\r\n{}"],
      "status 600, which HTTP does not have",
    ],
    ["no status", ["HTTP/1.1 abc\r\n\r\n"], "the answer is not HTTP"],
    ["a lone CR", ["HTTP/1.1 200 OK\rcontent-length: 2\r\n\r\n{}"], "the answer is not HTTP"],
    [
      "a bad chunk size",
      ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n"],
      "the answer is not HTTP",
    ],
    [
      "two lengths",
      ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"],
      "not as long as it announced",
    ],
    [
      "a header with a control character, behind the length",
      ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: \x01\r\n\r\n{}"],
      "the answer is not HTTP",
    ],
    [
      "a flood of headers",
      [`HTTP/1.1 200 OK\r\n${"x-a: bbbbbbbbbb\r\n".repeat(5_000)}\r\n{}`],
      "the headers of the answer are too long",
    ],
    [
      "a change of protocol",
      ["HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
      "connection closed before the answer was complete",
    ],
    [
      "gzip",
      ["HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"],
      "an answer that is compressed, although none was asked to be",
    ],
  ])("%s", async (_name, given, detail) => {
    const outcome = await outcomeOf(given);
    expect(outcome).toMatchObject({ kind: "broken", detail: expect.stringContaining(detail) });
    pieces = given;
    const result = await open().proxy(exchangeOf(open(), { body: BODY }), never);
    // What has begun well breaks off.
    if (result.kind === "proxied") await expect(text(result.body)).rejects.toThrow(detail);
    else expect(result).toMatchObject({ kind: "broken", detail: expect.stringContaining(detail) });
  });

  test("a compressed bomb is never unpacked", async () => {
    const bomb = gzipSync(Buffer.alloc(50_000_000));
    const head = `HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: ${bomb.length}\r\n\r\n`;
    expect(await outcomeOf([head, bomb])).toMatchObject({ kind: "broken" });
  });
});

const HEADS = [
  "HTTP/1.1 200 OK\r\n",
  "HTTP/1.1 099 X\r\n",
  "HTTP/1.1 204 No\r\n",
  "HTTP/1.1 999 X\r\n",
  "HTTP/1.0 200 OK\r\n",
  "HTTP/2 200\r\n",
  CONTINUE,
  "HTTP/1.1 103 Hints\r\n\r\n",
  "HTTP/1.1 404\r\n",
  "\r\n",
  "\0\0",
  "",
];
const HEADERS = [
  "content-length: 2\r\n",
  "content-length: 99\r\n",
  "content-length: -1\r\n",
  "transfer-encoding: chunked\r\n",
  "connection: close\r\n",
  "x: \x01\r\n",
  ": y\r\n",
  "content-type: text/html\r\n",
  "retry-after: x\r\n",
  " folded\r\n",
  "set-cookie: a\rb\r\n",
];
const BODIES = [
  "\r\n{}",
  "\r\n2\r\n{}\r\n0\r\n\r\n",
  "\r\nffffffffff\r\n{}",
  "\r\n",
  "\r\n{}{}{}",
  "\r\n0\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
  "RESET",
  "END",
];

test("500 answers of garbage end with an outcome each, and the connection after them is good", async () => {
  const random = seededRandom(4711);
  const pick = <T>(from: readonly T[]) => from[Math.floor(random() * from.length)] as T;
  const client = open({ idle_timeout_seconds: 0.05, timeout_seconds: 0.3 });
  const unhandled: unknown[] = [];
  const note = (error: unknown) => unhandled.push(error);
  process.on("uncaughtException", note);
  onTestFinished(() => void process.off("uncaughtException", note));
  for (let i = 0; i < 500; i++) {
    const headers = Array.from({ length: Math.floor(random() * 4) }, () => pick(HEADERS));
    pieces = [
      pick(HEADS),
      headers.join(""),
      pick(BODIES),
      ...(random() < 0.5 ? ["END" as const] : []),
    ];
    const outcome = await send(client, { body: BODY });
    const shown = "body" in outcome ? "" : JSON.stringify(outcome);
    expect(shown, JSON.stringify(pieces)).not.toMatch(
      /assert|expression|undici|\bat \w+ \(|node:|Error\b/i,
    );
    if (i % 5 > 0) continue;
    const result = await client.proxy(exchangeOf(client, { body: BODY }), never);
    if (result.kind === "proxied") await text(result.body).catch(() => {});
  }
  expect(unhandled).toEqual([]);
  pieces = [GOOD];
  const after = await Promise.all([1, 2, 3].map(() => send(client, { body: BODY })));
  expect(after.some(({ kind }) => kind === "answered")).toBe(true);
});
