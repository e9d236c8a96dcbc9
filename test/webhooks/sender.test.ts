import { createServer } from "node:net";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { AddressGuard } from "../../src/resources/address-guard.ts";
import type { Resolve } from "../../src/resources/name-lookup.ts";
import { Sender, signedHeaders } from "../../src/webhooks/sender.ts";
import { listening } from "../support/listening.ts";
import { startReceiver } from "../support/receiver.ts";

const setting = "webhooks.allow_private_hosts";

const client = new OpenAI({ apiKey: "not needed" });

const message = (url: string, secret = "a secret") =>
  ({
    url,
    secret,
    webhookId: "wh_test_0001",
    event: {
      object: "event",
      id: "evt_0001",
      type: "batch.completed",
      created_at: 1_750_287_018,
      data: {
        id: "batch_abc123",
        x_batchd: { request_counts: { total: 3, completed: 2, failed: 1 } },
      },
    },
  }) as const;

const never = new AbortController().signal;

test("the signature is the one of the published example", () => {
  expect(
    signedHeaders({
      secret: "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
      webhookId: "wh_test_0001",
      body: JSON.stringify({ ...message("").event, data: { id: "batch_abc123" } }),
      nowMs: 1_750_287_078_999,
    }),
  ).toEqual({
    "webhook-id": "wh_test_0001",
    "webhook-timestamp": "1750287078",
    "webhook-signature": "v1,J5UOO7c8/eSSw5ktD1VuM/UdOYe5G1oQXODPfK3WJvQ=",
  });
});

test.each([
  "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
  "a plain secret",
  "c2VjcmV0",
  "geheim-äöü-🔑",
])("the official client accepts what is signed with %s", async (secret) => {
  await using receiver = await startReceiver();
  const sender = new Sender({
    guard: new AddressGuard(["127.0.0.1"], { setting }),
    clock: systemClock,
  });
  expect(await sender.send(message(receiver.url, secret), never)).toEqual({ kind: "delivered" });
  await sender.close();

  const [{ body, headers }] = receiver.seen as [(typeof receiver.seen)[0]];
  await client.webhooks.verifySignature(body, headers, secret);
  await expect(client.webhooks.verifySignature(body, headers, `x${secret}`)).rejects.toThrow();
});

test("each connection goes to the very address that was checked", async () => {
  await using receiver = await startReceiver({ host: "0.0.0.0" });
  const answers = ["127.0.0.2", "127.0.0.1", "127.0.0.2"];
  let lookupCount = 0;
  const resolve: Resolve = (_host, _options, callback) =>
    callback(null, [{ address: answers[lookupCount++]!, family: 4 }]);
  // Here 127.0.0.2 stands for a public address: the name leads to it first and then to a private one.
  const guard = new AddressGuard(["127.0.0.2"], { setting, resolve });
  const sender = new Sender({ guard, clock: systemClock });
  const url = `http://hook.example:${receiver.port}/hook`;
  const sendings = [];
  for (const _ of answers) sendings.push(await sender.send(message(url), never));
  await sender.close();

  expect(sendings).toEqual([
    { kind: "delivered" },
    { kind: "failed", reason: expect.stringContaining("127.0.0.1 (loopback)") },
    { kind: "delivered" },
  ]);
  expect(lookupCount).toBe(3);
  expect(receiver.seen.map(({ address }) => address)).toEqual(["127.0.0.2", "127.0.0.2"]);
  expect(receiver.connectionCount).toBe(2);
});

test("a name that does not exist is a failed attempt, with its reason", async () => {
  const resolve: Resolve = (host, _options, callback) =>
    callback(Object.assign(new Error(`getaddrinfo ENOTFOUND ${host}`), { code: "ENOTFOUND" }), []);
  const sender = new Sender({
    guard: new AddressGuard([], { setting, resolve }),
    clock: systemClock,
  });
  expect(await sender.send(message("https://nowhere.example/hook"), never)).toEqual({
    kind: "failed",
    reason: "getaddrinfo ENOTFOUND nowhere.example",
  });
  await sender.close();
});

test("an interrupted attempt is not a failed one", async () => {
  await using receiver = await startReceiver();
  receiver.reactNext("hang");
  const sender = new Sender({
    guard: new AddressGuard(["127.0.0.1"], { setting }),
    clock: systemClock,
  });
  const interrupt = new AbortController();
  const sending = sender.send(message(receiver.url), interrupt.signal);
  await receiver.reached(1);
  interrupt.abort();

  expect(await sending).toEqual({ kind: "interrupted" });
  await sender.close();
});

test("a receiver that floods the sender with interim answers fails at once, and a few of them do no harm", async () => {
  const interim = "HTTP/1.1 102 Processing\r\n\r\n";
  const server = createServer((socket) => {
    const flood = () => {
      while (!socket.destroyed && socket.write(interim.repeat(1_000)));
    };
    socket.once("data", (asked) => {
      if (asked.toString().startsWith("POST /flood")) {
        socket.on("drain", flood);
        flood();
      } else socket.end(`${interim.repeat(3)}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n`);
    });
  });
  const url = `http://127.0.0.1:${await listening(server)}`;
  const sender = new Sender({
    guard: new AddressGuard(["127.0.0.1"], { setting }),
    clock: systemClock,
  });
  expect(await sender.send(message(`${url}/flood`), never)).toEqual({
    kind: "failed",
    reason: expect.stringContaining("UND_ERR_HEADERS_OVERFLOW"),
  });
  expect(await sender.send(message(`${url}/few`), never)).toEqual({ kind: "delivered" });
  await sender.close();
});
