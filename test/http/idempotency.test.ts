import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { CLAIM_MS } from "../../src/api/idempotency.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { BOUNDARY, multipart, type Part, RawConnection, rawRequest } from "../support/raw-http.ts";
import {
  chatLine,
  createBatchBody,
  idsOn,
  startTestApi,
  type TestApi,
  uploadInput,
  wireOf,
} from "../support/test-http.ts";

const DAY_MS = 24 * 60 * 60 * 1000;
const LINE = chatLine("a");

const api = forAllTests(await startTestApi());
const input = await uploadInput(api);

let keyCount = 0;
const newKey = () => `key ${++keyCount}, "quoted"/+=~`;

type Sent = { path: string; body: string | FormData; key?: string; on?: TestApi; token?: string };

async function send({ path, body, key, on = api, token = "none" }: Sent) {
  const headers = {
    authorization: `Bearer ${token}`,
    ...(key === undefined ? {} : { "idempotency-key": key }),
  };
  const response = await on.fetch(path, { method: "POST", headers, body });
  return {
    status: response.status,
    isReplayed: response.headers.get("idempotent-replayed") === "true",
    headers: response.headers,
    body: await wireOf(response),
  };
}

const batch = (more: Record<string, unknown> = {}) => ({
  path: "/v1/batches",
  body: createBatchBody(input, more),
});

const upload = (more: Record<string, unknown> = {}) => ({
  path: "/v1/uploads",
  body: JSON.stringify({ filename: "a", purpose: "batch", bytes: 9, mime_type: "x", ...more }),
});

async function completion() {
  const { id } = (await send(upload({ bytes: LINE.length }))).body;
  const part = new FormData();
  part.set("data", new Blob([LINE]), "part");
  const added = await send({ path: `/v1/uploads/${id}/parts`, body: part });
  return {
    path: `/v1/uploads/${id}/complete`,
    body: JSON.stringify({ part_ids: [added.body.id] }),
  };
}

function file(fields: Record<string, string> = {}, content = LINE, name = "input.jsonl") {
  const body = new FormData();
  body.set("file", new Blob([content]), name);
  for (const [field, value] of Object.entries({ purpose: "batch", ...fields })) {
    body.set(field, value);
  }
  return { path: "/v1/files", body };
}

const countOf = async (path: string, on = api) =>
  idsOn(await wireOf(await on.fetch(`${path}?limit=100`))).length;

describe("a request that is repeated under its key", () => {
  test.each([
    ["batch", () => batch({ metadata: { name: "größe" } })],
    ["file", () => file()],
    ["upload", () => upload()],
    ["completion of an upload", () => completion()],
  ])("gets the first answer again: %s", async (_kind, prepare) => {
    const key = newKey();
    const request = await prepare();
    const first = await send({ ...request, key });
    expect([first.status, first.isReplayed]).toEqual([200, false]);
    const before = {
      batches: await countOf("/v1/batches"),
      files: await countOf("/v1/files"),
      blobs: api.storedFiles(),
      nudges: api.nudges(),
    };
    for (let i = 0; i < 3; i++) {
      const again = await send({ ...request, key });
      expect([again.status, again.isReplayed]).toEqual([200, true]);
      expect(again.body).toEqual(first.body);
      expect(again.headers.get("content-type")).toBe("application/json");
    }
    expect({
      batches: await countOf("/v1/batches"),
      files: await countOf("/v1/files"),
      blobs: api.storedFiles(),
      nudges: api.nudges(),
    }).toEqual(before);
  });

  test("may be written in another way", async () => {
    const key = newKey();
    const first = await send({ ...batch({ metadata: { a: "1", b: "2" } }), key });
    const other = JSON.stringify({
      metadata: { b: "2", a: "1" },
      completion_window: "24h",
      input_file_id: input,
      endpoint: "/v1/chat/completions",
    });
    const again = await send({ path: "/openai/v1/batches/", body: other, key });
    expect([again.isReplayed, again.body.id]).toEqual([true, first.body.id]);

    const fileKey = newKey();
    const parts: Part[] = [
      { name: "purpose", content: "batch" },
      { name: "file", filename: "input.jsonl", content: LINE },
    ];
    const written = [parts, parts.toReversed()].map((each) => filePost(multipart(each), fileKey));
    const [one, two] = [
      await rawRequest(api.url, written[0] ?? ""),
      await rawRequest(api.url, written[1] ?? ""),
    ];
    expect(two?.headers["idempotent-replayed"]).toBe("true");
    expect(two?.body).toBe(one?.body);
  });

  test("hears what was answered then, whatever has become of it", async () => {
    const key = newKey();
    const first = await send({ ...file(), key });
    await api.fetch(`/v1/files/${first.body.id}`, { method: "DELETE" });
    const again = await send({ ...file(), key });
    expect([again.status, again.body]).toEqual([200, first.body]);
  });

  test("is carried out again after 24 hours", async () => {
    await using fresh = await startTestApi();
    const request = { ...batch(), key: "k", on: fresh };
    const first = await send(request);
    fresh.advance(DAY_MS - 1_000);
    expect((await send(request)).body.id).toBe(first.body.id);
    fresh.advance(2_000);
    const later = await send(request);
    expect([later.status, later.isReplayed]).toEqual([200, false]);
    expect(later.body.id).not.toBe(first.body.id);
  });

  test("is carried out once, however many are sent at once", async () => {
    await using fresh = await startTestApi();
    const request = { ...batch(), key: "k", on: fresh };
    const answers = await Promise.all(Array.from({ length: 10 }, () => send(request)));
    for (const { status } of answers) expect([200, 409]).toContain(status);
    expect(answers.filter(({ status, isReplayed }) => status === 200 && !isReplayed)).toHaveLength(
      1,
    );
    expect(await countOf("/v1/batches", fresh)).toBe(1);
  });
});

