/** What the page of another site can do in the browser of a person who runs a server without keys. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { rawRequest } from "../support/raw-http.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";

type Server = Pick<TestService, "url">;

async function ask(
  { url }: Server,
  target: string,
  headers: Readonly<Record<string, string>>,
): Promise<{ status: number; body: string }> {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return rawRequest(url, [`${target} HTTP/1.1`, ...lines, "", ""].join("\r\n"));
}

const statusOf = async (server: Server, host: string, target = "GET /v1/batches") =>
  (await ask(server, target, { host, "content-length": "0" })).status;

const PATHS = ["GET /v1/batches", "GET /v1/files", "GET /", "GET /web/v1/batches", "GET /metrics"];
const KEYS = { auth: { keys: [{ name: "a", key: "key-of-a" }] } };
const START = { server: { port: 0 } };

describe("a server without keys on 127.0.0.1", () => {
  let service: TestService;
  beforeAll(async () => {
    service = await startTestService();
  });
  afterAll(() => service[Symbol.asyncDispose]());

  test.each(PATHS)("answers no site whose name resolves to it: %s", async (target) => {
    for (const host of ["evil.example", "evil.example:8080", "EVIL.example.", "127.0.0.1.nip.io"]) {
      const answer = await ask(service, target, { host, accept: "text/html" });
      expect([host, answer.status]).toEqual([host, 421]);
      expect(JSON.parse(answer.body).error).toMatchObject({
        type: "invalid_request_error",
        message: expect.stringContaining("server.allowed_hosts"),
      });
    }
  });

  test("answers at its addresses and the names of this machine", async () => {
    const { port } = new URL(service.url);
    for (const host of [
      "127.0.0.1",
      "localhost",
      "LOCALHOST",
      "[::1]",
      "10.1.2.3",
      "203.0.113.10",
      "batchd",
      "a",
      "batchd.localhost",
      "host.docker.internal",
    ]) {
      expect([host, await statusOf(service, host)]).toEqual([host, 200]);
      expect([host, await statusOf(service, `${host}:${port}`)]).toEqual([host, 200]);
    }
  });

  test("says to every load balancer and supervisor whether it lives", async () => {
    for (const target of ["GET /health", "GET /ready"]) {
      expect(await statusOf(service, "probe.example.com", target)).toBe(200);
    }
    expect((await rawRequest(service.url, "GET /v1/batches HTTP/1.0\r\n\r\n")).status).toBe(200);
  });

  test("carries no form of another site out, and those of its own page and of programs", async () => {
    const { host, origin } = new URL(service.url);
    const asked = (headers: Readonly<Record<string, string>>) =>
      ask(service, "POST /v1/batches/batch_none/cancel", {
        host,
        "content-length": "0",
        ...headers,
      });
    for (const headers of [
      { "sec-fetch-site": "cross-site", origin: "https://evil.example" },
      { "sec-fetch-site": "same-site", origin: "http://127.0.0.1:1" },
      { "sec-fetch-site": "cross-site", origin: "null" },
      { origin: "https://evil.example" },
      { origin: "null" },
      { "sec-fetch-site": "cross-site" },
    ]) {
      const answer = await asked(headers);
      expect([headers, answer.status]).toEqual([headers, 403]);
      expect(answer.body).toContain("no page of another site may change anything");
    }
    for (const headers of [
      {},
      { origin },
      { "sec-fetch-site": "same-origin", origin },
      { "sec-fetch-site": "none" },
    ]) {
      // The API answers: there is no such batch.
      expect([headers, (await asked(headers)).status]).toEqual([headers, 404]);
    }
  });

  test("takes no upload of another site", async () => {
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new File([`${chatLine("a", "Hello")}\n`], "a.jsonl"));
    const send = (headers: Record<string, string>) =>
      fetch(`${service.url}/v1/files`, { method: "POST", body: form, headers });
    expect((await send({ origin: "https://evil.example" })).status).toBe(403);
    expect((await send({})).status).toBe(200);
  });
});

test("a proxy passes on the names that the configuration lists", async () => {
  const server = { ...START.server, allowed_hosts: ["batchd.example.com", "Second.Example:443"] };
  await using service = await startTestService({ config: { server } });
  for (const host of ["batchd.example.com", "BATCHD.example.com:443", "second.example", "[::1]"]) {
    expect([host, await statusOf(service, host)]).toEqual([host, 200]);
  }
  expect(await statusOf(service, "evil.example")).toBe(421);
  const posted = (origin: string) =>
    ask(service, "POST /v1/batches/batch_none/cancel", {
      host: "batchd.example.com",
      origin,
      "content-length": "0",
    });
  expect((await posted("https://batchd.example.com")).status).toBe(404);
  expect((await posted("https://evil.example")).status).toBe(403);
});

test("a server that listens beyond this machine has names that it does not know, unless some are listed", async () => {
  const config = (more: object) => ({ server: { ...START.server, host: "0.0.0.0", ...more } });
  await using open = await startTestService({ config: config({}) });
  const local = (url: string) => ({ url: url.replace("0.0.0.0", "127.0.0.1") });
  expect(await statusOf(local(open.url), "batchd.batches.svc.cluster.local")).toBe(200);
  await using listed = await startTestService({
    config: config({ allowed_hosts: ["batchd.batches.svc.cluster.local"] }),
  });
  expect(await statusOf(local(listed.url), "batchd.batches.svc.cluster.local")).toBe(200);
  expect(await statusOf(local(listed.url), "evil.example")).toBe(421);
  await using any = await startTestService({
    config: { server: { port: 0, allowed_hosts: ["*"] } },
  });
  expect(await statusOf(any, "anything.example")).toBe(200);
});

test("keys take the place of the names, from the moment on at which there are some", async () => {
  await using service = await startTestService();
  expect(await statusOf(service, "batchd.example.com")).toBe(421);
  service.reconfigure({ ...START, ...KEYS });
  const headers = { host: "batchd.example.com", authorization: "Bearer key-of-a" };
  expect((await ask(service, "GET /v1/batches", headers)).status).toBe(200);
  const own = { ...headers, origin: "https://app.example.com", "content-length": "0" };
  expect((await ask(service, "POST /v1/batches/batch_none/cancel", own)).status).toBe(404);
});
