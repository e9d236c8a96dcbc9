import { Readable } from "node:stream";
import { buffer } from "node:stream/consumers";
import { describe, expect, test } from "vitest";
import { BlobNotFound, type Blobs } from "../../src/blobs/blobs.ts";

async function* chunksOf(...chunks: string[]): AsyncGenerator<Buffer> {
  for (const chunk of chunks) yield Buffer.from(chunk);
}

/** Bytes in which every offset is told apart from its neighbours. */
const pattern = (bytes: number) => {
  const filled = Buffer.alloc(bytes);
  for (let at = 0; at + 4 <= bytes; at += 4) filled.writeUInt32LE(at, at);
  return filled;
};

const keysOf = async (blobs: Blobs, prefix: string) => {
  const keys: string[] = [];
  for await (const { key } of blobs.list(prefix)) keys.push(key);
  return keys.sort();
};

const putText = (blobs: Blobs, key: string, text = key) => blobs.putBytes(key, [Buffer.from(text)]);

const readText = async (blobs: Blobs, key: string) => (await buffer(blobs.read(key))).toString();

/** What every adapter of the blobs port must do. `open` gives an empty one. */
export function describeBlobs(name: string, open: () => Promise<Blobs>): void {
  describe(`${name} blobs: writing and reading`, () => {
    test("gives back what was streamed in, and counts it", async () => {
      const blobs = await open();
      const written = await blobs.put("files/a", chunksOf("one ", "", "two ", "three"));
      expect(written).toEqual({ bytes: 13 });
      expect(await readText(blobs, "files/a")).toBe("one two three");
    });

    test("gives back what was put as buffers, in their order", async () => {
      const blobs = await open();
      await blobs.putBytes("journal/b/1", [Buffer.from("x"), Buffer.from(""), Buffer.from("yz")]);
      expect(await readText(blobs, "journal/b/1")).toBe("xyz");
    });

    test("keeps every byte of a large blob, whatever the sizes of its pieces", async () => {
      const blobs = await open();
      const bytes = pattern(9_000_004);
      async function* unevenly() {
        for (let at = 0, size = 1; at < bytes.length; at += size, size = (size * 7 + 1) % 700_001) {
          yield bytes.subarray(at, at + size);
        }
      }
      expect(await blobs.put("large", unevenly())).toEqual({ bytes: bytes.length });
      expect((await buffer(blobs.read("large"))).equals(bytes)).toBe(true);
    });

    test("joins blobs of any size in their order, unless their content is refused", async () => {
      const blobs = await open();
      const MIB = 1024 * 1024;
      const sizes = [5 * MIB, 3, 7 * MIB + 1, 6 * MIB, 1_000];
      const bytes = pattern(sizes.reduce((sum, each) => sum + each, 0) + 4).subarray(4);
      const parts: { key: string; bytes: number }[] = [];
      let at = 0;
      for (const [i, size] of sizes.entries()) {
        await blobs.putBytes(`parts/${i}`, [bytes.subarray(at, at + size)]);
        parts.push({ key: `parts/${i}`, bytes: size });
        at += size;
      }
      const fault = new Error("the content is not as it should be");
      async function* content(isRefused: boolean) {
        for (const { key } of parts) yield* blobs.read(key);
        if (isRefused) throw fault;
      }
      await expect(blobs.join("refused", parts, content(true))).rejects.toBe(fault);
      expect(await blobs.join("joined", parts, content(false))).toEqual({ bytes: bytes.length });
      expect((await buffer(blobs.read("joined"))).equals(bytes)).toBe(true);
      expect(await keysOf(blobs, "")).not.toContain("refused");
    });

    test("keeps blobs without a byte", async () => {
      const blobs = await open();
      await blobs.putBytes("empty/1", []);
      expect(await blobs.put("empty/2", chunksOf())).toEqual({ bytes: 0 });
      expect(await readText(blobs, "empty/1")).toBe("");
      expect(await readText(blobs, "empty/2")).toBe("");
    });

    test("writes many blobs at once, also into one new folder", async () => {
      const blobs = await open();
      const keys = Array.from({ length: 40 }, (_, i) => `deep/er/folder/${i % 4}/${i}`);
      await Promise.all(keys.map((key) => putText(blobs, key)));
      expect(await Promise.all(keys.map((key) => readText(blobs, key)))).toEqual(keys);
    });

    test("refuses keys that are not paths of plain names", async () => {
      const blobs = await open();
      for (const key of ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".tmp/a", "a b", "ä"]) {
        await expect(putText(blobs, key, "x"), key).rejects.toThrow("not a blob key");
      }
    });
  });

  describe(`${name} blobs: a part of a blob`, () => {
    test("streams exactly the bytes of a range", async () => {
      const blobs = await open();
      const bytes = pattern(3_000_000);
      await blobs.putBytes("ranged", [bytes]);
      for (const [start, end] of [
        [0, 1],
        [7, 7],
        [1, 2_999_999],
        [2_999_999, 3_000_000],
        [0, 3_000_000],
      ] as const) {
        const part = await buffer(blobs.read("ranged", { start, end }));
        expect(part.equals(bytes.subarray(start, end)), `${start}-${end}`).toBe(true);
      }
    });

    test("reads a range into one buffer", async () => {
      const blobs = await open();
      await putText(blobs, "ranged", "0123456789");
      expect((await blobs.readRange("ranged", { start: 3, end: 6 })).toString()).toBe("345");
      expect((await blobs.readRange("ranged", { start: 0, end: 10 })).length).toBe(10);
      expect((await blobs.readRange("ranged", { start: 4, end: 4 })).length).toBe(0);
    });

    test("never passes a blob that ends early for the whole range", async () => {
      const blobs = await open();
      await putText(blobs, "short", "0123");
      await expect(blobs.readRange("short", { start: 2, end: 6 })).rejects.toThrow();
      await expect(buffer(blobs.read("short", { start: 2, end: 6 }))).rejects.toThrow();
    });
  });

  describe(`${name} blobs: what is not there`, () => {
    test("says so when a missing blob is read", async () => {
      const blobs = await open();
      const range = { start: 0, end: 1 };
      await putText(blobs, "a/file");
      for (const key of ["missing", "a/file/below", "a/missing"]) {
        await expect(buffer(blobs.read(key)), key).rejects.toBeInstanceOf(BlobNotFound);
        await expect(blobs.readRange(key, range), key).rejects.toBeInstanceOf(BlobNotFound);
      }
    });

    test("stores nothing when the source fails, and passes its error on", async () => {
      const blobs = await open();
      const fault = new Error("the client went away");
      async function* failing(before: number) {
        for (let i = 0; i < before; i++) yield Buffer.alloc(600_000, 65);
        throw fault;
      }
      await expect(blobs.put("half/none", failing(0))).rejects.toBe(fault);
      await expect(blobs.put("half/some", failing(9))).rejects.toBe(fault);
      await expect(buffer(blobs.read("half/some"))).rejects.toBeInstanceOf(BlobNotFound);
      expect(await keysOf(blobs, "")).toEqual([]);
    });

    test("stores nothing when a stream breaks off", async () => {
      const blobs = await open();
      async function* broken() {
        yield Buffer.from("begun");
        throw new Error("reset");
      }
      const stored = blobs.put("stream", Readable.from(broken()));
      await expect(stored).rejects.toThrow("reset");
      expect(await keysOf(blobs, "")).toEqual([]);
    });
  });

  describe(`${name} blobs: listing and deleting`, () => {
    test("lists what lies under a prefix, with sizes", async () => {
      const blobs = await open();
      for (const key of ["files/a", "journal/b1/1", "journal/b1/2", "journal/b10/1", "top"]) {
        await putText(blobs, key);
      }
      expect(await keysOf(blobs, "journal/b1/")).toEqual(["journal/b1/1", "journal/b1/2"]);
      expect(await keysOf(blobs, "journal/")).toHaveLength(3);
      expect(await keysOf(blobs, "")).toHaveLength(5);
      expect(await keysOf(blobs, "nothing/here/")).toEqual([]);
      for await (const info of blobs.list("files/")) {
        expect(info).toEqual({ key: "files/a", bytes: 7 });
      }
    });

    test("deletes a blob, and does nothing when there is none", async () => {
      const blobs = await open();
      await putText(blobs, "files/a");
      await putText(blobs, "files/b");
      await blobs.delete("files/a");
      await blobs.delete("files/a");
      await blobs.delete("never/was");
      expect(await keysOf(blobs, "")).toEqual(["files/b"]);
    });

    test("deletes everything under a prefix and nothing beside it", async () => {
      const blobs = await open();
      const keys = ["journal/b1/1", "journal/b1/x/2", "journal/b10/1", "journal/b1.old"];
      for (const key of keys) await putText(blobs, key);
      await blobs.deleteAll("journal/b1/");
      await blobs.deleteAll("journal/b1/");
      await blobs.deleteAll("never/was/");
      expect(await keysOf(blobs, "")).toEqual(["journal/b1.old", "journal/b10/1"]);
    });

    test("lets blobs come and go side by side", async () => {
      const blobs = await open();
      await Promise.all(
        Array.from({ length: 60 }, async (_, i) => {
          await putText(blobs, `busy/${i % 3}/${i}`);
          await blobs.delete(`busy/${i % 3}/${i}`);
        }),
      );
      expect(await keysOf(blobs, "")).toEqual([]);
    });

    test("answers a ping, which leaves nothing behind", async () => {
      const blobs = await open();
      await blobs.ping();
      expect(await keysOf(blobs, "")).toEqual([]);
    });
  });
}
