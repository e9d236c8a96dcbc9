/** The events of open pages: what they cost, and whom they may hold up. */
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { IncomingMessage } from "node:http";
import { connect, type Socket } from "node:net";
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import type { ErrorEnvelope } from "../../src/contract/error.ts";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import { StoreUnavailable } from "../../src/store/failures.ts";
import type { Store } from "../../src/store/store.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestService } from "../support/service.ts";
import { signIn } from "../support/sign-in.ts";

const MAX_OF_PROJECT = 75;
const SILENCE_MS = 300_000;
/** What has passed for everything that measures time, without its timers. */
let passedMs = 0;
const opened: AbortController[] = [];

const keys = ["a", "b", "c"].map((name) => ({ name, key: `key-of-${name}`, project: name }));
const elapsedMs = () => systemClock.elapsedMs() + passedMs;
const clock = { ...systemClock, elapsedMs };
// Nothing listens there, so a batch waits.
const upstreams = [{ name: "down", base_url: "http://127.0.0.1:9/v1", models: ["m"] }];
const service = forAllTests(
  await startTestService({ config: { auth: { keys }, upstreams }, clock }),
);

const cookieOf = (name: string) => signIn(service.url, `key-of-${name}`);

async function open(cookie: string, query = ""): Promise<Response> {
  const controller = new AbortController();
  opened.push(controller);
  const headers = { cookie, "sec-fetch-site": "same-origin" };
  return fetch(`${service.url}/web/live${query}`, { headers, signal: controller.signal });
}

const statuses = (answers: readonly Response[]) => answers.map(({ status }) => status);

