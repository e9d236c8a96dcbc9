/** Uploads and downloads of a server whose files are in a bucket. */
import { createHash } from "node:crypto";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type S3Proxy, startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, newPrefix, type S3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";

const MIB = 1024 * 1024;

let server: S3Server;
let proxy: S3Proxy;
let service: TestService;

const KEYS = [
  { name: "one", key: "key-of-one-0123456789", project: "one" },
  { name: "other", key: "key-of-other-0123456789", project: "other" },
];

const clientFor = (key: string) =>
  new OpenAI({ baseURL: `${service.url}/v1`, apiKey: key, maxRetries: 0 });
const openai = () => clientFor(KEYS[0]!.key);

/** Returns JSONL of exactly so many bytes. */
function jsonl(bytes: number): Buffer {
  const line = `${JSON.stringify({ filler: "x".repeat(1_000) })}\n`;
  const lines = Buffer.from(line.repeat(Math.ceil(bytes / line.length))).subarray(0, bytes);
  lines[bytes - 1] = 0x0a;
  return lines;
}

/** Uploads parts of these sizes, and returns what completes them. */
async function uploadParts(content: Buffer, sizes: readonly number[]) {
  const upload = await openai().uploads.create({
    bytes: content.length,
    filename: "in.jsonl",
    mime_type: "text/jsonl",
    purpose: "batch",
  });
  const part_ids: string[] = [];
  let at = 0;
  for (const bytes of sizes) {
    const data = new File([content.subarray(at, at + bytes)], "part");
    part_ids.push((await openai().uploads.parts.create(upload.id, { data })).id);
    at += bytes;
  }
  return { id: upload.id, part_ids };
}

const sentSince = (from: number, operation: string) =>
  proxy.requests.slice(from).filter((asked) => asked.includes(`x-id=${operation}`));

const download = (id: string, headers: Record<string, string> = {}, method = "GET") =>
  fetch(`${service.url}/v1/files/${id}/content`, {
    method,
    redirect: "manual",
    headers: { authorization: `Bearer ${KEYS[0]!.key}`, ...headers },
  });

