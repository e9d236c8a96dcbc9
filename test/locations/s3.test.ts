import { existsSync, readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import {
  AbortMultipartUploadCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  HeadObjectCommand,
  ListMultipartUploadsCommand,
  PutObjectCommand,
  S3Client,
} from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import type { ParcelFile } from "../../src/locations/location.ts";
import { Locations } from "../../src/locations/locations.ts";
import { S3Location, type S3LocationOptions } from "../../src/locations/s3/s3.ts";
import { partBytesFor } from "../../src/locations/s3/upload.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { listening } from "../support/listening.ts";
import {
  aBrokenFile,
  aCall,
  aFile,
  aParcel,
  Progress,
  pathOf,
  patternOf,
} from "../support/parcels.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, S3_KEYS, type S3Server, startS3Server } from "../support/s3-server.ts";
import { describeLocation } from "./suite.ts";

const CREDENTIALS = {
  accessKeyId: S3_KEYS.access_key_id,
  secretAccessKey: S3_KEYS.secret_access_key,
};
const MIB = 1024 * 1024;
const BUCKET = "tests";

let server: S3Server;
let client: S3Client;
let prefixCount = 0;

function openAt(prefix: string, overrides: Partial<S3LocationOptions> = {}): S3Location {
  return new S3Location({
    ...{ name: "lake", bucket: BUCKET, prefix, region: "us-east-1", endpoint: server.url },
    ...{ forcePathStyle: true, credentials: CREDENTIALS, sendsChecksums: true },
    ...{ timeoutMs: 30_000, clock: systemClock, ...overrides },
  });
}

const newPrefix = () => `p${prefixCount++}/`;

function filesBelow(folder: string): Map<string, Buffer> {
  const root = join(server.bucketFolder, folder);
  const entries = existsSync(root)
    ? readdirSync(root, { recursive: true, withFileTypes: true })
    : [];
  return new Map(
    entries
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
      .map((path) => [path.slice(root.length + 1), readFileSync(path)]),
  );
}

/** The keys of the uploads that have begun and not ended. */
async function unfinished(prefix: string): Promise<string[]> {
  const query = { Bucket: BUCKET, Prefix: prefix };
  const { Uploads: uploads = [] } = await client.send(new ListMultipartUploadsCommand(query));
  return uploads.map(({ Key = "" }) => Key.slice(prefix.length)).sort();
}

describe.runIf(hasS3Server())("a bucket", () => {
  beforeAll(async () => {
    server = await startS3Server();
    client = new S3Client({
      ...{ region: "us-east-1", endpoint: server.url, forcePathStyle: true },
      credentials: CREDENTIALS,
    });
  });
  afterAll(async () => {
    client.destroy();
    await server[Symbol.asyncDispose]();
  });

  const opening = (overrides: Partial<S3LocationOptions>) => async () => {
    const prefix = newPrefix();
    return {
      location: openAt(prefix, overrides),
      put: async (path: string, Body: Buffer) => {
        await client.send(new PutObjectCommand({ Bucket: BUCKET, Key: prefix + path, Body }));
      },
      published: async (folder: string) => filesBelow(prefix + folder),
      largeBytes: 20_000_004,
      outermost: "",
    };
  };

  describeLocation("s3", opening({}));
  describeLocation("s3 without checksums", opening({ sendsChecksums: false }));

  const large = () => aFile("output.jsonl", patternOf(30 * MIB + 4));

  describe("an upload in parts", () => {
    test("goes on after a crash with the parts that the server has", async () => {
      await using proxy = await startS3Proxy(server.url);
      const prefix = newPrefix();
      const file = large();
      const parcel = aParcel({ files: [file, aFile("run.json", "{}")] });
      const progress = new Progress();
      const broken = aBrokenFile(file, 20 * MIB, new Error("killed"));
      const first = { ...parcel, files: [broken, aFile("run.json", "{}")] };
      await expect(openAt(prefix).deliver(first, aCall({ progress }))).rejects.toThrow("killed");
      expect(await unfinished(prefix)).toEqual([`${parcel.batchId}/output.jsonl`]);
      const again = openAt(prefix, { endpoint: proxy.url });
      await again.deliver(parcel, aCall({ progress }));
      const parts = proxy.requests.filter((each) => /^PUT .*partNumber=/.test(each));
      expect(parts.map((each) => /partNumber=(\d+)/.exec(each)?.[1])).toEqual(["3", "4"]);
      expect(proxy.requests.filter((each) => each.startsWith("POST ?uploads"))).toEqual([]);
      const published = filesBelow(prefix + parcel.batchId);
      expect(published.get("output.jsonl")?.equals(patternOf(30 * MIB + 4))).toBe(true);
      expect(await unfinished(prefix)).toEqual([]);
    });

    test("sends a part again that has other bytes there", async () => {
      const prefix = newPrefix();
      const bytes = patternOf(30 * MIB);
      const other = Buffer.from(bytes);
      other[5] = 0xff;
      const parcel = aParcel({ files: [aFile("output.jsonl", bytes), aFile("run.json", "{}")] });
      const progress = new Progress();
      const broken = aBrokenFile(aFile("output.jsonl", other), 20 * MIB, new Error("killed"));
      const first = { ...parcel, files: [broken, aFile("run.json", "{}")] };
      await expect(openAt(prefix).deliver(first, aCall({ progress }))).rejects.toThrow("killed");
      await openAt(prefix).deliver(parcel, aCall({ progress }));
      expect(
        filesBelow(prefix + parcel.batchId)
          .get("output.jsonl")
          ?.equals(bytes),
      ).toBe(true);
    });

    test("begins anew if the server has forgotten it, and removes one that a crash kept from being saved", async () => {
      const prefix = newPrefix();
      const parcel = aParcel({ files: [large(), aFile("run.json", "{}")] });
      const Key = `${prefix}${parcel.batchId}/output.jsonl`;
      await client.send(new CreateMultipartUploadCommand({ Bucket: BUCKET, Key }));
      for (const lost of [
        { upload: { bucket: BUCKET, key: Key, uploadId: "gone" }, beginning: null },
        { upload: null, beginning: Key },
      ]) {
        const progress = new Progress();
        const saved = { bucket: BUCKET, deliveryId: "", made: [], manifest: "none", ...lost };
        await progress.save(JSON.stringify(saved));
        await openAt(prefix).deliver(parcel, aCall({ progress }));
        expect(filesBelow(prefix + parcel.batchId).size).toBe(2);
        await client.send(new DeleteObjectCommand({ Bucket: BUCKET, Key }));
      }
      expect(await unfinished(prefix)).toEqual([]);
    });

    test("is left alone by another delivery of its batch to the same place", async () => {
      const prefix = newPrefix();
      const file = large();
      const broken = aBrokenFile(file, 20 * MIB, new Error("killed"));
      const parcel = aParcel({ files: [broken, aFile("run.json", "{}")] });
      for (const deliveryId of ["delivery_1", "delivery_2"]) {
        const attempt = openAt(prefix).deliver({ ...parcel, deliveryId }, aCall());
        await expect(attempt).rejects.toThrow("killed");
      }
      const key = `${parcel.batchId}/output.jsonl`;
      expect(await unfinished(prefix)).toEqual([key, key]);
    });

    test("that somebody aborts begins anew with the next attempt", async () => {
      await using proxy = await startS3Proxy(server.url);
      const prefix = newPrefix();
      const parcel = aParcel({ files: [large(), aFile("run.json", "{}")] });
      const progress = new Progress();
      proxy.trouble = { kind: "hold", method: "PUT", path: /partNumber=2/ };
      const held = openAt(prefix, { endpoint: proxy.url }).deliver(parcel, aCall({ progress }));
      held.catch(() => {});
      await expect.poll(() => proxy.held.length).toBe(1);
      const { key: Key, uploadId: UploadId } = JSON.parse(progress.saved!).upload;
      await client.send(new AbortMultipartUploadCommand({ Bucket: BUCKET, Key, UploadId }));
      proxy.trouble = null;
      await expect(held).rejects.toMatchObject({ failure: "unavailable", isRetryable: true });
      await openAt(prefix).deliver(parcel, aCall({ progress }));
      expect(filesBelow(prefix + parcel.batchId).size).toBe(2);
      expect(await unfinished(prefix)).toEqual([]);
    });

    test("is aborted when the delivery is given up, and files that came before it are removed", async () => {
      const prefix = newPrefix();
      const file = large();
      const broken = aBrokenFile(file, 20 * MIB, new Error("killed"));
      const files = [aFile("errors.jsonl", "e\n"), broken, aFile("run.json", "{}")];
      const parcel = aParcel({ files });
      const progress = new Progress();
      const attempt = openAt(prefix).deliver(parcel, aCall({ progress }));
      await expect(attempt).rejects.toThrow("killed");
      expect((await unfinished(prefix)).length).toBe(1);
      expect([...filesBelow(prefix + parcel.batchId).keys()]).toEqual(["errors.jsonl"]);
      for (let n = 0; n < 2; n++) {
        await openAt(prefix).discard(progress.saved!, aCall());
        expect(await unfinished(prefix)).toEqual([]);
        expect(filesBelow(prefix + parcel.batchId).size).toBe(0);
      }
    });

    test("is aborted alone when files of an earlier delivery are there", async () => {
      const prefix = newPrefix();
      const { batchId } = aParcel();
      const manifest = aFile("run.json", "{}");
      const deliver = (files: readonly ParcelFile[], progress = new Progress()) =>
        openAt(prefix).deliver(aParcel({ batchId, files }), aCall({ progress }));
      await deliver([aFile("output.jsonl", "o\n"), manifest]);
      const broken = aBrokenFile({ ...large(), name: "output.csv" }, 20 * MIB, new Error("killed"));
      const progress = new Progress();
      const files = [aFile("output.jsonl", "o\n"), broken, manifest];
      await expect(deliver(files, progress)).rejects.toThrow("killed");
      await openAt(prefix).discard(progress.saved!, aCall());
      expect(await unfinished(prefix)).toEqual([]);
      const left = filesBelow(prefix + batchId);
      expect([...left.keys()].toSorted()).toEqual(["output.jsonl", "run.json"]);
    });

    test("whose last answer is lost is found", async () => {
      await using proxy = await startS3Proxy(server.url);
      const prefix = newPrefix();
      const parcel = aParcel({ files: [large(), aFile("run.json", "{}")] });
      proxy.trouble = { kind: "answer_lost" };
      await openAt(prefix, { endpoint: proxy.url }).deliver(parcel, aCall());
      expect(filesBelow(prefix + parcel.batchId).size).toBe(2);
    });

    test("has parts that grow with the file, and at most 10,000", () => {
      const TIB = 1024 ** 4;
      for (const bytes of [1, 8 * MIB, 5_000_000_000, 5 * TIB]) {
        expect(Math.ceil(bytes / partBytesFor(bytes))).toBeLessThanOrEqual(10_000);
      }
      expect(partBytesFor(5_000_000_000)).toBe(8 * MIB);
    });
  });

  describe("a parcel in a bucket", () => {
    test("that is there is found without being sent or read again", async () => {
      await using proxy = await startS3Proxy(server.url);
      const prefix = newPrefix();
      const parcel = aParcel({ files: [large(), aFile("run.json", "{}")] });
      await openAt(prefix).deliver(parcel, aCall());
      await openAt(prefix, { endpoint: proxy.url }).deliver(parcel, aCall());
      expect(proxy.requests.map((each) => each.split(" ")[0])).toEqual(["HEAD", "HEAD"]);
    });

    test("whose object was changed there is written again", async () => {
      const prefix = newPrefix();
      const parcel = aParcel();
      await openAt(prefix).deliver(parcel, aCall());
      const Key = `${prefix}${parcel.batchId}/output.jsonl`;
      await client.send(new PutObjectCommand({ Bucket: BUCKET, Key, Body: "changed" }));
      await openAt(prefix).deliver(parcel, aCall());
      expect(
        filesBelow(prefix + parcel.batchId)
          .get("output.jsonl")
          ?.toString(),
      ).toContain("custom_id");
    });

    test("has its manifest last", async () => {
      await using proxy = await startS3Proxy(server.url);
      const prefix = newPrefix();
      const parcel = aParcel({ files: [aFile("a.jsonl", "a"), aFile("run.json", "{}")] });
      proxy.trouble = { kind: "hold", method: "PUT", path: /a\.jsonl/ };
      const delivered = openAt(prefix, { endpoint: proxy.url }).deliver(parcel, aCall());
      await expect.poll(() => proxy.held.length).toBe(1);
      expect(filesBelow(prefix + parcel.batchId).size).toBe(0);
      proxy.trouble = null;
      await delivered;
      expect(filesBelow(prefix + parcel.batchId).size).toBe(2);
    });

    test("carries its hash, and the service has a checksum of its own", async () => {
      const prefix = newPrefix();
      const file = large();
      const parcel = aParcel({ files: [file, aFile("run.json", "{}")] });
      await openAt(prefix).deliver(parcel, aCall());
      const Key = `${prefix}${parcel.batchId}/output.jsonl`;
      const head = new HeadObjectCommand({ Bucket: BUCKET, Key, ChecksumMode: "ENABLED" });
      expect(await client.send(head)).toMatchObject({
        Metadata: { sha256: file.sha256 },
        ChecksumSHA256: expect.stringMatching(/^.{43}=-4$/),
      });
    });
  });

  describe("reading an object", () => {
    test("goes on where the connection broke, and names its revision", async () => {
      await using proxy = await startS3Proxy(server.url);
      const prefix = newPrefix();
      const bytes = patternOf(5 * MIB);
      await client.send(new PutObjectCommand({ Bucket: BUCKET, Key: `${prefix}in`, Body: bytes }));
      const location = openAt(prefix, { endpoint: proxy.url });
      await using file = await location.open(pathOf("in"), aCall());
      expect(file).toMatchObject({
        bytes: bytes.length,
        revision: expect.stringMatching(/^[0-9a-f]{32}/),
      });
      proxy.trouble = { kind: "cut", afterBytes: MIB };
      expect((await buffer(file.content)).equals(bytes)).toBe(true);
      expect(proxy.requests.filter((each) => each.startsWith("GET")).length).toBeGreaterThan(3);
    });

    test("never mixes two contents of it", async () => {
      const prefix = newPrefix();
      const put = (Body: Buffer) =>
        client.send(new PutObjectCommand({ Bucket: BUCKET, Key: `${prefix}in`, Body }));
      await put(Buffer.alloc(5 * MIB, "a"));
      await using proxy = await startS3Proxy(server.url);
      const location = openAt(prefix, { endpoint: proxy.url });
      await using file = await location.open(pathOf("in"), aCall());
      proxy.trouble = { kind: "cut", afterBytes: MIB };
      const read = async () => {
        let isFirst = true;
        for await (const _ of file.content) {
          if (isFirst) await put(Buffer.alloc(5 * MIB, "b"));
          isFirst = false;
        }
      };
      await expect(read()).rejects.toMatchObject({ name: "LocationError" });
    });
  });

  describe("the bucket of a client", () => {
    const locations = new Locations([], {
      clock: systemClock,
      workFolder: "/nonexistent",
      environment: {},
    });
    const refusal = Object.assign(new Error("10.0.0.1 is not public"), { name: "AddressRefused" });
    /** Opens it where addresses and names are refused, or not. */
    const openFor = (endpoint: string, refused: { addresses?: boolean; names?: boolean }) =>
      locations.ofClient(
        {
          ...{ bucket: BUCKET, prefix: newPrefix(), region: "us-east-1", endpoint },
          ...{ forcePathStyle: true, ...CREDENTIALS, sessionToken: null },
        },
        {
          refusalOf: () => (refused.addresses === true ? refusal : null),
          lookup: (_, options, callback) =>
            refused.names === true
              ? callback(refusal, [])
              : callback(
                  null,
                  options.all === true ? [{ address: "127.0.0.1", family: 4 }] : "127.0.0.1",
                  4,
                ),
        },
      );
    const withName = () => server.url.replace("127.0.0.1", "bucket.example");

    test("gets the results, at the addresses that the check finds", async () => {
      const parcel = aParcel();
      const { address } = await openFor(withName(), {}).deliver(parcel, aCall());
      expect(filesBelow(address.slice(`s3://${BUCKET}/`.length, -1)).size).toBe(3);
    });

    test("is not reached at an address that is not public, by number or by name", async () => {
      await using proxy = await startS3Proxy(server.url);
      const byName = proxy.url.replace("127.0.0.1", "bucket.example");
      for (const location of [
        openFor(proxy.url, { addresses: true }),
        openFor(byName, { names: true }),
      ]) {
        const delivered = location.deliver(aParcel(), aCall());
        await expect(delivered).rejects.toMatchObject({ name: "LocationError" });
        await expect(delivered).rejects.toThrow("the server is not at a public address");
        await expect(delivered).rejects.toThrow(expect.not.stringContaining("10.0.0.1"));
      }
      expect(proxy.requests).toEqual([]);
    });

    test("keeps its secret out of messages, even if its server repeats it", async () => {
      const echo = createServer((asked, answer) => {
        asked.resume();
        const words = `<Error><Code>No</Code><Message>${CREDENTIALS.secretAccessKey}</Message></Error>`;
        answer.writeHead(asked.method === "HEAD" ? 404 : 400).end(words);
      });
      const endpoint = `http://127.0.0.1:${await listening(echo)}`;
      const failed = openFor(endpoint, {}).deliver(aParcel(), aCall());
      await expect(failed).rejects.toThrow("No [redacted]");
    });
  });

  describe("failures", () => {
    const deliver = (overrides: Partial<S3LocationOptions>, file?: ParcelFile) =>
      openAt(newPrefix(), overrides).deliver(
        aParcel({ files: [file ?? aFile("run.json", "{}")] }),
        aCall(),
      );

    test("say what the operator has to correct, and are not repeated", async () => {
      const wrongKey = { ...CREDENTIALS, secretAccessKey: "wrong-secret-value" };
      await expect(deliver({ credentials: wrongKey })).rejects.toMatchObject({
        failure: "forbidden",
        message: expect.not.stringContaining("wrong-secret-value"),
      });
      const refused = { failure: "refused", isRetryable: false };
      await expect(deliver({ bucket: "no-such-bucket" })).rejects.toMatchObject(refused);
    });

    test("of a server that is not there, or overloaded, pass with time, and name no address", async () => {
      await using proxy = await startS3Proxy(server.url);
      proxy.trouble = { kind: "slow_down" };
      const unavailable = { failure: "unavailable", isRetryable: true };
      await expect(deliver({ endpoint: proxy.url })).rejects.toMatchObject(unavailable);
      const closed = proxy.url;
      await proxy[Symbol.asyncDispose]();
      const failure = await deliver({ endpoint: closed }).catch((error: unknown) => error);
      expect(failure).toMatchObject(unavailable);
      expect((failure as Error).message).toMatch(/does not answer \(ECONNREFUSED\)/);
      expect((failure as Error).message).not.toContain("127.0.0.1");
    });

    test("of a server that never answers end with the time limit", async () => {
      await using proxy = await startS3Proxy(server.url);
      proxy.trouble = { kind: "silent" };
      const failed = deliver({ endpoint: proxy.url, timeoutMs: 50 });
      await expect(failed).rejects.toMatchObject({ failure: "unavailable" });
    });

    test("of a server that gives back what it has stored a byte at a time end with a time limit", async () => {
      const clock = new FakeClock();
      const { promise: reading, resolve: begin } = Promise.withResolvers<void>();
      const slow = createServer((asked, answer) => {
        asked.resume();
        if (asked.method === "HEAD") return answer.writeHead(404).end();
        // Without a checksum in this answer the object is read again.
        if (asked.method === "PUT") return asked.on("end", () => answer.writeHead(200).end());
        answer.writeHead(200, { "content-length": 1_000_000 });
        const timer = setInterval(() => answer.write("x"), 10);
        answer.on("close", () => clearInterval(timer));
        return begin();
      });
      const endpoint = `http://127.0.0.1:${await listening(slow)}`;
      const failed = deliver({ endpoint, clock }, aFile("run.json", patternOf(1_000_000)));
      failed.catch(() => {});
      await reading;
      clock.advance(600_001);
      const unavailable = { failure: "unavailable", message: expect.stringContaining("too long") };
      await expect(failed).rejects.toMatchObject(unavailable);
    });

    test("of a server whose answer has no end stay small", async () => {
      let sentBytes = 0;
      const piece = Buffer.alloc(64 * 1024, "x");
      const endless = createServer((asked, answer) => {
        asked.resume();
        if (asked.method === "HEAD") return answer.writeHead(404).end();
        answer.writeHead(400, { "content-type": "application/xml" });
        const send = () => {
          while (!answer.destroyed && answer.write(piece)) sentBytes += piece.length;
        };
        answer.on("drain", send);
        return send();
      });
      const endpoint = `http://127.0.0.1:${await listening(endless)}`;
      const failed = deliver({ endpoint });
      await expect(failed).rejects.toThrow("the answer is too long");
      expect(sentBytes).toBeLessThan(64 * MIB);
    });
  });
});
