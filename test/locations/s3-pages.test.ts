/** A bucket whose server is away behind a proxy, which answers in its place, or which says what passes with time. */
import { createServer } from "node:http";
import { buffer } from "node:stream/consumers";
import { PutObjectCommand } from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { BUCKET, BucketLocations } from "../support/bucket-locations.ts";
import { listening } from "../support/listening.ts";
import { aBrokenFile, aCall, aFile, aParcel, Progress, pathOf } from "../support/parcels.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server } from "../support/s3-server.ts";

const OTHER = "another server answers 404 in its place";

let bucket: BucketLocations;

describe.runIf(hasS3Server())("a bucket in trouble", () => {
  beforeAll(async () => {
    bucket = await BucketLocations.start();
  });
  afterAll(() => bucket[Symbol.asyncDispose]());

  test("whose proxy answers with a page has given no word that there is no file", async () => {
    await using proxy = await startS3Proxy(bucket.url);
    const prefix = bucket.newPrefix();
    const location = bucket.openAt(prefix, { endpoint: proxy.url });
    const Key = `${prefix}in.jsonl`;
    await bucket.client.send(new PutObjectCommand({ Bucket: BUCKET, Key, Body: "x" }));
    const open = () => location.open(pathOf("in.jsonl"), aCall());

    proxy.trouble = { kind: "page_found", status: 404 };
    const away = { failure: "unavailable", message: `file in.jsonl in lake: ${OTHER}` };
    await expect(open()).rejects.toMatchObject(away);
    proxy.trouble = null;
    await using file = await open();
    expect(file.bytes).toBe(1);
    await expect(location.open(pathOf("no.jsonl"), aCall())).rejects.toMatchObject({
      failure: "not_found",
    });
  });

  test("whose proxy answers with a page has given no word that nothing is left of a delivery that was given up", async () => {
    await using proxy = await startS3Proxy(bucket.url);
    const prefix = bucket.newPrefix();
    const location = bucket.openAt(prefix, { endpoint: proxy.url });
    const broken = aBrokenFile(aFile("output.jsonl", "o\n"), 0, new Error("killed"));
    const files = [aFile("errors.jsonl", "e\n"), broken, aFile("run.json", "{}")];
    const progress = new Progress();
    const attempt = location.deliver(aParcel({ files }), aCall({ progress }));
    await expect(attempt).rejects.toThrow("killed");
    expect(bucket.filesBelow(prefix).size).toBe(1);

    proxy.trouble = { kind: "page_found", status: 404 };
    const discard = () => location.discard(progress.saved ?? "", aCall());
    await expect(discard()).rejects.toMatchObject({ failure: "unavailable" });
    proxy.trouble = null;
    await discard();
    expect(bucket.filesBelow(prefix).size).toBe(0);
  });

  test("is not said to be silent when another server has answered, or has less than it said", async () => {
    const server = createServer((asked, answer) => {
      asked.resume();
      const isShort = asked.url?.includes("short.jsonl");
      const length = { "content-length": 4, etag: '"tag"' };
      if (asked.method === "HEAD" && asked.url?.includes("in/"))
        answer.writeHead(200, length).end();
      else if (asked.method === "HEAD") answer.writeHead(404).end();
      else if (isShort) answer.writeHead(206, { "content-range": "bytes 0-1/2" }).end("ab");
      else answer.writeHead(200).end("abcd");
    });
    const location = bucket.openAt("", { endpoint: `http://127.0.0.1:${await listening(server)}` });
    const read = async (name: string) => {
      await using file = await location.open(pathOf(`in/${name}`), aCall());
      return await buffer(file.content);
    };
    await expect(read("whole.jsonl")).rejects.toThrow(
      "file in/whole.jsonl in lake: another server answers in its place: the server answers with another range",
    );
    await expect(read("short.jsonl")).rejects.toThrow(
      "file in/short.jsonl in lake: it ends before the length that the server gave for it",
    );
    await expect(location.deliver(aParcel(), aCall())).rejects.toThrow(
      "another server answers in its place: what was written has no ETag",
    );
  });

  test("that heeds no condition never gives two contents for one", async () => {
    let getCount = 0;
    const server = createServer((asked, answer) => {
      asked.resume();
      if (asked.method === "HEAD") {
        answer.writeHead(200, { "content-length": 4, etag: '"a"' }).end();
      } else if (++getCount === 1) {
        const head = { "content-length": 4, "content-range": "bytes 0-3/4", etag: 'W/"a"' };
        answer.writeHead(206, head).write("aa", () => setImmediate(() => answer.destroy()));
      } else {
        answer.writeHead(206, { "content-range": "bytes 2-3/4", etag: '"b"' }).end("bb");
      }
    });
    const location = bucket.openAt("", { endpoint: `http://127.0.0.1:${await listening(server)}` });
    await using file = await location.open(pathOf("in.jsonl"), aCall());
    await expect(buffer(file.content)).rejects.toMatchObject({
      failure: "unavailable",
      message: expect.stringContaining("changed while it was read"),
    });
    expect(getCount).toBe(2);
  });

  test.each([
    [403, "QuotaExceeded"],
    [400, "XMinioAdminBucketQuotaExceeded"],
    [403, "RequestTimeTooSkewed"],
    [400, "BadDigest"],
    [400, "IncompleteBody"],
    [400, "XAmzContentSHA256Mismatch"],
  ])("is asked again after what passes with time: %i %s", async (status, code) => {
    const text = `<?xml version="1.0"?><Error><Code>${code}</Code><Message>no</Message></Error>`;
    const troubled = createServer((asked, answer) => {
      asked.resume();
      if (asked.method === "HEAD") return answer.writeHead(404).end();
      return answer.writeHead(status, { "content-type": "application/xml" }).end(text);
    });
    const endpoint = `http://127.0.0.1:${await listening(troubled)}`;
    const delivered = bucket.openAt("p/", { endpoint }).deliver(aParcel(), aCall());
    await expect(delivered).rejects.toMatchObject({ failure: "unavailable", isRetryable: true });
  });
});
