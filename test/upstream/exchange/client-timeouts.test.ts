import { createServer, type ServerResponse } from "node:http";
import { createServer as createTcpServer } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { type ClientSettings, clientOf, send } from "../../support/client.ts";
import { listening } from "../../support/listening.ts";

const body = Buffer.from('{"model":"m"}');

async function setUp(settings: ClientSettings, answer: (response: ServerResponse) => void) {
  const port = await listening(createServer((_, response) => answer(response)));
  const client = clientOf(`http://127.0.0.1:${port}/v1`, settings);
  onTestFinished(() => client.close());
  return client;
}

const sayNothing = () => {};
const stopAfterHeaders = (response: ServerResponse) => response.writeHead(200).flushHeaders();
const stopInTheMiddle = (response: ServerResponse) => response.writeHead(200).write('{"half":');

test("an answer that does not begin is given up after the time for its first byte", async () => {
  const client = await setUp({ first_byte_timeout_seconds: 0.05 }, sayNothing);
  const outcome = { kind: "timed_out", afterMs: 50, waitingFor: "first_byte" };
  expect(await send(client, { body })).toEqual(outcome);
});

test("an informational answer is not its first byte", async () => {
  const client = await setUp({ first_byte_timeout_seconds: 0.05 }, (response) =>
    response.writeProcessing(),
  );
  expect(await send(client, { body })).toMatchObject({ waitingFor: "first_byte" });
});

test.each([
  ["its headers", stopAfterHeaders],
  ["a piece of it", stopInTheMiddle],
])("an answer that stops after %s is given up when nothing more came", async (_, answer) => {
  const client = await setUp({ idle_timeout_seconds: 0.05 }, answer);
  expect(await send(client, { body })).toEqual({
    kind: "timed_out",
    afterMs: 50,
    waitingFor: "more",
  });
});

test("the time for the whole answer counts whatever the others are", async () => {
  const settings = {
    // The connection counts too, and takes some time on a busy machine.
    timeout_seconds: 0.8,
    first_byte_timeout_seconds: 30,
    idle_timeout_seconds: 30,
  };
  const answers = [sayNothing, stopAfterHeaders, stopInTheMiddle];
  const clients = await Promise.all(answers.map((answer) => setUp(settings, answer)));
  const outcomes = await Promise.all(clients.map((client) => send(client, { body })));
  expect(outcomes).toEqual(answers.map(() => ({ kind: "timed_out", afterMs: 800 })));
});

test("a connection that is not made in time is no connection, and its target saw nothing", async () => {
  // It accepts, and never speaks TLS.
  const port = await listening(createTcpServer());
  const client = clientOf(`https://127.0.0.1:${port}/v1`, { connect_timeout_seconds: 0.05 });
  onTestFinished(() => client.close());
  expect(await send(client, { body })).toEqual({
    kind: "unreachable",
    detail: "no connection in time",
  });
});

test("an attempt that was given up frees its connection for the next one", async () => {
  let count = 0;
  const client = await setUp(
    { first_byte_timeout_seconds: 0.2, max_concurrency: 1 },
    (response) => {
      if (++count > 3) response.end("{}");
    },
  );
  for (let i = 0; i < 3; i++) expect(await send(client, { body })).toMatchObject({ afterMs: 200 });
  expect(await send(client, { body })).toMatchObject({ kind: "answered" });
});
