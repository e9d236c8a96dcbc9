/** The audit log of a server, as an operator finds it. */
import { execFileSync } from "node:child_process";
import {
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const SECRET = "the-content-of-a-client";
const folder = forAllTests(temporaryFolder("batchd-audit-"));
const file = join(folder.path, "audit.jsonl");
const keys = [
  { name: "writer", key: "key-of-the-writer", project: "search", scopes: ["read", "write"] },
  { name: "reader", key: "key-of-the-reader", project: "search", scopes: ["read"] },
  { name: "operator", key: "key-of-the-operator", scopes: ["admin"] },
  { name: "deputy", key: "key-of-the-deputy", scopes: ["admin"] },
];
const shared = { name: "shared", kind: "folder", access: "read", path: folder.path };
const config = { auth: { keys }, audit: { file }, locations: [shared] };

const service = forAllTests(await startTestService({ config }));

type Entry = Record<string, string | number | null>;

const entries = (path = file): Entry[] => {
  const lines = readFileSync(path, "utf8").split("\n");
  expect(lines.pop()).toBe("");
  return lines.map((line) => JSON.parse(line) as Entry);
};

const ask = (name: string, method: string, path: string, body?: FormData | string) =>
  fetch(service.url + path, {
    method,
    headers: { authorization: `Bearer key-of-the-${name}` },
    ...(body !== undefined && { body }),
  });

/** Resolves to the entry of an answer. */
async function entryOf(response: Response): Promise<Entry> {
  await response.text();
  const id = response.headers.get("x-request-id");
  let found: Entry | undefined;
  await expect
    .poll(() => {
      found = entries().find((entry) => entry["request_id"] === id);
      return found;
    })
    .toBeDefined();
  return found as Entry;
}

function form(): FormData {
  const made = new FormData();
  made.set("purpose", "batch");
  made.set("file", new Blob([`${chatLine("a", SECRET)}\n`]), `${SECRET}.jsonl`);
  return made;
}

test("says who made, changed, downloaded and deleted what, and never what was in it", async () => {
  const uploaded = await ask("writer", "POST", "/v1/files", form());
  const { id } = (await uploaded.clone().json()) as { id: string };
  expect(await entryOf(uploaded)).toEqual({
    time: expect.stringMatching(/^\d{4}-.*Z$/),
    request_id: expect.stringMatching(/^req_/),
    action: "file.create",
    object: id,
    outcome: "done",
    status: 200,
    project: "search",
    key_id: null,
    key_name: "writer",
    address: expect.stringContaining("127.0.0.1"),
  });
  const input = { input_file_id: id, endpoint: "/v1/chat/completions", completion_window: "24h" };
  const metadata = { id: SECRET };
  const created = await ask(
    "writer",
    "POST",
    "/v1/batches",
    JSON.stringify({ ...input, metadata }),
  );
  const batch = (await created.clone().json()) as { id: string };
  const steps: [Response, object][] = [
    [created, { action: "batch.create", object: batch.id, outcome: "done" }],
    [
      await ask("reader", "GET", `/openai/v1/files/${id}/content`),
      { action: "file.download", object: id, key_name: "reader" },
    ],
    [
      await ask("reader", "DELETE", `/v1/files/${id}`),
      { action: "file.delete", object: id, outcome: "denied", status: 403 },
    ],
    [
      await ask("writer", "DELETE", `/v1/files/${id}`),
      { action: "file.delete", object: id, outcome: "done" },
    ],
    [
      await ask("writer", "DELETE", `/v1/files/${id}`),
      { action: "file.delete", object: id, outcome: "refused", status: 404 },
    ],
    [
      await ask("operator", "POST", "/v1/admin/keys", '{"name":"nightly"}'),
      { action: "key.create", object: expect.stringMatching(/^key_/), key_name: "operator" },
    ],
    [
      await ask("stranger", "GET", "/v1/files"),
      { action: "GET /v1/files", outcome: "denied", status: 401, project: null, key_name: null },
    ],
  ];
  for (const [response, entry] of steps) expect(await entryOf(response)).toMatchObject(entry);
  const text = readFileSync(file, "utf8");
  for (const secret of [SECRET, "sk-batchd", "key-of-the"]) expect(text).not.toContain(secret);
  expect(statSync(file).mode & 0o777).toBe(0o600);
});

/** Resolves to what was recorded of a request, once there are so many entries. */
async function recordedOf({ headers }: Response, count: number) {
  const request = headers.get("x-request-id");
  const found = () => entries().filter((entry) => entry["request_id"] === request);
  await expect.poll(() => found().length).toBe(count);
  return found().map(({ action, object, outcome }) => [action, object, outcome]);
}

test("names the file that a batch makes of an input in a location", async () => {
  writeFileSync(join(folder.path, "input.jsonl"), `${chatLine("a", SECRET)}\n`);
  const place = { location: "shared", path: "input.jsonl" };
  const asked = { endpoint: "/v1/chat/completions", x_batchd: { input: place } };
  const created = await ask("writer", "POST", "/v1/batches", JSON.stringify(asked));
  const { id, input_file_id } = (await created.json()) as { id: string; input_file_id: string };
  expect(await recordedOf(created, 2)).toEqual([
    ["batch.create", id, "done"],
    ["file.create", input_file_id, "done"],
  ]);
});

test("names the file that an upload in parts becomes", async () => {
  const content = `${chatLine("a", SECRET)}\n`;
  const head = { purpose: "batch", filename: "a.jsonl", mime_type: "application/jsonl" };
  const asked = JSON.stringify({ ...head, bytes: content.length });
  const upload = await ask("writer", "POST", "/v1/uploads", asked);
  const { id } = (await upload.json()) as { id: string };
  const part = new FormData();
  part.set("data", new Blob([content]));
  const added = await ask("writer", "POST", `/v1/uploads/${id}/parts`, part);
  const part_ids = [((await added.json()) as { id: string }).id];
  const path = `/v1/uploads/${id}/complete`;
  const completed = await ask("writer", "POST", path, JSON.stringify({ part_ids }));
  const { file: made } = (await completed.json()) as { file: { id: string } };
  expect(await recordedOf(completed, 2)).toEqual([
    ["upload.complete", id, "done"],
    ["file.create", made.id, "done"],
  ]);
});

test("names the input that is deleted together with its batch", async () => {
  const uploaded = await ask("writer", "POST", "/v1/files", form());
  const { id: input_file_id } = (await uploaded.json()) as { id: string };
  const asked = { input_file_id, endpoint: "/v1/chat/completions", completion_window: "24h" };
  const created = await ask("writer", "POST", "/v1/batches", JSON.stringify(asked));
  const { id } = (await created.json()) as { id: string };
  const deleted = await ask("writer", "DELETE", `/v1/batches/${id}?files=input`);
  expect(await recordedOf(deleted, 2)).toEqual([
    ["batch.delete", id, "done"],
    ["file.delete", input_file_id, "done"],
  ]);
});

test("names no file as deleted that a batch has only named as its input", async () => {
  const asked = { endpoint: "/v1/chat/completions", completion_window: "24h" };
  const body = JSON.stringify({ ...asked, input_file_id: "file-of-another-project" });
  const created = await ask("writer", "POST", "/v1/batches", body);
  const { id } = (await created.json()) as { id: string };
  const deleted = await ask("writer", "DELETE", `/v1/batches/${id}?files=input`);
  // What follows is recorded behind all of it.
  await entryOf(await ask("writer", "DELETE", "/v1/files/file-x"));
  expect(await recordedOf(deleted, 1)).toEqual([["batch.delete", id, "done"]]);
});

test("a made key is named by its id when it acts", async () => {
  const made = await ask("operator", "POST", "/v1/admin/keys", '{"name":"nightly"}');
  const { id, key } = (await made.json()) as { id: string; key: string };
  const headers = { authorization: `Bearer ${key}` };
  const response = await fetch(`${service.url}/v1/files/file-x`, { method: "DELETE", headers });
  expect(await entryOf(response)).toMatchObject({ key_id: id, key_name: "nightly" });
});

test("what an open page reads is never recorded for a key that has been taken away", async () => {
  const open = async (name: string) => {
    const signedIn = await fetch(`${service.url}/web/sign-in`, {
      method: "POST",
      redirect: "manual",
      headers: { "sec-fetch-site": "same-origin" },
      body: new URLSearchParams({ key: `key-of-the-${name}` }),
    });
    const cookie = signedIn.headers.getSetCookie()[0]?.split(";")[0] ?? "";
    const headers = { cookie, "sec-fetch-site": "same-origin" };
    const page = await fetch(`${service.url}/web/live/keys`, { headers });
    return (page.body as ReadableStream<Uint8Array>).getReader();
  };
  const lists = () => entries().filter(({ action }) => action === "key.list");
  // Pages that show the same share what the server reads for them.
  const first = await open("operator");
  await expect.poll(() => lists().length).toBeGreaterThan(0);
  const second = await open("deputy");
  service.reconfigure({
    ...config,
    auth: { keys: keys.filter(({ name }) => name !== "operator") },
  });
  while (!(await first.read()).done);
  const before = lists().length;
  // The line of a reading that was under way may be written only now.
  await expect.poll(() => lists().length).toBeGreaterThan(before + 1);
  expect(lists().at(-1)).toMatchObject({ key_name: "deputy" });
  await second.cancel();
  service.reconfigure(config);
});

test("one request cannot write two lines, whatever its path holds", async () => {
  const path = `/v1/files/${encodeURIComponent(`a\n{"action":"forged"}`)}${"x".repeat(5_000)}`;
  const entry = await entryOf(await ask("writer", "DELETE", path));
  expect(entry["object"]).toHaveLength(128);
  expect(entries().some(({ action }) => action === "forged")).toBe(false);
});

test("a path with line breaks of Unicode, or orders to a terminal, leaves one plain line", async () => {
  const text = "a\u2028b\u2029c\u0085d\u009b2Je\u202ef\u{e0041}";
  const asked = await ask("writer", "DELETE", `/v1/files/${encodeURIComponent(text)}`);
  expect((await entryOf(asked))["object"]).toBe(text);
  // Python's `splitlines` would end a line there, and half of one is no JSON.
  expect(readFileSync(file, "utf8").replaceAll(/[\n\x20-\x7e]/g, "")).toBe("");
});

test("goes on after a rotation by renaming and by truncating, with whole lines", async () => {
  const rotated = `${file}.1`;
  renameSync(file, rotated);
  const before = entries(rotated).length;
  await entryOf(await ask("writer", "DELETE", "/v1/files/file-a"));
  expect(entries()).toHaveLength(1);
  expect(entries(rotated)).toHaveLength(before);
  truncateSync(file);
  await entryOf(await ask("writer", "DELETE", "/v1/files/file-b"));
  expect(entries()).toHaveLength(1);
});

test("a file that cannot be written stops no request, is logged, and gets the lines later", async () => {
  const folderPath = join(folder.path, "gone");
  const path = join(folderPath, "audit.jsonl");
  // A file in the place of the folder fails every write, also those of root.
  writeFileSync(folderPath, "");
  service.reconfigure({ ...config, audit: { file: path } });
  const statuses = await Promise.all(
    Array.from({ length: 50 }, async () => (await ask("writer", "DELETE", "/v1/files/x")).status),
  );
  expect(new Set(statuses)).toEqual(new Set([404]));
  await service.events.reached("audit.not_written");
  rmSync(folderPath);
  mkdirSync(folderPath);
  await service.events.reached("audit.written_again");
  const text = readFileSync(path, "utf8");
  expect(text.split("\n").filter((line) => line !== "")).toHaveLength(50);
  service.reconfigure(config);
});

test("each file that cannot be written is named, and the next one begins with the lines that waited", async () => {
  const taken = join(folder.path, "taken");
  writeFileSync(taken, "");
  for (const name of ["first", "second"]) {
    const path = join(taken, name);
    service.reconfigure({ ...config, audit: { file: path } });
    await ask("writer", "DELETE", `/v1/files/file-of-the-${name}`);
    await service.events.reached("audit.not_written", { file: path });
  }
  const path = join(folder.path, "third");
  service.reconfigure({ ...config, audit: { file: path } });
  await service.events.reached("audit.written_again", { file: path });
  expect(entries(path).map(({ object }) => object)).toEqual([
    "file-of-the-first",
    "file-of-the-second",
  ]);
  service.reconfigure(config);
});

test("a pipe without a reader is a file that cannot be written, and its reader gets the lines when it comes", async () => {
  const pipe = join(folder.path, "pipe");
  execFileSync("mkfifo", [pipe]);
  service.reconfigure({ ...config, audit: { file: pipe } });
  await ask("writer", "DELETE", "/v1/files/x");
  await service.events.reached("audit.not_written", { file: pipe });
  const reader = openSync(pipe, constants.O_RDONLY | constants.O_NONBLOCK);
  await service.events.reached("audit.written_again", { file: pipe });
  const text = Buffer.alloc(4_096);
  expect(text.toString("utf8", 0, readSync(reader, text))).toContain('"action":"file.delete"');
  closeSync(reader);
  service.reconfigure(config);
});

test("a reader of standard error that stands still does not fill the memory", async () => {
  service.reconfigure({ ...config, audit: {} });
  const written = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  const waiting = vi.spyOn(process.stderr, "writableLength", "get");
  const lines = () => written.mock.calls.filter(([line]) => String(line).includes("file.delete"));
  try {
    waiting.mockReturnValue(1_000_000_000);
    await ask("writer", "DELETE", "/v1/files/x");
    expect(lines()).toHaveLength(0);
    waiting.mockReturnValue(0);
    await ask("writer", "DELETE", "/v1/files/x");
    await service.events.reached("audit.written_again", { lost: 1 });
    expect(lines()).toHaveLength(1);
  } finally {
    waiting.mockRestore();
    written.mockRestore();
    service.reconfigure(config);
  }
});

test("lines that wait for a file go to standard error once the configuration says so, in their order", async () => {
  const folderPath = join(folder.path, "never-there");
  writeFileSync(folderPath, "");
  const written = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  const objects = () =>
    written.mock.calls.flatMap(
      ([line]) => /"object":"(file-of-a-broken-log-\d)"/.exec(String(line))?.[1] ?? [],
    );
  try {
    service.reconfigure({ ...config, audit: { file: join(folderPath, "audit.jsonl") } });
    await ask("writer", "DELETE", "/v1/files/file-of-a-broken-log-1");
    await ask("writer", "DELETE", "/v1/files/file-of-a-broken-log-2");
    await service.events.reached("audit.not_written", { file: join(folderPath, "audit.jsonl") });
    service.reconfigure({ ...config, audit: {} });
    await ask("writer", "DELETE", "/v1/files/file-of-a-broken-log-3");
    await expect.poll(objects).toEqual([1, 2, 3].map((n) => `file-of-a-broken-log-${n}`));
  } finally {
    written.mockRestore();
    service.reconfigure(config);
  }
});
