import {
  AbortMultipartUploadCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
} from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { ParcelFile } from "../../src/locations/location.ts";
import { partBytesFor } from "../../src/locations/s3/upload.ts";
import { BUCKET, BucketLocations, largeFile, MIB } from "../support/bucket-locations.ts";
import { aBrokenFile, aCall, aFile, aParcel, Progress, patternOf } from "../support/parcels.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server } from "../support/s3-server.ts";

let bucket: BucketLocations;

describe.runIf(hasS3Server())("a bucket", () => {
  beforeAll(async () => {
    bucket = await BucketLocations.start();
  });
  afterAll(() => bucket[Symbol.asyncDispose]());

  describe("an upload in parts", () => {
    test("goes on after a crash with the parts that the server has", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const file = largeFile();
      const parcel = aParcel({ files: [file, aFile("run.json", "{}")] });
      const progress = new Progress();
      const broken = aBrokenFile(file, 20 * MIB, new Error("killed"));
      const first = { ...parcel, files: [broken, aFile("run.json", "{}")] };
      await expect(bucket.openAt(prefix).deliver(first, aCall({ progress }))).rejects.toThrow(
        "killed",
      );
      expect(await bucket.unfinished(prefix)).toEqual([`${parcel.batchId}/output.jsonl`]);
      const again = bucket.openAt(prefix, { endpoint: proxy.url });
      await again.deliver(parcel, aCall({ progress }));
      const parts = proxy.requests.filter((each) => /^PUT .*partNumber=/.test(each));
      expect(parts.map((each) => /partNumber=(\d+)/.exec(each)?.[1])).toEqual(["3", "4"]);
      expect(proxy.requests.filter((each) => each.startsWith("POST ?uploads"))).toEqual([]);
      const published = bucket.filesBelow(prefix + parcel.batchId);
      expect(published.get("output.jsonl")?.equals(patternOf(30 * MIB + 4))).toBe(true);
      expect(await bucket.unfinished(prefix)).toEqual([]);
    });

    test("sends a part again that has other bytes there", async () => {
      const prefix = bucket.newPrefix();
      const bytes = patternOf(30 * MIB);
      const other = Buffer.from(bytes);
      other[5] = 0xff;
      const parcel = aParcel({ files: [aFile("output.jsonl", bytes), aFile("run.json", "{}")] });
      const progress = new Progress();
      const broken = aBrokenFile(aFile("output.jsonl", other), 20 * MIB, new Error("killed"));
      const first = { ...parcel, files: [broken, aFile("run.json", "{}")] };
      await expect(bucket.openAt(prefix).deliver(first, aCall({ progress }))).rejects.toThrow(
        "killed",
      );
      await bucket.openAt(prefix).deliver(parcel, aCall({ progress }));
      expect(
        bucket
          .filesBelow(prefix + parcel.batchId)
          .get("output.jsonl")
          ?.equals(bytes),
      ).toBe(true);
    });

    test("begins anew if the server has forgotten it, and removes one that a crash kept from being saved", async () => {
      const prefix = bucket.newPrefix();
      const parcel = aParcel({ files: [largeFile(), aFile("run.json", "{}")] });
      const Key = `${prefix}${parcel.batchId}/output.jsonl`;
      await bucket.client.send(new CreateMultipartUploadCommand({ Bucket: BUCKET, Key }));
      for (const lost of [
        { upload: { bucket: BUCKET, key: Key, uploadId: "gone" }, beginning: null },
        { upload: null, beginning: Key },
      ]) {
        const progress = new Progress();
        const saved = { bucket: BUCKET, deliveryId: "", made: [], manifest: "none", ...lost };
        await progress.save(JSON.stringify(saved));
        await bucket.openAt(prefix).deliver(parcel, aCall({ progress }));
        expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(2);
        await bucket.client.send(new DeleteObjectCommand({ Bucket: BUCKET, Key }));
      }
      expect(await bucket.unfinished(prefix)).toEqual([]);
    });

    test("is left alone by another delivery of its batch to the same place", async () => {
      const prefix = bucket.newPrefix();
      const file = largeFile();
      const broken = aBrokenFile(file, 20 * MIB, new Error("killed"));
      const parcel = aParcel({ files: [broken, aFile("run.json", "{}")] });
      for (const deliveryId of ["delivery_1", "delivery_2"]) {
        const attempt = bucket.openAt(prefix).deliver({ ...parcel, deliveryId }, aCall());
        await expect(attempt).rejects.toThrow("killed");
      }
      const key = `${parcel.batchId}/output.jsonl`;
      expect(await bucket.unfinished(prefix)).toEqual([key, key]);
    });

    test("that is aborted from outside begins anew with the next attempt", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const parcel = aParcel({ files: [largeFile(), aFile("run.json", "{}")] });
      const progress = new Progress();
      proxy.trouble = { kind: "hold", method: "PUT", path: /partNumber=2/ };
      const held = bucket
        .openAt(prefix, { endpoint: proxy.url })
        .deliver(parcel, aCall({ progress }));
      held.catch(() => {});
      await expect.poll(() => proxy.held.length).toBe(1);
      const { key: Key, uploadId: UploadId } = JSON.parse(progress.saved!).upload;
      await bucket.client.send(new AbortMultipartUploadCommand({ Bucket: BUCKET, Key, UploadId }));
      proxy.trouble = null;
      await expect(held).rejects.toMatchObject({ failure: "unavailable", isRetryable: true });
      await bucket.openAt(prefix).deliver(parcel, aCall({ progress }));
      expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(2);
      expect(await bucket.unfinished(prefix)).toEqual([]);
    });

    test("is aborted when the delivery is given up, and files that came before it are removed", async () => {
      const prefix = bucket.newPrefix();
      const file = largeFile();
      const broken = aBrokenFile(file, 20 * MIB, new Error("killed"));
      const files = [aFile("errors.jsonl", "e\n"), broken, aFile("run.json", "{}")];
      const parcel = aParcel({ files });
      const progress = new Progress();
      const attempt = bucket.openAt(prefix).deliver(parcel, aCall({ progress }));
      await expect(attempt).rejects.toThrow("killed");
      expect((await bucket.unfinished(prefix)).length).toBe(1);
      expect([...bucket.filesBelow(prefix + parcel.batchId).keys()]).toEqual(["errors.jsonl"]);
      for (let n = 0; n < 2; n++) {
        await bucket.openAt(prefix).discard(progress.saved!, aCall());
        expect(await bucket.unfinished(prefix)).toEqual([]);
        expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(0);
      }
    });

    test("is aborted alone when files of an earlier delivery are there", async () => {
      const prefix = bucket.newPrefix();
      const { batchId } = aParcel();
      const manifest = aFile("run.json", "{}");
      const deliver = (files: readonly ParcelFile[], progress = new Progress()) =>
        bucket.openAt(prefix).deliver(aParcel({ batchId, files }), aCall({ progress }));
      await deliver([aFile("output.jsonl", "o\n"), manifest]);
      const broken = aBrokenFile(
        { ...largeFile(), name: "output.csv" },
        20 * MIB,
        new Error("killed"),
      );
      const progress = new Progress();
      const files = [aFile("output.jsonl", "o\n"), broken, manifest];
      await expect(deliver(files, progress)).rejects.toThrow("killed");
      await bucket.openAt(prefix).discard(progress.saved!, aCall());
      expect(await bucket.unfinished(prefix)).toEqual([]);
      const left = bucket.filesBelow(prefix + batchId);
      expect([...left.keys()].toSorted()).toEqual(["output.jsonl", "run.json"]);
    });

    test("whose last answer is lost is found", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const parcel = aParcel({ files: [largeFile(), aFile("run.json", "{}")] });
      proxy.trouble = { kind: "answer_lost" };
      await bucket.openAt(prefix, { endpoint: proxy.url }).deliver(parcel, aCall());
      expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(2);
    });

    test("that the server still joins is waited for", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const parcel = aParcel({ files: [largeFile(), aFile("run.json", "{}")] });
      const progress = new Progress();
      const location = bucket.openAt(prefix, { endpoint: proxy.url });
      proxy.trouble = { kind: "joining" };
      const attempt = location.deliver(parcel, aCall({ progress }));
      await expect(attempt).rejects.toMatchObject({ failure: "unavailable", isRetryable: true });
      proxy.trouble = null;
      await location.deliver(parcel, aCall({ progress }));
      expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(2);
      expect(await bucket.unfinished(prefix)).toEqual([]);
    });

    test("whose beginning was answered by a proxy sends no part, which a server could take for the file", async () => {
      await using proxy = await startS3Proxy(bucket.url);
      const prefix = bucket.newPrefix();
      const parcel = aParcel({ files: [largeFile(), aFile("run.json", "{}")] });
      const progress = new Progress();
      const location = bucket.openAt(prefix, { endpoint: proxy.url });
      proxy.trouble = { kind: "page_found", path: /[?]uploads/ };
      const attempt = location.deliver(parcel, aCall({ progress }));
      await expect(attempt).rejects.toMatchObject({ failure: "unavailable", isRetryable: true });
      expect(proxy.requests.filter((each) => each.includes("partNumber="))).toEqual([]);
      proxy.trouble = null;
      await location.deliver(parcel, aCall({ progress }));
      expect(bucket.filesBelow(prefix + parcel.batchId).size).toBe(2);
    });

    test("has parts that grow with the file, and at most 10,000", () => {
      const TIB = 1024 ** 4;
      for (const bytes of [1, 8 * MIB, 5_000_000_000, 5 * TIB]) {
        expect(Math.ceil(bytes / partBytesFor(bytes))).toBeLessThanOrEqual(10_000);
      }
      expect(partBytesFor(5_000_000_000)).toBe(8 * MIB);
    });
  });
});
