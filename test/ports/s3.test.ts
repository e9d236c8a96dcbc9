import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import {
  CreateMultipartUploadCommand,
  ListMultipartUploadsCommand,
  S3Client,
} from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { BlobsUnavailable } from "../../src/blobs/blobs.ts";
import { S3Blobs } from "../../src/blobs/s3.ts";
import type { S3Options } from "../../src/blobs/s3-client.ts";
import { readObject } from "../../src/blobs/s3-reading.ts";
import { systemClock } from "../../src/clock.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { type S3Proxy, startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, S3_KEYS, type S3Server, startS3Server } from "../support/s3-server.ts";
import { describeBlobs } from "./blobs.ts";

const CREDENTIALS = {
  accessKeyId: S3_KEYS.access_key_id,
  secretAccessKey: S3_KEYS.secret_access_key,
};
const PART_BYTES = 5 * 1024 * 1024;

let server: S3Server;
let prefixCount = 0;
const opened: S3Blobs[] = [];

const newPrefix = () => `p${prefixCount++}/`;

function openBlobs(overrides: Partial<S3Options> = {}): S3Blobs {
  const blobs = new S3Blobs(
    {
      bucket: "tests",
      prefix: newPrefix(),
      region: "us-east-1",
      endpoint: server.url,
      forcePathStyle: true,
      credentials: CREDENTIALS,
      sendsChecksums: true,
      partBytes: PART_BYTES,
      timeoutMs: 30_000,
      ...overrides,
    },
    systemClock,
  );
  opened.push(blobs);
  return blobs;
}

/** Opens a client of the SDK, for what the port cannot say. */
function openClient(endpoint = server.url) {
  const client = new S3Client({
    region: "us-east-1",
    endpoint,
    forcePathStyle: true,
    credentials: CREDENTIALS,
  });
  return Object.assign(client, { [Symbol.dispose]: () => client.destroy() });
}

/** Stores an object. Returns a function that reads it over a proxy, with a clock that only the test moves. */
async function storeBehind(proxy: S3Proxy, bytes: Buffer) {
  const prefix = newPrefix();
  await openBlobs({ prefix }).putBytes("files/a", [bytes]);
  const client = openClient(proxy.url);
  const clock = new FakeClock();
  const object = { client, bucket: "tests", path: `${prefix}files/a`, key: "files/a", clock };
  const read = () => buffer(readObject(object, { start: 0, end: Number.POSITIVE_INFINITY }));
  return { read, clock, [Symbol.dispose]: () => client.destroy() };
}

async function unfinishedKeys(prefix: string): Promise<(string | undefined)[]> {
  using client = openClient();
  const query = { Bucket: "tests", Prefix: prefix };
  const { Uploads: uploads = [] } = await client.send(new ListMultipartUploadsCommand(query));
  return uploads.map(({ Key }) => Key?.slice(prefix.length)).sort();
}

async function keysOf(blobs: S3Blobs): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of blobs.list("")) keys.push(key);
  return keys;
}

const putText = (blobs: S3Blobs, key: string) => blobs.putBytes(key, [Buffer.from(key)]);

async function* piecesOf(bytes: Buffer, pieceBytes = 100_000) {
  for (let at = 0; at < bytes.length; at += pieceBytes) yield bytes.subarray(at, at + pieceBytes);
}

const numbered = (bytes: number) =>
  Buffer.from(Uint32Array.from({ length: bytes / 4 }, (_, i) => i).buffer);