describe("a key that was used for another request", () => {
  const reused = (key: string) => ({
    status: 422,
    body: {
      error: {
        message: `The Idempotency-Key '${key}' was used for another request in the last 24 hours. A key belongs to one request; take a new one for this.`,
        type: "invalid_request_error",
        param: "Idempotency-Key",
        code: "idempotency_key_reused",
      },
    },
  });

  test.each<[string, () => Sent, () => Sent]>([
    ["a batch with other metadata", () => batch(), () => batch({ metadata: { a: "1" } })],
    ["a batch on another endpoint", () => batch(), () => batch({ endpoint: "/v1/embeddings" })],
    ["an upload instead of a batch", () => batch(), () => upload()],
    ["a file instead of an upload", () => upload(), () => file()],
    ["an upload of another size", () => upload(), () => upload({ bytes: 10 })],
    ["an upload of another type", () => upload(), () => upload({ mime_type: "y" })],
    ["a file with other content", () => file(), () => file({}, chatLine("b"))],
    ["a file with another name", () => file(), () => file({}, LINE, "other.jsonl")],
    ["a file for another purpose", () => file(), () => file({ purpose: "fine-tune" })],
    [
      "a file with another expiry",
      () => file(),
      () => file({ "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600" }),
    ],
  ])("is refused: %s", async (_case, first, second) => {
    const key = newKey();
    expect((await send({ ...first(), key })).status).toBe(200);
    const before = api.storedFiles();
    expect(await send({ ...second(), key })).toMatchObject(reused(key));
    expect(api.storedFiles()).toEqual(before);
  });

  test("is another project's to use", async () => {
    await using keyed = await startTestApi({
      keys: [
        { name: "a", key: "sk-a", project: "a" },
        { name: "b", key: "sk-b", project: "b" },
      ],
    });
    const ask = (token: string, more: object) =>
      send({ ...batch({ metadata: more }), key: "k", on: keyed, token });
    const a = await ask("sk-a", { whose: "a" });
    const b = await ask("sk-b", { whose: "b" });
    expect([a.status, b.status, b.isReplayed]).toEqual([200, 200, false]);
    expect((await ask("sk-a", { whose: "a" })).body).toEqual(a.body);
  });
});

describe("a request that fails gives its key back", () => {
  test("when it is refused", async () => {
    const key = newKey();
    const manyPairs = Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, "v"]));
    expect((await send({ ...batch({ metadata: manyPairs }), key })).status).toBe(400);
    expect((await send({ ...file({}, "not json"), key })).status).toBe(400);
    expect((await send({ ...upload({ bytes: 9e15 }), key })).status).toBe(400);
    expect((await send({ ...batch(), key })).status).toBe(200);
  });

  test("when its client goes away", async () => {
    const key = newKey();
    const connection = await openFile(key, { length: 10_000_000 });
    expect((await send({ ...batch(), key })).status).toBe(409);
    connection.socket.destroy();
    await expect.poll(async () => (await send({ ...batch(), key })).status).toBe(200);
  });
});

const filePost = (body: string, key: string, length = body.length) =>
  [
    "POST /v1/files HTTP/1.1",
    "Host: localhost",
    `Content-Type: multipart/form-data; boundary=${BOUNDARY}`,
    `Idempotency-Key: ${key}`,
    `Content-Length: ${length}`,
    "",
    body,
  ].join("\r\n");

const FILE_PARTS: Part[] = [
  { name: "purpose", content: "batch" },
  { name: "file", filename: "input.jsonl", content: LINE },
];
const TAIL = `\r\n--${BOUNDARY}--\r\n`;
const HEAD = multipart(FILE_PARTS).slice(0, -TAIL.length);

/** Sends a file up to the end of its content, but not the end of the form; resolves when it is being stored. */
async function openFile(key: string, { length = HEAD.length + TAIL.length } = {}) {
  const before = api.storedFiles().length;
  const connection = await RawConnection.open(api.url);
  connection.send(filePost(HEAD, key, length));
  await expect.poll(() => api.storedFiles().length).toBe(before + 1);
  return connection;
}

