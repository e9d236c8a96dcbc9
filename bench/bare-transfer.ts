/**
 * The floor of uploads and downloads, in a process of its own. `POST` takes a body, hashes it, writes it and syncs it.
 * `GET` sends a file. It has no form, no rows and no projects, so it costs only what the kernel and Node cost any
 * server.
 *
 * Arguments: the folder for uploads, and the file to send.
 */
import { createHash } from "node:crypto";
import { createReadStream, statSync } from "node:fs";
import { open, rm } from "node:fs/promises";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { pipeline } from "node:stream/promises";

const [folder = "", path = ""] = process.argv.slice(2);
const READ_BYTES = 1024 * 1024;

async function receive(request: IncomingMessage): Promise<void> {
  const hash = createHash("sha256");
  const file = await open(`${folder}/received`, "w");
  for await (const piece of request) {
    hash.update(piece as Buffer);
    await file.write(piece as Buffer);
  }
  hash.digest();
  await file.sync();
  await file.close();
  await rm(`${folder}/received`);
}

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === "POST") {
    await receive(request);
    response.end('{"id":"received"}');
    return;
  }
  response.writeHead(200, { "content-length": statSync(path).size });
  await pipeline(createReadStream(path, { highWaterMark: READ_BYTES }), response);
}

const server = createServer((request, response) => void serve(request, response));
server.listen(0, "127.0.0.1", () => {
  const { port } = server.address() as AddressInfo;
  process.stdout.write(`listening on http://127.0.0.1:${port}\n`);
});
