import { buffer } from "node:stream/consumers";
import { describe, expect, test } from "vitest";
import type { Location, ParcelFile } from "../../src/locations/location.ts";
import {
  aBrokenFile,
  aCall,
  aFile,
  aParcel,
  type newBatchId,
  Progress,
  pathOf,
  patternOf,
} from "../support/parcels.ts";

export interface TestedLocation {
  readonly location: Location;
  /** Puts a file where the location reads it, by other means than the adapter. */
  put(path: string, bytes: Buffer): Promise<void>;
  /** Returns what is published in a folder of the location: the contents of all files by their paths below it. */
  published(folder: string): Promise<Map<string, Buffer>>;
  /** The size of a large file: above all pieces and parts, and no larger than the place takes in a short time. */
  readonly largeBytes: number;
  /** The folder above those of batches, if a parcel names none. */
  readonly outermost: string;
}

/** Signs that mean something in addresses, in git and on command lines, and nothing here. */
const HOSTILE_PATH = "-in/a b/--größe=?x#y%2f&z+*[1]~@{0}'\"$(a);:!/日本．．.jsonl";

const contents = (published: Map<string, Buffer>) =>
  Object.fromEntries([...published].map(([path, bytes]) => [path, bytes.toString()]));

/** What every adapter of the port must do. `open` gives an empty location. */
export function describeLocation(name: string, open: () => Promise<TestedLocation>): void {
  describe(`${name} location: reading`, () => {
    test("gives the bytes of a file, and how many they are", async () => {
      const { location, put, largeBytes } = await open();
      const bytes = patternOf(largeBytes / 4);
      await put(HOSTILE_PATH, bytes);
      await using file = await location.open(pathOf(HOSTILE_PATH), aCall());
      expect([null, bytes.length]).toContain(file.bytes);
      expect((await buffer(file.content)).equals(bytes)).toBe(true);
    });

    test("gives a file without a byte", async () => {
      const { location, put } = await open();
      await put("empty", Buffer.alloc(0));
      await using file = await location.open(pathOf("empty"), aCall());
      expect((await buffer(file.content)).length).toBe(0);
    });

    test("says that a file is not there, also below another file", async () => {
      const { location, put } = await open();
      await put("dir/file", Buffer.from("x"));
      for (const path of ["missing", "dir/missing", "missing/file", "dir/file/below"]) {
        await expect(location.open(pathOf(path), aCall()), path).rejects.toMatchObject({
          name: "LocationError",
          failure: "not_found",
        });
      }
    });

    test("refuses a folder", async () => {
      const { location, put } = await open();
      await put("dir/file", Buffer.from("x"));
      await expect(location.open(pathOf("dir"), aCall())).rejects.toMatchObject({
        failure: expect.stringMatching(/^(?:refused|not_found)$/),
      });
    });

    test("can be opened and left unread", async () => {
      const { location, put } = await open();
      await put("file", patternOf(1_000_000));
      await (await location.open(pathOf("file"), aCall()))[Symbol.asyncDispose]();
    });

    test("ends when its signal aborts", async () => {
      const { location, put, largeBytes } = await open();
      await put("file", patternOf(largeBytes / 2));
      const abort = new AbortController();
      const call = aCall({ signal: abort.signal });
      await using file = await location.open(pathOf("file"), call);
      const read = async () => {
        for await (const _ of file.content) abort.abort(new Error("no longer needed"));
      };
      await expect(read()).rejects.toThrow();
    });
  });

  describe(`${name} location: a parcel`, () => {
    test("appears with all of its files", async () => {
      const { location, published, outermost } = await open();
      const parcel = aParcel();
      const { address } = await location.deliver(parcel, aCall());
      expect(contents(await published(`${outermost}${parcel.batchId}`))).toEqual({
        "output.jsonl": '{"custom_id":"a"}\n{"custom_id":"b"}\n',
        "errors.jsonl": "",
        "run.json": `{"batch":"${parcel.batchId}"}`,
      });
      expect(address).toContain(parcel.batchId);
    });

    test("appears in the folder that its path names", async () => {
      const { location, published } = await open();
      const parcel = aParcel({ folder: pathOf(HOSTILE_PATH) });
      await location.deliver(parcel, aCall());
      const found = await published(`${HOSTILE_PATH}/${parcel.batchId}`);
      expect([...found.keys()].sort()).toEqual(["errors.jsonl", "output.jsonl", "run.json"]);
    });

    test("keeps every byte of a large file", async () => {
      const { location, published, outermost, largeBytes } = await open();
      const bytes = patternOf(largeBytes);
      const parcel = aParcel({ files: [aFile("output.jsonl", bytes), aFile("run.json", "{}")] });
      await location.deliver(parcel, aCall());
      const found = await published(`${outermost}${parcel.batchId}`);
      expect(found.get("output.jsonl")?.equals(bytes)).toBe(true);
    });

    test("can be delivered again: nothing doubles, and the address is the same", async () => {
      const { location, published, outermost } = await open();
      const parcel = aParcel();
      const first = await location.deliver(parcel, aCall());
      const again = await location.deliver({ ...parcel, deliveryId: "delivery_2" }, aCall());
      expect(again).toEqual(first);
      expect((await published(`${outermost}${parcel.batchId}`)).size).toBe(3);
    });

    test("in another format joins the files of the first one", async () => {
      const { location, published, outermost } = await open();
      const parcel = aParcel();
      await location.deliver(parcel, aCall());
      const other = [aFile("output.csv", "custom_id\na\n"), aFile("run.json", '{"other":true}')];
      await location.deliver({ ...parcel, files: other }, aCall());
      expect(contents(await published(`${outermost}${parcel.batchId}`))).toEqual({
        "output.jsonl": '{"custom_id":"a"}\n{"custom_id":"b"}\n',
        "output.csv": "custom_id\na\n",
        "errors.jsonl": "",
        "run.json": '{"other":true}',
      });
    });

    test.each(["first", "last"] as const)(
      "that breaks off in its %s file appears whole with the next attempt, and not before",
      async (which) => {
        const { location, published, outermost, largeBytes } = await open();
        const bytes = patternOf(largeBytes / 2);
        const files = [aFile("output.jsonl", bytes), aFile("run.json", patternOf(300_000))];
        const parcel = aParcel({ files });
        const reason = new Error("the source broke");
        const at = which === "first" ? 0 : 1;
        const broken = files.map((file, i) =>
          i === at ? aBrokenFile(file, file.bytes / 2, reason) : file,
        );
        const progress = new Progress();
        const attempt = location.deliver({ ...parcel, files: broken }, aCall({ progress }));
        await expect(attempt).rejects.toBe(reason);
        const folder = `${outermost}${parcel.batchId}`;
        expect((await published(folder)).has("run.json")).toBe(false);
        await location.deliver(parcel, aCall({ progress }));
        const found = await published(folder);
        expect([...found.keys()].sort()).toEqual(["output.jsonl", "run.json"]);
        expect(found.get("output.jsonl")?.equals(bytes)).toBe(true);
      },
    );

    test("whose bytes are not the promised ones is not published", async () => {
      const { location, published, outermost } = await open();
      const promised = aFile("output.jsonl", patternOf(50_000));
      const changed = patternOf(50_000);
      changed[1_234] = 0xff;
      for (const bytes of [
        changed,
        changed.subarray(1),
        Buffer.concat([patternOf(50_000), changed]),
      ]) {
        const file = { ...promised, open: () => aFile("output.jsonl", bytes).open() };
        const parcel = aParcel({ files: [file, aFile("run.json", "{}")] });
        const attempt = location.deliver(parcel, aCall());
        await expect(attempt).rejects.toMatchObject({ failure: "unavailable" });
        expect((await published(`${outermost}${parcel.batchId}`)).size).toBe(0);
      }
    });

    test("that is no longer wanted is not published", async () => {
      const { location, published, outermost, largeBytes } = await open();
      const abort = new AbortController();
      const file = aFile("output.jsonl", patternOf(largeBytes / 2));
      const stopping = {
        ...file,
        async *open() {
          for await (const piece of file.open()) {
            abort.abort(new Error("stopping"));
            yield piece;
          }
        },
      };
      const parcel = aParcel({ files: [stopping, aFile("run.json", "{}")] });
      const attempt = location.deliver(parcel, aCall({ signal: abort.signal }));
      await expect(attempt).rejects.toThrow();
      expect((await published(`${outermost}${parcel.batchId}`)).size).toBe(0);
    });

    test("does not disturb others that are delivered at the same time", async () => {
      const { location, published, outermost } = await open();
      const parcels = Array.from({ length: 4 }, (_, i) =>
        aParcel({ title: "the same title", files: [aFile("run.json", `${i}`)] }),
      );
      await Promise.all(parcels.map((parcel) => location.deliver(parcel, aCall())));
      for (const [i, { batchId }] of parcels.entries()) {
        expect(contents(await published(`${outermost}${batchId}`))).toEqual({ "run.json": `${i}` });
      }
    });

    /** A file that stops after its first piece until `goOn` is called. */
    function aHeldFile(file: ParcelFile) {
      const reached = Promise.withResolvers<void>();
      const gate = Promise.withResolvers<void>();
      async function* open(startByte?: number) {
        for await (const piece of file.open(startByte)) {
          yield piece;
          reached.resolve();
          await gate.promise;
        }
      }
      return { file: { ...file, open }, reached: reached.promise, goOn: () => gate.resolve() };
    }

    test("arrives whole by two deliveries at a time, as two locations of one place allow", async () => {
      const { location, published, outermost, largeBytes } = await open();
      const bytes = patternOf(largeBytes / 2);
      const files = [aFile("output.jsonl", bytes), aFile("run.json", "{}")];
      const parcel = aParcel({ files });
      const held = aHeldFile(aFile("output.jsonl", bytes));
      const slow = location.deliver(
        { ...parcel, files: [held.file, aFile("run.json", "{}")] },
        aCall(),
      );
      slow.catch(() => {});
      await held.reached;
      await location.deliver({ ...parcel, deliveryId: "delivery_2" }, aCall());
      held.goOn();
      await slow;
      const found = await published(`${outermost}${parcel.batchId}`);
      expect([...found.keys()].sort()).toEqual(["output.jsonl", "run.json"]);
      expect(found.get("output.jsonl")?.equals(bytes)).toBe(true);
    });

    test("is never there in part while an attempt that stood still goes on beside the one that took over", async () => {
      const { location, published, outermost } = await open();
      const [output, manifest] = [aFile("output.jsonl", "rows"), aFile("run.json", "{}")];
      const parcel = aParcel({ files: [output, manifest] });
      const [former, next] = [aHeldFile(manifest), aHeldFile(output)];
      const progress = new Progress();
      const stood = location.deliver(
        { ...parcel, files: [output, former.file] },
        aCall({ progress }),
      );
      const ended = stood.catch(() => {});
      await former.reached;
      // It knows what the former one has saved up to now.
      const taken = new Progress();
      taken.saved = progress.saved;
      const taking = location.deliver(
        { ...parcel, files: [next.file, manifest] },
        aCall({ progress: taken }),
      );
      taking.catch(() => {});
      await Promise.race([next.reached, taking]);
      former.goOn();
      await ended;
      const names = async () => [...(await published(`${outermost}${parcel.batchId}`)).keys()];
      if ((await names()).includes("run.json")) expect(await names()).toHaveLength(2);
      next.goOn();
      await taking;
      expect((await names()).sort()).toEqual(["output.jsonl", "run.json"]);
    });

    test("loses nothing when another delivery of its batch to the same place is given up", async () => {
      const { location, published, outermost, largeBytes } = await open();
      const bytes = patternOf(largeBytes / 2);
      const whole = [aFile("errors.jsonl", "e"), aFile("output.jsonl", bytes)];
      const manifest = aFile("run.json", patternOf(300_000));
      const broken = aBrokenFile(manifest, 100_000, new Error("killed"));
      const parcel = aParcel({ files: [...whole, broken] });
      const progress = new Progress();
      await expect(location.deliver(parcel, aCall({ progress }))).rejects.toThrow("killed");
      const held = aHeldFile(manifest);
      const other = { ...parcel, deliveryId: "delivery_2", files: [...whole, held.file] };
      const delivered = location.deliver(other, aCall());
      delivered.catch(() => {});
      await held.reached;
      if (progress.saved !== null) await location.discard(progress.saved, aCall());
      held.goOn();
      await delivered;
      const found = await published(`${outermost}${parcel.batchId}`);
      expect([...found.keys()].sort()).toEqual(["errors.jsonl", "output.jsonl", "run.json"]);
    });

    test("cannot have a file or a batch whose name is a path", async () => {
      const { location } = await open();
      for (const name of ["../a", "a/b", ".git", "", "a\nb", "-a"]) {
        const parcel = aParcel({ files: [aFile(name, "x")] });
        const attempt = async () => location.deliver(parcel, aCall());
        await expect(attempt(), name).rejects.toThrow("not the name of a file");
      }
      const parcel = { ...aParcel(), batchId: "../batch" as ReturnType<typeof newBatchId> };
      await expect((async () => location.deliver(parcel, aCall()))()).rejects.toThrow("not the id");
    });
  });
}
