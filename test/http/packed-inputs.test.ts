/** Inputs that come as gzip or zstd. */
import { createHash } from "node:crypto";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestApi } from "../support/test-http.ts";

const MAX_BYTES = 128 * 1024;
const LINE = '{"custom_id":"a"}\n';
const TEXT = LINE.repeat(2_000);
const PACK = { gz: gzipSync, zst: zstdCompressSync } as const;
const FORMATS = ["gz", "zst"] as const;

const api = forAllTests(await startTestApi({ limits: { maxFileBytes: MAX_BYTES } }));

interface Sent {
  readonly name: string;
  readonly content: Buffer | Blob;
  readonly purpose?: string;
  readonly isFileFirst?: boolean;
}

async function send({ name, content, purpose = "batch", isFileFirst = false }: Sent) {
  const form = new FormData();
  const file = content instanceof Blob ? content : new Blob([new Uint8Array(content)]);
  if (!isFileFirst) form.append("purpose", purpose);
  form.append("file", file, name);
  if (isFileFirst) form.append("purpose", purpose);
  const response = await api.fetch("/v1/files", { method: "POST", body: form });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const download = async (id: unknown) => (await api.fetch(`/v1/files/${id}/content`)).text();
const messageOf = (body: Record<string, unknown>) => (body["error"] as { message: string }).message;

describe.each(FORMATS)("an input as .%s", (format) => {
  const packed = PACK[format](Buffer.from(TEXT));

  test.each([
    ["its purpose first", { isFileFirst: false }],
    ["its purpose last", { isFileFirst: true }],
  ])("is a file of its lines, with %s", async (_name, order) => {
    const { body } = await send({ name: `in.jsonl.${format}`, content: packed, ...order });
    expect(body).toMatchObject({ filename: "in.jsonl", bytes: TEXT.length, purpose: "batch" });
    expect(await download(body["id"])).toBe(TEXT);
    const stored = await api.store.findFile({ project: "default", id: body["id"] as never });
    expect(stored?.sha256).toBe(createHash("sha256").update(TEXT).digest("hex"));
  });

  test("is known by its first bytes, too", async () => {
    const { body } = await send({ name: "in.jsonl", content: packed });
    expect(body).toMatchObject({ filename: "in.jsonl", bytes: TEXT.length });
  });

  test("may be made of several files", async () => {
    const content = Buffer.concat([packed, packed, PACK[format](Buffer.alloc(0)), packed]);
    const { body } = await send({ name: `in.${format}`, content });
    expect(await download(body["id"])).toBe(TEXT.repeat(3));
  });

  test.each([
    ["is cut off", packed.subarray(0, packed.length - 5)],
    ["is followed by something else", Buffer.concat([packed, Buffer.from("{}\n")])],
    ["is no more than its beginning", packed.subarray(0, 5)],
    ["is damaged", Buffer.concat([packed.subarray(0, 12), Buffer.alloc(40, 0xff)])],
  ])("that %s is refused, and nothing is kept", async (_name, content) => {
    const before = api.storedFiles();
    const { status, body } = await send({ name: `in.jsonl.${format}`, content });
    expect([status, messageOf(body)]).toEqual([400, expect.stringContaining("cannot be unpacked")]);
    expect(api.storedFiles()).toEqual(before);
  });

  test("that unpacks to more than a file may have ends there", async () => {
    const content = PACK[format](Buffer.alloc(64 * MAX_BYTES, LINE));
    expect(content.length).toBeLessThan(MAX_BYTES);
    const { status, body } = await send({ name: `in.jsonl.${format}`, content });
    expect([status, messageOf(body)]).toEqual([400, expect.stringContaining("too large")]);
  });

  test("that unpacks to no end of nothing ends at the same limit", async () => {
    const nothing = PACK[format](Buffer.alloc(0));
    const content = Buffer.concat(Array.from({ length: MAX_BYTES / 8 }, () => nothing));
    const { status, body } = await send({ name: `in.jsonl.${format}`, content });
    expect([status, messageOf(body)]).toEqual([400, expect.stringMatching(/too (?:large|many)/)]);
  });

  test("whose content is no input says so", async () => {
    const content = PACK[format](Buffer.from("a,b\n1,2\n"));
    const { status, body } = await send({ name: `in.csv.${format}`, content });
    expect([status, messageOf(body)]).toEqual([400, expect.stringContaining("Must be .jsonl")]);
  });

  test("of an upload in parts is unpacked when it is complete", async () => {
    const { uploads } = api.client;
    const mime_type = "application/jsonl";
    const upload = await uploads.create({
      bytes: packed.length,
      filename: `big.jsonl.${format}`,
      mime_type,
      purpose: "batch",
    });
    const pieces = [packed.subarray(0, 10), packed.subarray(10)];
    const part_ids: string[] = [];
    for (const piece of pieces) {
      const data = new File([new Uint8Array(piece)], "part");
      part_ids.push((await uploads.parts.create(upload.id, { data })).id);
    }
    const { file } = await uploads.complete(upload.id, { part_ids });
    expect(file).toMatchObject({ filename: "big.jsonl", bytes: TEXT.length });
    expect(await download(file?.id)).toBe(TEXT);
  });

  test("of another purpose is kept as it is", async () => {
    const name = `data.${format}`;
    const { body } = await send({ name, content: packed, purpose: "fine-tune" });
    expect(body).toMatchObject({ filename: name, bytes: packed.length });
  });
});

const BOUNDARY = "b";
const FILE_HEAD = `--${BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.gz"\r\n\r\n`;
const LATE_PURPOSE = `\r\n--${BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--${BOUNDARY}--\r\n`;

/** Begins to send a form with a packed file. Resolves when the server has begun to store it. */
async function begin(signal?: AbortSignal) {
  const before = api.storedFiles();
  let controller = null as ReadableStreamDefaultController<Uint8Array> | null;
  const body = new ReadableStream<Uint8Array>({
    start(each) {
      controller = each;
    },
  });
  const write = (bytes: Uint8Array | string) => controller?.enqueue(Buffer.from(bytes));
  const answer = api.fetch("/v1/files", {
    method: "POST",
    body,
    duplex: "half",
    ...(signal && { signal }),
    headers: { "content-type": `multipart/form-data; boundary=${BOUNDARY}` },
  } as RequestInit);
  answer.catch(() => {});
  write(Buffer.concat([Buffer.from(FILE_HEAD), gzipSync(TEXT)]));
  await expect.poll(() => api.storedFiles().length).toBeGreaterThan(before.length);
  return { before, answer, write, end: () => controller?.close() };
}

test("a packed file of another purpose cannot come before its purpose", async () => {
  const { answer, write, end } = await begin();
  write(LATE_PURPOSE);
  end();
  const response = await answer;
  const body = (await response.json()) as Record<string, unknown>;
  expect([response.status, messageOf(body)]).toEqual([400, expect.stringContaining("HINT")]);
});

test("a plain file whose name ends like a packed one is what it is", async () => {
  const { body } = await send({ name: "in.gz", content: Buffer.from(LINE), isFileFirst: true });
  expect(body).toMatchObject({ filename: "in.gz", bytes: LINE.length });
});

test("a level of zstd that needs a window of more than 8 MiB is refused", async () => {
  // A frame whose header asks for a window of 128 MiB.
  const content = Buffer.from("28b52ffd0088010000", "hex");
  const { status, body } = await send({ name: "in.zst", content });
  expect([status, messageOf(body)]).toEqual([400, expect.stringContaining("cannot be unpacked")]);
});

test("zstd of thousands of tiny frames, each of which costs time, is refused", async () => {
  const frame = zstdCompressSync(Buffer.from(LINE));
  const few = Buffer.concat(Array<Buffer>(1_000).fill(frame));
  const bytes = 1_000 * LINE.length;
  expect((await send({ name: "in.zst", content: few })).body).toMatchObject({ bytes });
  const skipped = Buffer.from("502a4d1800000000", "hex");
  for (const many of [
    [few, few],
    [frame, ...Array<Buffer>(2_000).fill(skipped)],
  ]) {
    const { status, body } = await send({ name: "in.zst", content: Buffer.concat(many) });
    expect([status, messageOf(body)]).toEqual([400, expect.stringContaining("too many frames")]);
  }
});

test("a client that goes away in the middle leaves nothing behind", async () => {
  const stop = new AbortController();
  const { before, answer } = await begin(stop.signal);
  stop.abort();
  await expect(answer).rejects.toThrow();
  await expect.poll(() => api.storedFiles()).toEqual(before);
});
