/** Requests whose bodies are held back while their key is revoked. */
import { once } from "node:events";
import { connect } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ask, post } from "../support/projects.ts";
import { startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const admin = "key-admin";

let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  upstream = await startUpstream();
  const keys = [{ name: "operator", key: admin, scopes: ["admin"] }];
  service = await startTestService({ upstreamUrl: upstream.url, config: { auth: { keys } } });
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
});

/** Sends a request without the last byte of its body, once the server has asked for the body. Returns how to end it. */
async function held(path: string, key: string, body: object): Promise<() => Promise<string>> {
  const { hostname, port } = new URL(service.url);
  const socket = connect(Number(port), hostname).setEncoding("utf8");
  const text = JSON.stringify(body);
  socket.write(
    `POST /v1/${path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${key}\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: ${text.length}\r\n\r\n`,
  );
  await once(socket, "data");
  socket.write(text.slice(0, -1));
  return async () => {
    socket.write(text.slice(-1));
    return (await socket.toArray()).join("");
  };
}

test("a request whose body comes after its key was revoked does nothing", async () => {
  const made = await post(
    service.url,
    "admin/keys",
    { name: "gone", scopes: ["admin", "write", "interactive"] },
    admin,
  );
  const { id, key } = made.body as unknown as { id: string; key: string };
  const before = upstream.seen.length;
  const input = { input_file_id: "file-x", endpoint: "/v1/chat/completions" };
  const chat = { model: "a", messages: [] };
  const ends = [
    await held("admin/keys", key, { name: "minted", scopes: ["admin"] }),
    await held("admin/projects", key, { name: "minted" }),
    await held("batches", key, input),
    await held("chat/completions", key, chat),
  ];
  expect((await ask(service.url, "models", {}, key)).status).toBe(200);
  expect((await ask(service.url, `admin/keys/${id}`, { method: "DELETE" }, admin)).status).toBe(
    200,
  );
  for (const end of ends) expect(await end()).toMatch(/^HTTP\/1.1 401 /);
  expect((await ask(service.url, "admin/keys", {}, admin)).body.data).toEqual([]);
  expect((await ask(service.url, "admin/projects", {}, admin)).body.data).toEqual([]);
  expect(upstream.seen).toHaveLength(before);
});
