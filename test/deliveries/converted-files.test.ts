import { expect, test } from "vitest";
import type { StoredFile } from "../../src/batch/batch.ts";
import type { Blobs } from "../../src/blobs/blobs.ts";
import { openDiskBlobs } from "../../src/blobs/disk.ts";
import { convert } from "../../src/deliveries/converted-files.ts";
import { aFile, temporaryFolder } from "../support/store-builders.ts";

const ROW = Buffer.from('{"id":"batch_req_1","custom_id":"a","response":null,"error":null}\n');

test("two tables are made at a time, however many deliveries want one", async () => {
  using folder = temporaryFolder("batchd-tables-");
  const disk = await openDiskBlobs(folder.path);
  const file: StoredFile = aFile({ blobKey: "files/results", bytes: ROW.length });
  await disk.putBytes(file.blobKey, [ROW]);
  let running = 0;
  let most = 0;
  const put: Blobs["put"] = async (key, source) => {
    most = Math.max(most, ++running);
    return disk.put(key, source).finally(() => running--);
  };
  const blobs: Blobs = Object.assign(Object.create(disk) as Blobs, {
    put,
    read: disk.read.bind(disk),
  });
  const { signal } = new AbortController();
  const wanted = Array.from({ length: 6 }, (_, i) =>
    convert({ file, format: "csv", blobKey: `deliveries/${i}`, name: "x" }, { blobs, signal }),
  );
  const aborted = new AbortController();
  aborted.abort(new Error("no more"));
  const late = convert(
    { file, format: "csv", blobKey: "deliveries/late", name: "x" },
    { blobs, signal: aborted.signal },
  );
  await expect(late).rejects.toThrow("no more");
  const tables = await Promise.all(wanted);
  expect(new Set(tables.map(({ sha256 }) => sha256)).size).toBe(1);
  expect(most).toBe(2);
});