test("while a request is under way, its repetition is asked to come again", async () => {
  const key = newKey();
  using connection = await openFile(key);
  const { status, headers, body } = await send({ ...file(), key });
  expect(status).toBe(409);
  expect(headers.get("x-should-retry")).toBe("true");
  expect(headers.get("retry-after")).toBe("1");
  expect(body.error).toEqual({
    message: `A request with the Idempotency-Key '${key}' is being carried out. Ask again for its answer.`,
    type: "invalid_request_error",
    param: "Idempotency-Key",
    code: "idempotency_key_in_use",
  });

  connection.send(TAIL);
  const first = await connection.answer();
  expect(first.status).toBe(200);
  const again = await send({ ...file(), key });
  expect([again.isReplayed, again.body]).toEqual([true, JSON.parse(first.body)]);
});

describe("a request that takes longer than any claim", () => {
  /** An upload whose last bytes are still to come, on a server whose time stands still. */
  async function slowUpload(clock: FakeClock) {
    const on = await startTestApi({ clock });
    const connection = await RawConnection.open(on.url);
    connection.send(filePost(HEAD, "slow", HEAD.length + TAIL.length));
    await expect.poll(() => on.storedFiles().length).toBe(1);
    return { on, connection };
  }

  test("keeps its key: its repetition has to wait, and then gets its answer", async () => {
    const clock = new FakeClock(Date.now());
    const { on, connection } = await slowUpload(clock);
    await using _ = on;
    // Each renewal comes a second before its claim would end.
    const stepMs = CLAIM_MS - 1_000;
    for (let passedMs = 0; passedMs < DAY_MS + CLAIM_MS; passedMs += stepMs) {
      clock.advance(stepMs);
      await clock.asleep(1, clock.nowMs() + 1);
    }
    expect((await send({ ...file(), key: "slow", on })).status).toBe(409);
    connection.send(TAIL);
    const first = await connection.answer();
    expect(first.status).toBe(200);
    const again = await send({ ...file(), key: "slow", on });
    expect([again.isReplayed, again.body]).toEqual([true, JSON.parse(first.body)]);
    expect(await countOf("/v1/files", on)).toBe(1);
    connection.socket.destroy();
  });

  test("stores nothing when it has lost its key to another after all", async () => {
    const clock = new FakeClock(Date.now());
    const { on, connection } = await slowUpload(clock);
    await using _ = on;
    const { store } = on;
    // As after a machine that slept: the claim is over before its next renewal is due.
    clock.setBy(CLAIM_MS);
    const thief = { owner: "other", ttlMs: CLAIM_MS };
    expect(await store.claimIdempotencyKey("default", "slow", thief)).toEqual({ kind: "new" });
    connection.send(TAIL);
    const answer = await connection.answer();
    expect([answer.status, JSON.parse(answer.body).error.code]).toEqual([
      409,
      "idempotency_key_in_use",
    ]);
    expect(await countOf("/v1/files", on)).toBe(0);
    expect(on.storedFiles()).toEqual([]);
    connection.socket.destroy();
  });
});

describe("across a restart", () => {
  const dataDir = mkdtempSync(join(tmpdir(), "batchd-keys-"));
  afterAll(() => rmSync(dataDir, { recursive: true }));

  test("an answer is remembered, and a key whose request was cut off is free", async () => {
    const request = { ...batch(), key: "answered" };
    const cutOff = { ...batch(), key: "cut off" };
    const first = await (async () => {
      await using before = await startTestApi({ dataDir });
      await before.store.claimIdempotencyKey("default", "cut off", {
        owner: "a process that dies",
        ttlMs: DAY_MS,
      });
      expect((await send({ ...cutOff, on: before })).status).toBe(409);
      return await send({ ...request, on: before });
    })();

    await using after = await startTestApi({ dataDir });
    const again = await send({ ...request, on: after });
    expect([again.isReplayed, again.body]).toEqual([true, first.body]);
    expect((await send({ ...cutOff, on: after })).status).toBe(200);
  });
});

describe("a key", () => {
  test.each([
    ["that is empty", ""],
    ["of 256 characters", "k".repeat(256)],
    ["with a tab", "a\tb"],
    ["with other than ASCII", "clé"],
  ])("%s is refused", async (_case, key) => {
    const { body } = batch();
    const head = `POST /v1/batches HTTP/1.1\r\nHost: x\r\nIdempotency-Key: ${key}\r\n`;
    const answer = await rawRequest(
      api.url,
      `${head}Content-Length: ${body.length}\r\n\r\n${body}`,
    );
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.body).error).toEqual({
      message: "Invalid 'Idempotency-Key': expected 1 to 255 printable ASCII characters.",
      type: "invalid_request_error",
      param: "Idempotency-Key",
      code: "invalid_value",
    });
  });

  test("of 255 characters is fine", async () => {
    expect((await send({ ...batch(), key: "k".repeat(255) })).status).toBe(200);
  });

  test("is not asked for", async () => {
    const first = await send(batch());
    const second = await send(batch());
    expect(second.isReplayed).toBe(false);
    expect(second.body.id).not.toBe(first.body.id);
  });
});