describe.skipIf(!hasS3Server())("with a bucket", () => {
  beforeAll(async () => {
    server = await startS3Server();
    proxy = await startS3Proxy(server.url);
    const storage = server.storage({ endpoint: proxy.url, presigned_downloads: true });
    service = await startTestService({
      config: { storage: { ...storage, presigned_seconds: "2m" }, auth: { keys: KEYS } },
    });
  });
  afterAll(async () => {
    await service[Symbol.asyncDispose]();
    await proxy[Symbol.asyncDispose]();
    await server[Symbol.asyncDispose]();
  });

  test.each([
    ["large parts are copied by the bucket", [6, 11, 1], { copies: 3, uploads: 0 }],
    ["small parts go up with the next one", [1, 1, 9, 6, 2], { copies: 2, uploads: 2 }],
    ["a small end goes up", [6, 1, 1], { copies: 1, uploads: 1 }],
  ])("an upload is completed without writing its bytes again: %s", async (_, sizes, expected) => {
    const bytes = sizes.map((mib, i) => mib * MIB + (i === 0 ? 3 : 0));
    const content = jsonl(bytes.reduce((sum, each) => sum + each, 0));
    const { id, part_ids } = await uploadParts(content, bytes);
    const from = proxy.requests.length;
    const md5 = createHash("md5").update(content).digest("hex");
    const { file } = await openai().uploads.complete(id, { part_ids, md5 });
    expect(sentSince(from, "UploadPartCopy")).toHaveLength(expected.copies);
    expect(sentSince(from, "UploadPart").length - expected.copies).toBe(expected.uploads);
    expect(sentSince(from, "PutObject")).toHaveLength(0);
    const got = Buffer.from(await (await openai().files.content(file!.id)).arrayBuffer());
    expect(got.equals(content)).toBe(true);
    const sha256 = createHash("sha256").update(content).digest("hex");
    const head = await download(file!.id, {}, "HEAD");
    expect(head.headers.get("etag")).toBe(`"${sha256}"`);
  });

  test("an upload with other bytes than the client says is refused, leaves nothing, and may be completed rightly", async () => {
    const content = jsonl(12 * MIB);
    const { id, part_ids } = await uploadParts(content, [6 * MIB, 6 * MIB]);
    const refused = openai().uploads.complete(id, { part_ids, md5: "0".repeat(32) });
    await expect(refused).rejects.toThrow(/The MD5 of the parts together is/);
    const begun = proxy.requests.filter((asked) => asked.startsWith("POST ?uploads"));
    const ended = proxy.requests.filter((asked) =>
      /^(?:DELETE|POST) \?uploadId=|AbortMultipart|CompleteMultipart/.test(asked),
    );
    expect(ended.length).toBeGreaterThanOrEqual(begun.length);
    expect((await openai().uploads.complete(id, { part_ids })).status).toBe("completed");
  });

  test.each([
    ["is overloaded", { kind: "slow_down" }],
    ["does not find a part yet", { kind: "behind", path: /\/parts\//, times: 1_000 }],
  ] as const)(
    "while the bucket %s an upload is completed later, with the same parts",
    async (_, trouble) => {
      const content = jsonl(12 * MIB);
      const { id, part_ids } = await uploadParts(content, [6 * MIB, 6 * MIB]);
      proxy.trouble = trouble;
      const error = await openai()
        .uploads.complete(id, { part_ids })
        .catch((cause: unknown) => cause as InstanceType<typeof OpenAI.APIError>);
      proxy.trouble = null;
      expect(error).toMatchObject({ status: 503 });
      expect((error as { headers: Headers }).headers.get("retry-after")).toBe("5");
      expect((await openai().uploads.complete(id, { part_ids })).status).toBe("completed");
    },
  );

  test("a bucket that refuses a part of a file is named in the log, and its client is asked to wait", async () => {
    proxy.trouble = { kind: "denied", method: "PUT", path: /partNumber=1\b/ };
    const file = new File([jsonl(32 * MIB)], "large.jsonl");
    const error = await openai()
      .files.create({ file, purpose: "user_data" })
      .catch((cause: unknown) => cause as InstanceType<typeof OpenAI.APIError>);
    proxy.trouble = null;
    expect(error).toMatchObject({ status: 503 });
    expect((error as { headers: Headers }).headers.get("retry-after")).toBe("5");
    const said = service.events.all.findLast(({ err }) => err !== undefined);
    expect(said?.["err"]).toMatchObject({ message: expect.stringContaining("AccessDenied") });
  });

  test("a bucket that cannot copy gets the bytes, and is not asked again", async () => {
    const content = jsonl(12 * MIB);
    proxy.trouble = { kind: "no_copy" };
    const storage = server.storage({ endpoint: proxy.url, prefix: newPrefix() });
    await using other = await startTestService({ config: { storage } });
    for (const isAsked of [true, false]) {
      const upload = await other.openai.uploads.create({
        bytes: content.length,
        filename: "in.jsonl",
        mime_type: "text/jsonl",
        purpose: "batch",
      });
      const part_ids: string[] = [];
      for (const at of [0, 6 * MIB]) {
        const data = new File([content.subarray(at, at + 6 * MIB)], "part");
        part_ids.push((await other.openai.uploads.parts.create(upload.id, { data })).id);
      }
      const from = proxy.requests.length;
      const { file } = await other.openai.uploads.complete(upload.id, { part_ids });
      expect(sentSince(from, "UploadPartCopy").length > 0).toBe(isAsked);
      const text = await (await other.openai.files.content(file!.id)).text();
      expect(text === content.toString()).toBe(true);
    }
    proxy.trouble = null;
  });

  test("a bucket that does not allow the copy gets the bytes", async () => {
    const content = jsonl(12 * MIB);
    const { id, part_ids } = await uploadParts(content, [6 * MIB, 6 * MIB]);
    proxy.trouble = { kind: "no_right_to_copy", allowedCount: 0 };
    const { file } = await openai().uploads.complete(id, { part_ids });
    proxy.trouble = null;
    const text = await (await openai().files.content(file!.id)).text();
    expect(text === content.toString()).toBe(true);
  });

  test("a copy that fails ends the others and the reading at once, and leaves nothing", async () => {
    const content = jsonl(40 * MIB);
    const { id, part_ids } = await uploadParts(content, Array(5).fill(8 * MIB));
    proxy.trouble = { kind: "no_right_to_copy", allowedCount: 1 };
    const from = proxy.requests.length;
    const refused = openai().uploads.complete(id, { part_ids });
    await expect(refused).rejects.toMatchObject({ status: 503 });
    proxy.trouble = null;
    // Each of the five parts is read by a request of its own.
    expect(sentSince(from, "GetObject").length).toBeLessThan(5);
    // A part that is read ahead may be asked for later than that.
    const writes = proxy.requests.slice(from).filter((asked) => !asked.startsWith("GET"));
    expect(writes.at(-1)).toMatch(/x-id=(?:AbortMultipartUpload|DeleteObject)/);
    expect((await openai().uploads.complete(id, { part_ids })).status).toBe("completed");
  });

  test.each([
    ["joins the parts of an upload", [6, 6], "answer_lost"],
    ["stores a file that is uploaded in parts", [12], "answer_lost"],
    ["is repeated when the parts are joined", [6, 6], "joined"],
    ["is repeated when the file is stored", [12], "joined"],
  ] as const)(
    "a request whose answer is lost has succeeded all the same: one that %s",
    async (_, mib, kind) => {
      const content = jsonl(12 * MIB);
      const isJoined = mib.length > 1;
      const upload = isJoined ? await uploadParts(content, [6 * MIB, 6 * MIB]) : null;
      proxy.trouble = { kind };
      const file =
        upload === null
          ? await openai().files.create({
              file: new File([content], "in.jsonl"),
              purpose: "batch",
            })
          : (await openai().uploads.complete(upload.id, { part_ids: upload.part_ids })).file!;
      proxy.trouble = null;
      const text = await (await openai().files.content(file.id)).text();
      expect(text === content.toString()).toBe(true);
    },
  );

  test("a download is a redirect to a signed address of the bucket, which the SDK follows", async () => {
    const text = `${chatLines(3).join("\n")}\n`;
    const file = await openai().files.create({
      file: new File([text], "größe.jsonl"),
      purpose: "batch",
    });
    const redirect = await download(file.id);
    expect(redirect.status).toBe(302);
    expect(redirect.headers.get("cache-control")).toBe("no-store");
    const location = redirect.headers.get("location") ?? "";
    expect(location).toMatch(new RegExp(`^${proxy.url}/.*X-Amz-Expires=120&`));
    expect(location).not.toContain("checksum");
    const followed = await fetch(location);
    expect(await followed.text()).toBe(text);
    expect(followed.headers.get("content-type")).toBe("application/octet-stream");
    expect(followed.headers.get("content-disposition")).toContain("filename*=UTF-8''gr%C3%B6");
    expect(await (await openai().files.content(file.id)).text()).toBe(text);
    const part = await fetch(`${service.url}/v1/files/${file.id}/content`, {
      headers: { authorization: `Bearer ${KEYS[0]!.key}`, range: "bytes=2-5" },
    });
    expect([part.status, await part.text()]).toEqual([206, text.slice(2, 6)]);
    expect((await download(file.id, { range: "bytes=999999-" })).status).toBe(416);
    const head = await download(file.id, {}, "HEAD");
    expect([head.status, head.headers.get("content-length")]).toEqual([
      200,
      `${Buffer.byteLength(text)}`,
    ]);
    const etag = head.headers.get("etag") ?? "";
    const resumed = await download(file.id, { range: "bytes=2-", "if-range": etag });
    expect([resumed.status, await resumed.text()]).toEqual([206, text.slice(2)]);
    const withApiKey = { authorization: "", "api-key": KEYS[0]!.key };
    expect((await download(file.id, withApiKey)).status).toBe(200);
  });

  test("there is no redirect to a file of another project, and none to one that was deleted", async () => {
    const file = await openai().files.create({
      file: new File(["{}\n"], "a.jsonl"),
      purpose: "batch",
    });
    const foreign = await download(file.id, { authorization: `Bearer ${KEYS[1]!.key}` });
    expect([foreign.status, foreign.headers.get("location")]).toEqual([404, null]);
    await openai().files.delete(file.id);
    expect((await download(file.id)).status).toBe(404);
  });
});
