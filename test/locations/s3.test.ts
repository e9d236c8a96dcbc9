import { createServer } from "node:http";
import { createServer as createNetServer } from "node:net";
import { buffer } from "node:stream/consumers";
import { HeadObjectCommand, PutObjectCommand } from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import type { ParcelFile } from "../../src/locations/location.ts";
import { Locations } from "../../src/locations/locations.ts";
import type { S3LocationOptions } from "../../src/locations/s3/s3.ts";
import {
  BUCKET,
  BucketLocations,
  CREDENTIALS,
  largeFile,
  MIB,
} from "../support/bucket-locations.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { listening } from "../support/listening.ts";
import { aCall, aFile, aParcel, pathOf, patternOf } from "../support/parcels.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server } from "../support/s3-server.ts";
import { describeLocation } from "./suite.ts";

/** What a bucket says of an object that it has stored. */
const TAG = { etag: '"tag"' };

let bucket: BucketLocations;

describe.runIf(hasS3Server())("a bucket", () => {
  beforeAll(async () => {
    bucket = await BucketLocations.start();
  });
  afterAll(() => bucket[Symbol.asyncDispose]());

  const opening = (overrides: Partial<S3LocationOptions>) => async () => {
    const prefix = bucket.newPrefix();
    return {
      location: bucket.openAt(prefix, overrides),
      put: async (path: string, Body: Buffer) => {
        await bucket.client.send(
          new PutObjectCommand({ Bucket: BUCKET, Key: prefix + path, Body }),
        );
      },
      published: async (folder: string) => bucket.filesBelow(prefix + folder),
      largeBytes: 20_000_004,
      outermost: "",
    };
  };

  describeLocation("s3", opening({}));
  describeLocation("s3 without checksums", opening({ sendsChecksums: false }));

  describe("a parcel in a bucket", () => {
    test("that is there is found without being sent or read again", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const parcel = aParcel({ files: [largeFile(), aFile("run.json", "{}")] });
      await bucket.openAt(prefix).deliver(parcel, aCall());
      await bucket.openAt(prefix, { endpoint: proxy.url }).deliver(parcel, aCall());
      expect(proxy.requests.map((each) => each.split(" ")[0])).toEqual(["HEAD", "HEAD"]);
    });

    test("whose object was changed there is written again", async () => {
      const prefix = bucket.newPrefix();
      const parcel = aParcel();
      await bucket.openAt(prefix).deliver(parcel, aCall());
      const Key = `${prefix}${parcel.batchId}/output.jsonl`;
      await bucket.client.send(new PutObjectCommand({ Bucket: BUCKET, Key, Body: "changed" }));
      await bucket.openAt(prefix).deliver(parcel, aCall());
      expect(
        bucket
          .filesBelow(prefix + parcel.batchId)
          .get("output.jsonl")
          ?.toString(),
      ).toContain("custom_id");
    });

    test("has its manifest last", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const parcel = aParcel({ files: [aFile("a.jsonl", "a"), aFile("run.json", "{}")] });
      proxy.trouble = { kind: "hold", method: "PUT", path: /a\.jsonl/ };
      const delivered = bucket.openAt(prefix, { endpoint: proxy.url }).deliver(parcel, aCall());
      await expect.poll(() => proxy.held.length).toBe(1);
      expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(0);
      proxy.trouble = null;
      await delivered;
      expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(2);
    });

    test("carries its hash, and the service has a checksum of its own", async () => {
      const prefix = bucket.newPrefix();
      const file = largeFile();
      const parcel = aParcel({ files: [file, aFile("run.json", "{}")] });
      await bucket.openAt(prefix).deliver(parcel, aCall());
      const Key = `${prefix}${parcel.batchId}/output.jsonl`;
      const head = new HeadObjectCommand({ Bucket: BUCKET, Key, ChecksumMode: "ENABLED" });
      expect(await bucket.client.send(head)).toMatchObject({
        Metadata: { sha256: file.sha256 },
        ChecksumSHA256: expect.stringMatching(/^.{43}=-4$/),
      });
    });
  });

  describe("reading an object", () => {
    test("goes on where the connection broke, and names its revision", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const bytes = patternOf(5 * MIB);
      await bucket.client.send(
        new PutObjectCommand({ Bucket: BUCKET, Key: `${prefix}in`, Body: bytes }),
      );
      const location = bucket.openAt(prefix, { endpoint: proxy.url });
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
      const prefix = bucket.newPrefix();
      const put = (Body: Buffer) =>
        bucket.client.send(new PutObjectCommand({ Bucket: BUCKET, Key: `${prefix}in`, Body }));
      await put(Buffer.alloc(5 * MIB, "a"));
      await using proxy = await startS3Proxy(bucket.url);
      const location = bucket.openAt(prefix, { endpoint: proxy.url });
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
          bucket: BUCKET,
          prefix: bucket.newPrefix(),
          region: "us-east-1",
          endpoint,
          forcePathStyle: true,
          ...CREDENTIALS,
          sessionToken: null,
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
    const withName = () => bucket.url.replace("127.0.0.1", "bucket.example");

    test("gets the results, at the addresses that the check finds", async () => {
      // The SDK has a way of its own for requests above 2 MiB.
      const files = [
        largeFile(),
        aFile("errors.jsonl", patternOf(3 * MIB)),
        aFile("run.json", "{}"),
      ];
      const parcel = aParcel({ files });
      const { address } = await openFor(withName(), {}).deliver(parcel, aCall());
      expect(bucket.filesBelow(address.slice(`s3://${BUCKET}/`.length, -1)).size).toBe(3);
    });

    test("is not reached at an address that is not public, by number or by name", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const byName = proxy.url.replace("127.0.0.1", "bucket.example");
      for (const location of [
        openFor(proxy.url, { addresses: true }),
        openFor(byName, { names: true }),
      ]) {
        const delivered = location.deliver(aParcel(), aCall());
        await expect(delivered).rejects.toMatchObject({ name: "LocationError" });
        await expect(delivered).rejects.toThrow("not at a public address");
        await expect(delivered).rejects.toMatchObject({
          message: expect.not.stringContaining("10.0.0.1"),
        });
      }
      expect(proxy.requests).toEqual([]);
    });
  });

  describe("failures", () => {
    const deliver = (overrides: Partial<S3LocationOptions>, file?: ParcelFile) =>
      bucket
        .openAt(bucket.newPrefix(), overrides)
        .deliver(aParcel({ files: [file ?? aFile("run.json", "{}")] }), aCall());

    test("say what the operator has to correct, and are not repeated", async () => {
      const wrongKey = { ...CREDENTIALS, secretAccessKey: "wrong-secret-value" };
      await expect(deliver({ credentials: wrongKey })).rejects.toMatchObject({
        failure: "forbidden",
        message: expect.not.stringContaining("wrong-secret-value"),
      });
      const refused = { failure: "refused", isRetryable: false };
      await expect(deliver({ bucket: "no-such-bucket" })).rejects.toMatchObject(refused);
      const arn = "arn:aws:s3:us-east-1:123456789012:accesspoint/mine";
      for (const [overrides, words] of [
        [{ bucket: "results/runs" }, "Bucket name shouldn't contain '/'"],
        [{ bucket: arn }, "Path-style addressing cannot be used"],
        [{ bucket: `${arn}_`, forcePathStyle: false }, "Invalid ARN"],
        [{ region: "us east" }, "Region not accepted"],
      ] as const) {
        const message = expect.stringContaining(words) as string;
        await expect(deliver(overrides)).rejects.toMatchObject({ ...refused, message });
      }
    });

    test("of a server that is not there, or overloaded, pass with time, and name no address", async () => {
      await using proxy = await startS3Proxy(bucket.url);
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
      await using proxy = await startS3Proxy(bucket.url);
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
        if (asked.method === "PUT") return asked.on("end", () => answer.writeHead(200, TAG).end());
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
      await expect(failed).rejects.toThrow(/the answer is too long$/);
      expect(sentBytes).toBeLessThan(64 * MIB);
    });

    test("of a server whose message is nearly all blank cost no more than others", async () => {
      const blank = " ".repeat(60 * 1024);
      const server = createServer((asked, answer) => {
        asked.resume();
        const text = `<Error><Code>Odd</Code><Message>a${blank}b</Message></Error>`;
        answer.writeHead(400, { "content-type": "application/xml" }).end(text);
      });
      const endpoint = `http://127.0.0.1:${await listening(server)}`;
      await expect(deliver({ endpoint })).rejects.toThrow(/the server answers 400/);
    });

    test("of a server that makes its answers hard to parse do not keep others waiting", async () => {
      const bomb = "<!DOCTYPE>".repeat(100_000);
      const answers = [bomb, bomb.slice(0, 60_000), `<a>${"x<b/>".repeat(200_000)}</a>`];
      for (const text of answers) {
        const server = createServer((asked, answer) => {
          asked.resume();
          if (asked.method === "HEAD") return answer.writeHead(404).end();
          return answer.writeHead(400, { "content-type": "application/xml" }).end(text);
        });
        const endpoint = `http://127.0.0.1:${await listening(server)}`;
        const failed = deliver({ endpoint });
        await expect(failed).rejects.toThrow(/the answer is (?:too long|not one of a bucket)$/);
      }
    });

    test("of a server that floods them with interim answers end at once", async () => {
      const flood = "HTTP/1.1 102 Processing\r\n\r\n".repeat(1_000);
      const server = createNetServer((socket) => {
        const send = () => {
          while (!socket.destroyed && socket.write(flood));
        };
        socket.on("error", () => {}).on("drain", send);
        send();
      });
      const endpoint = `http://127.0.0.1:${await listening(server)}`;
      const unavailable = { failure: "unavailable", isRetryable: true };
      await expect(deliver({ endpoint })).rejects.toMatchObject(unavailable);
    });

    test("of a server that shows the page of a proxy say which status it has", async () => {
      const server = createServer((asked, answer) => {
        asked.resume();
        if (asked.method === "HEAD") return answer.writeHead(404).end();
        const page = "<!DOCTYPE html><html><body>Not here<br></body></html>";
        return answer.writeHead(403, { "content-type": "text/html" }).end(page);
      });
      const endpoint = `http://127.0.0.1:${await listening(server)}`;
      const forbidden = { failure: "forbidden", message: expect.stringContaining("answers 403") };
      await expect(deliver({ endpoint })).rejects.toMatchObject(forbidden);
    });
  });
});
