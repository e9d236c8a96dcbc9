/** Commands whose requests are carried out, and whose answers are lost on the way. */
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { listening } from "../support/listening.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const folder = temporaryFolder("batchd-lost-answers-");
const input = join(folder.path, "sent-once.jsonl");
let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  writeFileSync(input, `${chatLine("a", "Hi")}\n`);
  upstream = await startUpstream();
  service = await startTestService({ upstreamUrl: upstream.url });
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  folder[Symbol.dispose]();
});

/** Passes a request on to the service, and resolves to the answer. */
async function passOn(asked: IncomingMessage): Promise<IncomingMessage> {
  const { method, url: path, headers } = asked;
  const sent = request(service.url, { method, path, headers });
  const answered = once(sent, "response") as Promise<[IncomingMessage]>;
  await pipeline(asked, sent);
  return (await answered)[0];
}

type Answer = (asked: IncomingMessage, answer: ServerResponse) => Promise<unknown>;

const pass: Answer = async (asked, answer) => {
  const passed = await passOn(asked);
  answer.writeHead(passed.statusCode ?? 0, passed.headers);
  await pipeline(passed, answer);
};

const lose: Answer = async (asked, answer) => {
  (await passOn(asked)).resume();
  answer.destroy();
};

/** Answers as a server does that was started again, while it keeps the key of a request that died with it. */
const inUse: Answer = async (asked, answer) => {
  await once(asked.resume(), "end");
  answer.writeHead(409, { "content-type": "application/json", "retry-after-ms": "1" });
  const error = { message: "It is being carried out.", code: "idempotency_key_in_use" };
  answer.end(JSON.stringify({ error }));
};

test("an upload whose answer is lost is stored once, however long its first request takes to end", async () => {
  const answers = [lose, ...Array<Answer>(4).fill(inUse)];
  const server = createServer((asked, answer) => {
    (answers.shift() ?? pass)(asked, answer).catch(() => answer.destroy());
  });
  const env = { BATCHD_URL: `http://127.0.0.1:${await listening(server)}/v1` };
  const up = await runCommand(["files", "upload", input], env);
  expect(up).toMatchObject({ code: 0, stderr: "" });
  expect(answers).toEqual([]);
  const { data } = await service.openai.files.list();
  expect(data.map(({ id, filename }) => [id, filename])).toEqual([
    [up.stdout.trim(), "sent-once.jsonl"],
  ]);
});

test("a retry whose answer is lost says that its batch may have been made", async () => {
  const { id } = await service.run([chatLine("a", "Hi")]);
  const server = createServer((asked, answer) => {
    const losing = asked.method === "POST" ? lose : pass;
    losing(asked, answer).catch(() => answer.destroy());
  });
  const url = `http://127.0.0.1:${await listening(server)}/v1`;
  const retry = ["retry", id, "--lines", "all", "--url", url];
  const { code, stdout, stderr } = await runCommand(retry, {});
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  expect(stderr).toContain(
    `batchd: a batch may have been made, which batchd list --url ${url} shows\n`,
  );
  const { data } = await service.openai.batches.list();
  expect(data).toHaveLength(2);
});

const badGateway: Answer = async (asked, answer) => {
  (await passOn(asked)).resume();
  answer.writeHead(502, { "retry-after-ms": "1" }).end("<h1>Bad gateway</h1>");
};

const refuse: Answer = async (_, answer) => {
  answer.writeHead(429, { "content-type": "application/json", "retry-after-ms": "1" });
  answer.end(JSON.stringify({ error: { message: "Too many requests." } }));
};

/** Runs a deletion whose first answers are these, and the others those of the service. */
async function deletion(words: readonly string[], ...answers: Answer[]) {
  const server = createServer((asked, answer) => {
    (answers.shift() ?? pass)(asked, answer).catch(() => answer.destroy());
  });
  const url = `http://127.0.0.1:${await listening(server)}/v1`;
  return runCommand([...words, "--yes", "--json", "--url", url], {});
}

test.each([
  ["is cut off", lose],
  ["a proxy loses", badGateway],
])("a deletion whose answer %s is done", async (_, losing) => {
  const { id, input_file_id: input } = await service.run([chatLine("a", "Hi")]);
  for (const [words, object] of [
    [["files", "delete", input], { object: "file", id: input, deleted: true }],
    [["delete", id], { object: "batch", id, deleted: true }],
  ] as const) {
    const { code, stdout, stderr } = await deletion(words, losing);
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    expect(JSON.parse(stdout)).toEqual(object);
  }
  const { data } = await service.openai.batches.list();
  expect(data.map((batch) => batch.id)).not.toContain(id);
});

test("a deletion that was refused and then finds nothing says that nothing is there", async () => {
  const { code, stdout, stderr } = await deletion(["delete", "batch_mistyped"], refuse);
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  expect(stderr).toContain("No batch found with id 'batch_mistyped'");
});