async function pollsSoFar(route = "/v1/batches"): Promise<number> {
  const text = await (await fetch(`${service.url}/metrics`)).text();
  const lines = text
    .split("\n")
    .filter(
      (line) => line.startsWith("batchd_http_requests_total{") && line.includes(`route="${route}"`),
    );
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

test("a project has a part of the streams, and the other projects keep theirs", async () => {
  const [a, b] = [await cookieOf("a"), await cookieOf("b")];
  const first = await Promise.all(Array.from({ length: MAX_OF_PROJECT }, () => open(a)));
  expect(new Set(statuses(first))).toEqual(new Set([200]));
  expect(statuses([await open(a), await open(b)])).toEqual([503, 200]);

  // All of them share one poll for each project.
  const readers = [first[0]!, first.at(-1)!].map((answer) => answer.body!.getReader());
  for (const reader of readers) expect((await reader.read()).done).toBe(false);
  const polls = await pollsSoFar();
  expect(polls).toBeGreaterThan(0);
  expect(polls).toBeLessThan(MAX_OF_PROJECT);

  for (const controller of opened.splice(0)) controller.abort();
  await expect.poll(async () => (await open(a)).status).toBe(200);
  for (const controller of opened.splice(0)) controller.abort();
});

test("pages of one batch share one poll", async () => {
  const id = await batchOf([{ custom_id: "a", model: "m" }]);
  const cookie = await cookieOf("a");
  const pages = await Promise.all(Array.from({ length: 50 }, () => open(cookie, `/batches/${id}`)));
  expect(new Set(statuses(pages))).toEqual(new Set([200]));
  for (const page of pages) {
    expect((await page.body!.getReader().read()).done).toBe(false);
  }
  const polls = await pollsSoFar("/v1/batches/:id");
  expect(polls).toBeGreaterThan(0);
  expect(polls).toBeLessThan(50);
  for (const controller of opened.splice(0)) controller.abort();
});

test("a page whose last elements are long gets all of them, and hears that nothing follows", async () => {
  // Each sign takes six characters in HTML.
  const model = "&".repeat(250);
  const lines = Array.from({ length: 100 }, (_, n) => ({ custom_id: `line-${n}`, model }));
  const id = await batchOf(lines);
  await service.events.reached("batch.failed", { batch: id });
  const text = await (await open(await cookieOf("a"), `/batches/${id}`)).text();
  expect(text.length).toBeGreaterThan(100_000);
  expect(text).toMatch(/event: parts\ndata: \{.*\}\n\nevent: over\ndata: \{\}\n\n$/);
});

/** Creates a batch of the project a. */
async function batchOf(
  lines: readonly { readonly custom_id: string; readonly model: string }[],
): Promise<string> {
  const headers = { authorization: "Bearer key-of-a" };
  const post = async (path: string, body: FormData | string) => {
    const answer = await fetch(service.url + path, { method: "POST", body, headers });
    return ((await answer.json()) as { id: string }).id;
  };
  const form = new FormData();
  form.set("purpose", "batch");
  const text = lines
    .map(({ custom_id, model }) =>
      JSON.stringify({ custom_id, method: "POST", url: "/v1/embeddings", body: { model } }),
    )
    .join("\n");
  form.set("file", new File([text], "a.jsonl"));
  const input_file_id = await post("/v1/files", form);
  const request = { input_file_id, endpoint: "/v1/embeddings", completion_window: "24h" };
  return post("/v1/batches", JSON.stringify(request));
}

test("the headers of a stream can be asked for alone, and the connection stays", async () => {
  const cookie = await cookieOf("a");
  const { hostname, port } = new URL(service.url);
  const client = connect(Number(port), hostname);
  const heads = `HEAD /web/live HTTP/1.1\r\nhost: a\r\ncookie: ${cookie}\r\nsec-fetch-site: same-origin\r\n\r\n`;
  client.write(heads.repeat(2));
  let text = "";
  for await (const bytes of client) {
    text += String(bytes);
    if (text.split("\r\n\r\n").length > 2) break;
  }
  expect(text.match(/^content-type: text\/event-stream/gm)).toHaveLength(2);
});

test("a browser that never reads keeps its place neither behind a full connection nor for long", async () => {
  // The streams of the other tests may have ended here and not yet at the server.
  const cookie = await cookieOf("c");
  const sockets = new Set<Socket>();
  const onRequest = (message: unknown) => {
    const { request } = message as { readonly request: IncomingMessage };
    if (request.url === "/web/live") sockets.add(request.socket);
  };
  subscribe("http.server.request.start", onRequest);
  const { hostname, port } = new URL(service.url);
  const clients = Array.from({ length: MAX_OF_PROJECT }, () => {
    const client = connect(Number(port), hostname);
    client.write(
      `GET /web/live HTTP/1.1\r\nhost: a\r\ncookie: ${cookie}\r\nsec-fetch-site: same-origin\r\n\r\n`,
    );
    // It is never read from.
    return client.on("error", () => {}).pause();
  });
  const status = async () => {
    const answer = await open(cookie);
    await answer.body?.cancel();
    return answer.status;
  };
  // Another request would take the place of one that has no answer yet.
  const answered = () => [...sockets].filter(({ bytesWritten }) => bytesWritten > 0);
  await expect.poll(() => answered().length).toBe(MAX_OF_PROJECT);
  unsubscribe("http.server.request.start", onRequest);
  await expect.poll(status).toBe(503);
  for (const socket of sockets) expect(socket.timeout).toBe(SILENCE_MS);
  passedMs += 16 * 60_000;
  await expect.poll(status).toBe(200);
  for (const client of clients) client.destroy();
});

/** A server whose keys cannot be read once `leave` is called, and the session of a key that was made at run time. */
async function startWhereKeysGo() {
  let isAway = false;
  const server = await startTestService({
    config: {
      auth: { keys: [{ name: "operator", key: "key-of-the-operator", scopes: ["admin"] }] },
    },
    openStorage: async (config, deps) => {
      const opened = await openStorage(config, deps);
      if (!opened.ok) return opened;
      const findKeysInForce: Store["findKeysInForce"] = async (mark) => {
        if (isAway) throw new StoreUnavailable(new Error("away"));
        return opened.store.findKeysInForce(mark);
      };
      return { ...opened, store: { ...opened.store, findKeysInForce } };
    },
  });
  const made = await fetch(`${server.url}/v1/admin/keys`, {
    method: "POST",
    headers: { authorization: "Bearer key-of-the-operator" },
    body: JSON.stringify({ name: "reader", scopes: ["read"] }),
  });
  const { key } = (await made.json()) as { key: string };
  const headers = { cookie: await signIn(server.url, key), "sec-fetch-site": "same-origin" };
  const leave = () => {
    isAway = true;
  };
  return { server, key, headers, leave };
}

test("what a person searches for is in no log, also when the database is away", async () => {
  const { server, headers, leave } = await startWhereKeysGo();
  await using _server = server;
  const stream = await fetch(`${server.url}/web/live?search=customer-7f3a`, { headers });
  const reader = stream.body!.getReader();
  await reader.read();
  leave();
  await server.events.reached("page.poll_failed", { project: "default", path: "/" });
  expect(JSON.stringify(server.events.all)).not.toContain("customer-7f3a");
  await reader.cancel();
});

test("a person gets a page, and a program JSON, when the database is away", async () => {
  const { server, key, headers, leave } = await startWhereKeysGo();
  await using _server = server;
  leave();
  const open = (accept: string) =>
    fetch(`${server.url}/files`, { headers: { ...headers, accept } });
  await expect.poll(async () => (await open("text/html")).status).toBe(503);
  const tried = await fetch(`${server.url}/web/sign-in`, {
    method: "POST",
    headers: { "sec-fetch-site": "same-origin" },
    body: new URLSearchParams({ key, next: "files" }),
  });
  const answers = [await open("text/html"), tried];
  for (const [at, again] of ["./files", "../files"].entries()) {
    const answer = answers[at]!;
    expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, "2"]);
    expect(answer.headers.get("content-security-policy")).toContain("default-src 'none'");
    const text = await answer.text();
    expect(text).toContain("The server cannot reach its database at the moment.");
    expect(text).toContain(`<a href="${again}">Try again</a>`);
  }
  const asked = { headers: { authorization: `Bearer ${key}` } };
  const { error } = (await (await fetch(`${server.url}/v1/files`, asked)).json()) as ErrorEnvelope;
  expect(error.message).toContain("cannot reach its database");
  const logged = server.events.all.find(({ path, status }) => path === "/files" && status === 503);
  expect(logged).toMatchObject({ event: "request.completed", err: { code: "STORE_UNAVAILABLE" } });
});

test("a server that stops ends the streams at once", async () => {
  const answer = await open(await cookieOf("b"));
  const stream = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  // The rest of the first event may come behind its first bytes.
  expect((await stream.read()).value).toContain("event: parts");
  await service.close();
  while (!(await stream.read()).done);
});
