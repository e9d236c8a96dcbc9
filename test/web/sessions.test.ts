/** Who may see the web page, and what a request of another site can do: by HTTP, without a browser. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { startTestService, type TestService } from "../support/service.ts";
import { signIn as sessionOf } from "../support/sign-in.ts";

const WRITER = "key-of-the-writer";
const READER = "key-of-the-reader";
const STRANGER = "key-of-the-stranger";
const OPERATOR = "key-of-the-operator";
const ADMINISTRATOR = "key-of-the-administrator";
const PAGES = ["/", "/batches/batch_1"];

let folder: string;
let service: TestService;
let batchId: string;

const keys = [
  { name: "writer", key: WRITER, project: "search" },
  { name: "reader", key: READER, project: "search", scopes: ["read"] },
  { name: "stranger", key: STRANGER, project: "other" },
  { name: "operator", key: OPERATOR, scopes: ["admin", "read"] },
  { name: "administrator", key: ADMINISTRATOR, scopes: ["admin"] },
];
const configOf = (names: readonly string[]) => ({
  auth: { keys: keys.filter(({ name }) => names.includes(name)) },
  audit: { file: join(folder, "audit.jsonl") },
});
const ALL = keys.map(({ name }) => name);

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "batchd-web-"));
  service = await startTestService({ config: configOf(ALL), dataDir: folder });
  const created = await fetch(`${service.url}/v1/batches`, {
    method: "POST",
    headers: { authorization: `Bearer ${WRITER}` },
    body: JSON.stringify({ input_file_id: "file-none", endpoint: "/v1/embeddings" }),
  });
  batchId = ((await created.json()) as { id: string }).id;
});
afterAll(async () => {
  await service.close();
  await rm(folder, { recursive: true, force: true });
});

const open = (path: string, headers: Record<string, string> = {}) =>
  fetch(service.url + path, { headers: { accept: "text/html", ...headers }, redirect: "manual" });

const signIn = (key: string, headers: Record<string, string> = {}, next = "") =>
  fetch(`${service.url}/web/sign-in`, {
    method: "POST",
    redirect: "manual",
    headers: { "sec-fetch-site": "same-origin", ...headers },
    body: new URLSearchParams({ key, next }),
  });

const cookieOf = (key: string) => sessionOf(service.url, key);

test("a key for administration alone leads to the first page that it may see", async () => {
  const cookie = await cookieOf(ADMINISTRATOR);
  const first = await open("/", { cookie });
  expect([first.status, first.headers.get("location")]).toEqual([303, "./upstreams"]);
  const page = await open("/upstreams", { cookie });
  expect([page.status, await page.text()]).toEqual([200, expect.stringContaining("Upstreams")]);
  expect((await open("/", { cookie: await cookieOf(OPERATOR) })).status).toBe(200);
});

async function tokenFor(cookie: string): Promise<string> {
  const page = await (await open("/", { cookie })).text();
  return /data-token="([^"]+)"/.exec(page)![1]!;
}

async function change(path: string, cookie: string, headers: Record<string, string> = {}) {
  const answer = await fetch(`${service.url}/web/v1/${path}`, {
    method: "POST",
    headers: { cookie, ...headers },
  });
  return { status: answer.status, text: await answer.text() };
}

test("a form that comes a byte at a time does not keep its connection", async () => {
  const clock = new FakeClock();
  await using slow = await startTestService({ config: configOf(ALL.slice(0, 1)), clock });
  const socket = connect(Number(new URL(slow.url).port), "127.0.0.1");
  socket.on("error", () => {});
  const headers = "host: x\r\nsec-fetch-site: same-origin\r\ncontent-length: 8000";
  socket.write(`POST /web/sign-in HTTP/1.1\r\n${headers}\r\n\r\nkey=`);
  await expect
    .poll(() => {
      clock.advance(1_000);
      socket.write("a");
      return socket.closed;
    })
    .toBe(true);
});

describe("a form to sign in", () => {
  test("is refused as a wrong key when it is too long, and the refusal has its sender", async () => {
    const answer = await signIn("x".repeat(20_000));
    expect(answer.status).toBe(401);
    expect(await answer.text()).toContain("does not know the key");
    const entries = () => readFileSync(join(folder, "audit.jsonl"), "utf8");
    const requestId = answer.headers.get("x-request-id")!;
    await expect.poll(entries).toMatch(new RegExp(`${requestId}.*denied.*"address":"127.0.0.1"`));
  });

  test("that breaks off is no failure of the server", async () => {
    const socket = connect(Number(new URL(service.url).port), "127.0.0.1");
    const headers = "host: x\r\nsec-fetch-site: same-origin\r\ncontent-length: 8000";
    socket.write(`POST /web/sign-in HTTP/1.1\r\n${headers}\r\nexpect: 100-continue\r\n\r\nkey=`);
    await once(socket, "data");
    socket.resetAndDestroy();
    const isForm = { path: "/web/sign-in", status: 400 };
    await service.events.reached("request.completed", isForm);
  });
});

describe("a person who is signed out", () => {
  test.each([...PAGES, "/nowhere"])(
    "sees the sign-in page at %s, and nothing else",
    async (path) => {
      for (const cookie of ["", "batchd_session=1.-.9999999999.x.y", "batchd_session=%"]) {
        const answer = await open(path, { cookie });
        expect(answer.status).toBe(401);
        const text = await answer.text();
        expect(text).toContain('<form method="post"');
        expect(text).not.toContain(batchId);
        expect(text).not.toContain("data-token");
      }
    },
  );

  test("gets no events, no data and no answer of the API", async () => {
    for (const path of ["/web/live", `/web/live/batches/${batchId}`]) {
      const answer = await open(path, { "sec-fetch-site": "same-origin" });
      expect([path, await answer.text()]).toEqual([path, "event: reload\ndata: {}\n\n"]);
    }
    const answer = await open("/web/v1/batches", { "sec-fetch-site": "same-origin" });
    expect(answer.status).toBe(401);
    expect(await answer.text()).not.toContain(batchId);
  });

  test("gets in with no wrong key, and the refusal is in the audit log", async () => {
    const answer = await signIn("wrong", {}, "files");
    expect(answer.status).toBe(401);
    expect(answer.headers.getSetCookie()).toEqual([]);
    expect(await answer.text()).toContain("does not know the key");
    // The address is now this one, and the browser may ask for it again.
    expect((await open("/web/sign-in")).headers.get("location")).toBe("../");
    const file = join(folder, "audit.jsonl");
    await expect.poll(() => readFileSync(file, "utf8")).toMatch(/session\.create.*denied/);
  });
});

describe("a session", () => {
  test("is a cookie that scripts, other sites and plain HTTP do not get, without the key in it", async () => {
    const plain = (await signIn(WRITER)).headers.getSetCookie()[0]!;
    expect(plain).toMatch(/; Path=\/; HttpOnly; SameSite=Strict$/);
    expect(plain).toMatch(/; Max-Age=604800;/);
    const secure = (await signIn(WRITER, { "x-forwarded-proto": "https" })).headers;
    expect(secure.getSetCookie()[0]).toContain("; Secure");
    const digest = createHash("sha256").update(WRITER).digest();
    for (const form of ["hex", "base64url", "base64"] as const) {
      expect(plain).not.toContain(digest.toString(form).slice(0, 20));
    }
    expect(plain).not.toContain(WRITER);
  });

  test("leads to the page that was asked for, and to no other site", async () => {
    const target = async (next: string) => (await signIn(WRITER, {}, next)).headers.get("location");
    expect(await target(`batches/${batchId}`)).toBe(`../batches/${batchId}`);
    expect(await target("?status=failed")).toBe("../?status=failed");
    expect(await target("?search=a*b")).toBe("../?search=a*b");
    for (const next of [
      "//evil.example",
      "https://evil.example",
      "/\\evil",
      "javascript:1",
      "@x",
    ]) {
      expect(await target(next)).toBe("../");
    }
  });

  test("shows what the project of its key has, and no other batch", async () => {
    expect(await (await open("/", { cookie: await cookieOf(READER) })).text()).toContain(batchId);
    const stranger = await cookieOf(STRANGER);
    expect(await (await open("/", { cookie: stranger })).text()).not.toContain(batchId);
    expect((await open(`/batches/${batchId}`, { cookie: stranger })).status).toBe(404);
  });

  test("holds after a restart, and ends when its key is taken from the configuration", async () => {
    const [writer, reader] = [await cookieOf(WRITER), await cookieOf(READER)];
    await service.close();
    service = await startTestService({ config: configOf(ALL), dataDir: folder });
    expect((await open("/", { cookie: reader })).status).toBe(200);
    service.reconfigure(configOf(["writer", "operator", "stranger"]));
    expect((await open("/", { cookie: reader })).status).toBe(401);
    expect((await open("/", { cookie: writer })).status).toBe(200);
    service.reconfigure(configOf(ALL));
  });

  test("whose key gets other rights ends the events of its open page, which showed more", async () => {
    const cookie = await cookieOf(OPERATOR);
    const own = { cookie, "sec-fetch-site": "same-origin" };
    const narrower = keys.map((each) =>
      each.name === "operator" ? { ...each, scopes: ["read"] } : each,
    );
    const events = await open("/web/live/upstreams", own);
    expect(events.status).toBe(200);
    service.reconfigure({ ...configOf(ALL), auth: { keys: narrower } });
    const text = await events.text();
    expect(text.slice(text.lastIndexOf("event:"))).toMatch(/^event: reload\n/);
    expect((await open("/upstreams", own)).status).toBe(403);
    service.reconfigure(configOf(ALL));
  });

  test("behind TLS has a cookie that no page of a sibling domain can set", async () => {
    const tls = { "x-forwarded-proto": "https" };
    const set = (await signIn(WRITER, tls)).headers.getSetCookie()[0]!;
    expect(set).toMatch(/^__Host-batchd_session=/);
    expect(set).not.toContain("Domain=");
    const cookie = set.split(";")[0]!;
    expect((await open("/", { cookie, ...tls })).status).toBe(200);
    const tossed = cookie.replace("__Host-", "");
    expect((await open("/", { cookie: tossed, ...tls })).status).toBe(401);
  });

  test("cannot be changed by its owner", async () => {
    const cookie = await cookieOf(READER);
    const [name, value = ""] = cookie.split("=");
    const parts = value.split(".");
    for (let at = 0; at < parts.length; at++) {
      const changed = parts.with(at, at === 2 ? "99999999999" : `${parts[at]!.slice(1)}A`);
      const answer = await open("/", { cookie: `${name}=${changed.join(".")}` });
      expect([at, answer.status]).toEqual([at, 401]);
    }
  });
});

describe("a request that changes something", () => {
  test("needs the token of its session, and a page of this server", async () => {
    const [cookie, other] = [await cookieOf(WRITER), await cookieOf(STRANGER)];
    const token = await tokenFor(cookie);
    const path = `batches/${batchId}/cancel`;
    const refused = [
      {},
      { "x-batchd-token": "wrong" },
      { "x-batchd-token": await tokenFor(other), "sec-fetch-site": "same-origin" },
      { "x-batchd-token": token, "sec-fetch-site": "cross-site" },
      { "x-batchd-token": token, "sec-fetch-site": "same-site" },
      { "x-batchd-token": token, "sec-fetch-site": "none" },
      { "x-batchd-token": token, origin: "https://evil.example" },
      { "x-batchd-token": token },
    ];
    for (const headers of refused) {
      const { status, text } = await change(path, cookie, headers);
      expect([headers, status]).toEqual([headers, 403]);
      expect(text).toContain("pages of this server");
    }
    // The API answers: the batch failed, as its input is missing.
    for (const own of [{ "sec-fetch-site": "same-origin" }, { origin: service.url }]) {
      const { text } = await change(path, cookie, { "x-batchd-token": token, ...own });
      expect(text).not.toContain("pages of this server");
      expect(text).toMatch(/batch/);
    }
  });

  test("has one id, in its answer and in the audit log", async () => {
    const cookie = await cookieOf(WRITER);
    const token = { "x-batchd-token": await tokenFor(cookie), "sec-fetch-site": "same-origin" };
    const answer = await fetch(`${service.url}/web/v1/batches/${batchId}/pause`, {
      method: "POST",
      headers: { cookie, ...token },
    });
    const requestId = answer.headers.get("x-request-id")!;
    await expect
      .poll(() => readFileSync(join(folder, "audit.jsonl"), "utf8"))
      .toMatch(new RegExp(`${requestId}","action":"batch.pause"`));
  });

  test("is refused to a key that may only read, whose page has no buttons for it", async () => {
    const cookie = await cookieOf(READER);
    const page = await (await open(`/batches/${batchId}`, { cookie })).text();
    expect(page).not.toContain("data-method");
    expect(
      await (await open(`/batches/${batchId}`, { cookie: await cookieOf(WRITER) })).text(),
    ).toContain('data-method="DELETE"');
    // A list without batches does not lead to a page that refuses.
    const empty = await (await open("/", { cookie: await cookieOf(OPERATOR) })).text();
    expect(empty).toContain("They appear by themselves.");
    expect(empty).not.toContain("./new");
    const token = await tokenFor(cookie);
    const headers = { "x-batchd-token": token, "sec-fetch-site": "same-origin" };
    const { status, text } = await change(`batches/${batchId}/cancel`, cookie, headers);
    expect([status, text]).toEqual([403, expect.stringContaining("Missing scopes: write")]);
  });

  test("of another site can neither sign in nor sign out", async () => {
    for (const path of ["sign-in", "sign-out"]) {
      const answer = await fetch(`${service.url}/web/${path}`, {
        method: "POST",
        headers: { "sec-fetch-site": "cross-site" },
        body: new URLSearchParams({ key: WRITER }),
      });
      expect([path, answer.status, answer.headers.getSetCookie()]).toEqual([path, 403, []]);
    }
  });
});

test("a page behind a proxy that changes the Host is told so, at the sign-in and at a button", async () => {
  // A browser says nothing else of where a request comes from at an address without TLS.
  const origin = "http://batchd.lan:8080";
  const body = new URLSearchParams({ key: WRITER });
  const signedIn = await fetch(`${service.url}/web/sign-in`, {
    method: "POST",
    headers: { origin },
    body,
  });
  const cookie = await cookieOf(WRITER);
  const token = { "x-batchd-token": await tokenFor(cookie) };
  const pressed = await change(`batches/${batchId}/pause`, cookie, { ...token, origin });
  expect([signedIn.status, pressed.status]).toEqual([403, 403]);
  for (const text of [await signedIn.text(), pressed.text]) {
    expect(text).toContain(`came from ${origin} and asked for ${new URL(service.url).host}`);
    expect(text).toContain("a proxy in between changes the Host");
  }
});

describe("the answers", () => {
  test("let a page run and load only files of this server, and frame nothing", async () => {
    const answer = await open("/", { cookie: await cookieOf(WRITER) });
    const policy = answer.headers.get("content-security-policy")!;
    for (const rule of [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "img-src 'self'",
      "connect-src 'self'",
      "form-action 'self'",
      "base-uri 'none'",
      "frame-ancestors 'none'",
    ]) {
      expect(policy.split("; ")).toContain(rule);
    }
    expect(policy).not.toContain("unsafe");
    const text = await answer.text();
    expect(text).not.toMatch(
      /<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?:\/\/(?!www\.w3)/,
    );
    expect(answer.headers.get("cache-control")).toBe("no-store");
  });

  test("need less than 150 kB for the first view, and browsers keep the assets", async () => {
    const page = await (await open("/", { cookie: await cookieOf(WRITER) })).text();
    const paths = [...page.matchAll(/(?:src|href)="\.\/(web\/assets\/[^"]+)"/g)].map(
      ([, path]) => path!,
    );
    expect(paths.length).toBeGreaterThan(3);
    let bytes = page.length;
    for (const path of [
      ...paths,
      ...["actions", "live", "times"].map((name) => paths.at(-1)!.replace("app.js", `${name}.js`)),
    ]) {
      const asset = await open(`/${path}`);
      expect([path, asset.status]).toEqual([path, 200]);
      expect(asset.headers.get("cache-control")).toBe("public, max-age=31536000, immutable");
      expect(asset.headers.get("x-content-type-options")).toBe("nosniff");
      bytes += (await asset.arrayBuffer()).byteLength;
    }
    expect(bytes).toBeLessThan(150_000);
    const old = await open(`/${paths[0]!.replace(/assets\/\w+/, "assets/older")}`);
    expect(old.headers.get("cache-control")).toBe("no-store");
  });

  test("to programs stay what they were", async () => {
    for (const path of ["/batches/batch_1", "/batches", "/"]) {
      const answer = await fetch(service.url + path, { headers: { accept: "*/*" } });
      expect([path, answer.status]).toEqual([path, 404]);
      expect(answer.headers.get("content-type")).toBe("application/json");
    }
    const hint = await (await fetch(`${service.url}/batches`)).text();
    expect(hint).toContain("The API is under /v1");
    const cookie = await cookieOf(WRITER);
    expect((await fetch(`${service.url}/v1/batches`, { headers: { cookie } })).status).toBe(401);
  });
});
