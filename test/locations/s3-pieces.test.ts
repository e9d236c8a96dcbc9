import { createServer, type ServerResponse } from "node:http";
import { createServer as createNetServer } from "node:net";
import { buffer } from "node:stream/consumers";
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { S3Location } from "../../src/locations/s3/s3.ts";
import { listening } from "../support/listening.ts";
import { aCall, pathOf } from "../support/parcels.ts";

const BYTES = 1_000_000;

const openAt = (port: number) =>
  new S3Location({
    name: "theirs",
    bucket: "b",
    prefix: "",
    region: "us-east-1",
    endpoint: `http://127.0.0.1:${port}`,
    forcePathStyle: true,
    credentials: { accessKeyId: "a", secretAccessKey: "b" },
    sendsChecksums: true,
    timeoutMs: 30_000,
    clock: systemClock,
  }).open(pathOf("in.jsonl"), aCall());

const HEAD = { etag: '"a"', "content-range": `bytes 0-${BYTES - 1}/${BYTES}` };

test("an object whose bucket sends each byte by itself is given up, as each read of it would block the event loop", async () => {
  const server = createNetServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (asked) => {
      if (asked.toString().startsWith("HEAD")) {
        socket.write(`HTTP/1.1 200 OK\r\ncontent-length: ${BYTES}\r\netag: "a"\r\n\r\n`);
        return;
      }
      const head = `transfer-encoding: chunked\r\netag: "a"\r\ncontent-range: ${HEAD["content-range"]}`;
      socket.write(`HTTP/1.1 206 Partial\r\n${head}\r\n\r\n${"1\r\nx\r\n".repeat(BYTES)}0\r\n\r\n`);
    });
  });
  await using file = await openAt(await listening(server));
  await expect(buffer(file.content)).rejects.toMatchObject({
    failure: "unavailable",
    message: expect.stringContaining("ERR_TINY_PIECES"),
  });
});

test("an object whose bucket sends it in chunks of a kilobyte is read", async () => {
  const piece = Buffer.alloc(1_000, "x");
  const send = (answer: ServerResponse) => {
    for (let sent = 0; sent < BYTES; sent += piece.length) answer.write(piece);
    answer.end();
  };
  const server = createServer((asked, answer) => {
    if (asked.method === "HEAD") answer.writeHead(200, { ...HEAD, "content-length": BYTES }).end();
    else send(answer.writeHead(206, HEAD));
  });
  await using file = await openAt(await listening(server));
  expect(await buffer(file.content)).toHaveLength(BYTES);
});