describe.skipIf(!hasS3Server())("on an S3 server", () => {
  beforeAll(async () => {
    server = await startS3Server();
  });
  afterAll(async () => {
    for (const blobs of opened) await blobs.close();
    await server[Symbol.asyncDispose]();
  });

  describeBlobs("S3", async () => openBlobs());
  describeBlobs("S3 without checksums or a prefix of one name", async () =>
    openBlobs({ sendsChecksums: false, prefix: `a/b.c/${newPrefix()}` }),
  );

  test("a reader that takes an hour between two pieces gets the whole blob", async () => {
    const prefix = newPrefix();
    const blobs = openBlobs({ prefix });
    const bytes = numbered(2_000_000);
    await blobs.putBytes("files/a", [bytes]);
    using client = openClient();
    const clock = new FakeClock();
    const object = { client, bucket: "tests", path: `${prefix}files/a`, key: "files/a", clock };
    const pieces: Buffer[] = [];
    for await (const piece of readObject(object, { start: 0, end: Number.POSITIVE_INFINITY })) {
      pieces.push(piece);
      clock.advance(3_600_000);
    }
    expect(Buffer.concat(pieces).equals(bytes)).toBe(true);
  });

  test("a read goes on after attempts without an answer, until their time limit", async () => {
    await using proxy = await startS3Proxy(server.url);
    const bytes = numbered(1_000_000);
    using stored = await storeBehind(proxy, bytes);
    proxy.trouble = { kind: "hold", method: "GET", path: /files/ };
    const read = stored.read();
    await expect.poll(() => proxy.held.length).toBe(1);
    stored.clock.advance(60_000);
    proxy.trouble = null;
    expect((await read).equals(bytes)).toBe(true);
  });

  test("a read goes on after a long silence near its beginning", async () => {
    await using proxy = await startS3Proxy(server.url);
    const bytes = numbered(1_000_000);
    using stored = await storeBehind(proxy, bytes);
    const beforeBreak = () => {
      stored.clock.advance(30_000);
      proxy.trouble = null;
    };
    proxy.trouble = { kind: "cut", afterBytes: 16_000, beforeBreak };
    expect((await stored.read()).equals(bytes)).toBe(true);
  });

  test("a byte and a long silence in turn end a read", async () => {
    await using proxy = await startS3Proxy(server.url);
    using stored = await storeBehind(proxy, numbered(2_000));
    let silenceCount = 0;
    const beforeBreak = () => {
      stored.clock.advance(30_000);
      silenceCount++;
    };
    proxy.trouble = { kind: "cut", afterBytes: 1, beforeBreak };
    await expect(stored.read()).rejects.toThrow(BlobsUnavailable);
    expect(silenceCount).toBeLessThan(5);
  });

  test("a read whose last byte has come slowly is whole", async () => {
    await using proxy = await startS3Proxy(server.url);
    const bytes = Buffer.from("last");
    using stored = await storeBehind(proxy, bytes);
    let sentBytes = 0;
    const beforeByte = () => stored.clock.advance(++sentBytes === bytes.length ? 15_000 : 5_000);
    proxy.trouble = { kind: "trickle", beforeByte };
    expect((await stored.read()).equals(bytes)).toBe(true);
  });

  test("deployments with prefixes of their own do not see or delete each other's blobs", async () => {
    const [one, other] = [openBlobs({ prefix: "one/" }), openBlobs({ prefix: "one/two/" })];
    for (const blobs of [one, other]) await putText(blobs, "files/a");
    await one.deleteAll("files/");
    expect(await keysOf(other)).toEqual(["files/a"]);
    expect(await one.isEmpty()).toBe(false);
    await other.delete("files/a");
    expect(await one.isEmpty()).toBe(true);
  });

  test("thousands of blobs are listed in pages and deleted a thousand in one request", async () => {
    await using proxy = await startS3Proxy(server.url);
    const prefix = newPrefix();
    const blobs = openBlobs({ prefix, endpoint: proxy.url });
    const folder = join(server.bucketFolder, prefix, "journal/b");
    mkdirSync(folder, { recursive: true });
    for (let i = 0; i < 2_300; i++) writeFileSync(join(folder, `${i}`), "x");
    await putText(blobs, "journal/b2");
    const keys = (await keysOf(blobs)).filter((key) => key.startsWith("journal/b/"));
    expect(new Set(keys).size).toBe(2_300);
    const deletions = () => proxy.requests.filter((asked) => asked.startsWith("POST ?delete"));
    await blobs.delete(...keys.slice(0, 1_100));
    expect(deletions()).toHaveLength(2);
    await blobs.deleteAll("journal/b/");
    expect(deletions()).toHaveLength(4);
    expect(await keysOf(blobs)).toEqual(["journal/b2"]);
  });

  test("an upload whose source fails leaves no parts behind", async () => {
    const prefix = newPrefix();
    const blobs = openBlobs({ prefix });
    const seen: number[] = [];
    const fault = new Error("the client went away");
    async function* failing() {
      yield Buffer.alloc(2 * PART_BYTES + 1);
      while ((await unfinishedKeys(prefix)).length === 0) yield Buffer.alloc(1);
      seen.push((await unfinishedKeys(prefix)).length);
      throw fault;
    }
    await expect(blobs.put("files/a", failing())).rejects.toBe(fault);
    expect(seen).toEqual([1]);
    expect(await unfinishedKeys(prefix)).toEqual([]);
  });

  test("a large blob is never in memory as a whole: a slow bucket slows its source down", async () => {
    await using proxy = await startS3Proxy(server.url);
    const blobs = openBlobs({ endpoint: proxy.url });
    const bytes = Buffer.alloc(12 * PART_BYTES, 7);
    let pulled = 0;
    let mostAhead = 0;
    async function* source() {
      for await (const piece of piecesOf(bytes)) {
        pulled += piece.length;
        const isPart = (asked: string) => asked.includes("x-id=UploadPart");
        const sentBytes = proxy.requests.filter(isPart).length * PART_BYTES;
        mostAhead = Math.max(mostAhead, pulled - sentBytes);
        yield piece;
      }
    }
    expect(await blobs.put("large", source())).toEqual({ bytes: bytes.length });
    expect(mostAhead).toBeLessThanOrEqual(3 * PART_BYTES);
  });

  test("what writers that are gone left unfinished is removed, and no other upload", async () => {
    const prefix = newPrefix();
    const blobs = openBlobs({ prefix });
    using client = openClient();
    // Another tool may use names below those of blobs.
    const gone = ["files/gone", "files/my file.bin"];
    for (const key of [...gone, "files/live", "files/stored", "files/gone"]) {
      await client.send(new CreateMultipartUploadCommand({ Bucket: "tests", Key: prefix + key }));
    }
    await putText(blobs, "files/stored");
    const asked: string[] = [];
    await blobs.removeUnfinished(async (keys) => {
      asked.push(...keys);
      return gone;
    });
    expect(asked.sort()).toEqual([...gone, "files/live", "files/stored"].sort());
    expect(await unfinishedKeys(prefix)).toEqual(["files/live"]);
    expect(await keysOf(blobs)).toEqual(["files/stored"]);
  });

  test("a list that goes in circles has an end", async () => {
    await using proxy = await startS3Proxy(server.url);
    const blobs = openBlobs({ endpoint: proxy.url });
    proxy.trouble = { kind: "same_page" };
    expect(await keysOf(blobs)).toEqual([]);
    await blobs.removeUnfinished(async () => []);
    expect(proxy.requests).toHaveLength(4);
  });

  test("a read goes on where its connection broke, as long as there is progress", async () => {
    await using proxy = await startS3Proxy(server.url);
    const blobs = openBlobs({ endpoint: proxy.url });
    const bytes = numbered(3_000_000);
    await blobs.putBytes("cut", [bytes]);
    proxy.trouble = { kind: "cut", afterBytes: 700_000 };
    expect((await buffer(blobs.read("cut"))).equals(bytes)).toBe(true);
    const part = await blobs.readRange("cut", { start: 1_000, end: 2_900_000 });
    expect(part.equals(bytes.subarray(1_000, 2_900_000))).toBe(true);
    proxy.trouble = { kind: "cut", afterBytes: 0 };
    await expect(buffer(blobs.read("cut"))).rejects.toBeInstanceOf(BlobsUnavailable);
  });

  test("an answer that ends too early is no whole one, and no reason to ask for ever", async () => {
    await using proxy = await startS3Proxy(server.url);
    const blobs = openBlobs({ endpoint: proxy.url });
    const bytes = numbered(3_000_000);
    await blobs.putBytes("short", [bytes]);
    proxy.trouble = { kind: "short", afterBytes: 700_000 };
    const part = await blobs.readRange("short", { start: 1_000, end: 2_900_000 });
    expect(part.equals(bytes.subarray(1_000, 2_900_000))).toBe(true);
    proxy.trouble = { kind: "short", afterBytes: 0 };
    const range = { start: 0, end: 10 };
    await expect(blobs.readRange("short", range)).rejects.toBeInstanceOf(BlobsUnavailable);
    await expect(buffer(blobs.read("short"))).rejects.toBeInstanceOf(BlobsUnavailable);
  });

  test("a request is repeated while the bucket asks to slow down for a moment", async () => {
    await using proxy = await startS3Proxy(server.url);
    const blobs = openBlobs({ endpoint: proxy.url });
    proxy.trouble = { kind: "slow_down" };
    const stored = putText(blobs, "files/a");
    await expect.poll(() => proxy.requests.length).toBeGreaterThanOrEqual(2);
    proxy.trouble = null;
    await stored;
    expect((await buffer(blobs.read("files/a"))).toString()).toBe("files/a");
  });

  test.each(["slow_down", "silent", "away"] as const)(
    "a bucket that is %s fails every operation as unavailable, which passes",
    async (trouble) => {
      await using proxy = await startS3Proxy(server.url);
      const blobs = openBlobs({ endpoint: proxy.url, timeoutMs: 200 });
      if (trouble === "away") await proxy[Symbol.asyncDispose]();
      else proxy.trouble = { kind: trouble };
      const failing = [
        putText(blobs, "a"),
        blobs.put("b", piecesOf(Buffer.alloc(2 * PART_BYTES))),
        buffer(blobs.read("a")),
        blobs.readRange("a", { start: 0, end: 1 }),
        keysOf(blobs),
        blobs.delete("a"),
        blobs.delete("a", "b"),
        blobs.removeUnfinished(async () => []),
        blobs.ping(),
      ];
      for (const result of await Promise.allSettled(failing)) {
        expect(result).toMatchObject({ reason: { code: "BLOBS_UNAVAILABLE", isRefusal: false } });
      }
    },
  );

  test("a server that named another region for a while is asked as before once it has come to itself", async () => {
    await using proxy = await startS3Proxy(server.url);
    const blobs = openBlobs({ endpoint: proxy.url });
    proxy.trouble = { kind: "other_region" };
    const refused = { status: "rejected", reason: { code: "BLOBS_UNAVAILABLE" } };
    const pings = Array.from({ length: 20 }, () => blobs.ping());
    for (const ping of await Promise.allSettled(pings)) expect(ping).toMatchObject(refused);
    proxy.trouble = null;
    await blobs.ping();
  });

  test("wrong credentials and a missing bucket are the operator's to correct, not missing blobs", async () => {
    const wrong = [
      openBlobs({ bucket: "no-such-bucket" }),
      openBlobs({ credentials: { ...CREDENTIALS, secretAccessKey: "wrong" } }),
    ];
    for (const blobs of wrong) {
      const refused = { code: "BLOBS_UNAVAILABLE", isRefusal: true };
      await expect(buffer(blobs.read("a"))).rejects.toMatchObject(refused);
      await expect(blobs.ping()).rejects.toMatchObject(refused);
      await expect(blobs.isEmpty()).rejects.toMatchObject(refused);
    }
  });
});
