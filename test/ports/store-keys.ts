import { expect, test } from "vitest";
import type { UntrustedId } from "../../src/batch/batch.ts";
import type { NewKey } from "../../src/store/keys.ts";
import { ROWS_PAGE } from "../../src/store/page.ts";
import { at, NOW_MS, PROJECT } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

let count = 0;
const aKey = (fields: Partial<NewKey> = {}): NewKey => ({
  id: `key_${++count}` as NewKey["id"],
  name: "nightly",
  project: PROJECT,
  scopes: ["read", "write"],
  createdAtMs: NOW_MS,
  expiresAtMs: null,
  digest: "0".repeat(64),
  ...fields,
});
const listed = ({ digest: _, ...key }: NewKey) => ({ ...key, lastUsedAtMs: null });
const unknown = "key_unknown" as UntrustedId<"key">;

export function testKeys(open: OpenStore): void {
  test("a key is in force from its commit on, also after a restart, and no longer than to its deletion", async () => {
    const opened = await open();
    const key = aKey();
    await opened.store.insertKeyUnlessDeleted(key);
    const store = await opened.reopen();
    const found = await store.findKeysInForce(null);
    expect(found).toMatchObject({
      isKeyRequired: true,
      keys: [{ id: key.id, digest: key.digest }],
    });
    expect(await store.findKey(key.id)).toEqual(listed(key));
    expect(await store.deleteKeyIfPresent(key.id)).toEqual(listed(key));
    expect(await store.findKey(key.id)).toBeNull();
    expect(await store.deleteKeyIfPresent(key.id)).toBeNull();
    expect((await store.findKeysInForce(null))?.keys).toEqual([]);
  });

  test("no key is required before the first one, and always after it, even when none is left", async () => {
    const { store } = await open();
    expect(await store.findKeysInForce(null)).toMatchObject({ isKeyRequired: false, keys: [] });
    const key = aKey();
    await store.insertKeyUnlessDeleted(key);
    await store.deleteKeyIfPresent(key.id);
    expect(await store.findKeysInForce(null)).toMatchObject({ isKeyRequired: true, keys: [] });
  });

  test("a key is in force until exactly its expiry, and is listed after it", async () => {
    const { store } = await open();
    const key = aKey({ expiresAtMs: NOW_MS + 1_000 });
    await store.insertKeyUnlessDeleted(key);
    expect((await at(store, NOW_MS + 999).findKeysInForce(null))?.keys).toHaveLength(1);
    expect((await at(store, NOW_MS + 1_000).findKeysInForce(null))?.keys).toHaveLength(0);
    expect(await store.listKeys({ limit: 10, after: null })).toMatchObject({
      data: [listed(key)],
      hasMore: false,
    });
  });

  test("keys are read again after every change, and only then", async () => {
    const { store } = await open();
    let mark: string | null = null;
    const hasChanged = async () => {
      const found = await store.findKeysInForce(mark);
      mark = found?.mark ?? mark;
      return found !== null;
    };
    const [a, b, c] = [aKey(), aKey({ expiresAtMs: NOW_MS + 1_000 }), aKey()];
    const steps: (() => Promise<unknown>)[] = [
      async () => {},
      () => store.insertKeyUnlessDeleted(a),
      () => store.insertKeyUnlessDeleted(b),
      async () => {
        await store.deleteKeyIfPresent(a.id);
        await store.insertKeyUnlessDeleted(c);
      },
      async () => void at(store, NOW_MS + 1_000),
      () => store.deleteKeyIfPresent(c.id),
    ];
    for (const step of steps) {
      await step();
      expect(await hasChanged()).toBe(true);
      expect(await hasChanged()).toBe(false);
    }
  });

  test("keys in force are read whole, however many they are", async () => {
    const { store } = await open();
    const keys = Array.from({ length: ROWS_PAGE + 1 }, () => aKey());
    for (let from = 0; from < keys.length; from += 100) {
      const some = keys.slice(from, from + 100);
      await Promise.all(some.map((key) => store.insertKeyUnlessDeleted(key)));
    }
    const found = (await store.findKeysInForce(null))?.keys.map(({ id }) => id) ?? [];
    expect(found).toHaveLength(keys.length);
    expect(new Set(found)).toEqual(new Set(keys.map(({ id }) => id)));
  });

  test("lists come newest first, page by page", async () => {
    const { store } = await open();
    const keys = [aKey(), aKey(), aKey()];
    for (const key of keys) await store.insertKeyUnlessDeleted(key);
    const first = await store.listKeys({ limit: 2, after: null });
    expect(first).toEqual({ data: [keys[2]!, keys[1]!].map(listed), hasMore: true });
    const rest = await store.listKeys({ limit: 2, after: keys[1]!.id });
    expect(rest).toEqual({ data: [listed(keys[0]!)], hasMore: false });
    expect(await store.listKeys({ limit: 2, after: unknown })).toBeNull();
  });

  test("a use is recorded for the keys that are named, with the time of the store", async () => {
    const { store } = await open();
    const [used, unused] = [aKey(), aKey()];
    await store.insertKeyUnlessDeleted(used);
    await store.insertKeyUnlessDeleted(unused);
    const others = Array.from({ length: 66_000 }, () => aKey().id);
    await at(store, NOW_MS + 5).recordKeyUses([...others, used.id]);
    const page = await store.listKeys({ limit: 10, after: null });
    expect(page?.data.map(({ lastUsedAtMs }) => lastUsedAtMs)).toEqual([null, NOW_MS + 5]);
  });

  test("processes that start together agree on one signing key for each purpose", async () => {
    const { store } = await open();
    const offered = ["a", "b", "c", "d"];
    const agreed = await Promise.all(
      offered.map((fresh) => store.agreeOnSigningKey("sessions", fresh)),
    );
    expect(new Set(agreed).size).toBe(1);
    expect(offered).toContain(agreed[0]);
    expect(await store.agreeOnSigningKey("sessions", "e")).toBe(agreed[0]);
    expect(await store.agreeOnSigningKey("others", "f")).toBe("f");
  });
}
