import { expect, test } from "vitest";
import {
  IDEMPOTENCY_KEY_KEPT_MS,
  IdempotencyKeyLost,
  type Receipt,
} from "../../src/store/idempotency.ts";
import type { Store } from "../../src/store/store.ts";
import {
  AFTER_LEASES_MS,
  aBatch,
  aFile,
  anUpload,
  aReceipt,
  at,
  claimBy,
  completeUpload,
  insertFile,
  NOW_MS,
  PROJECT,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const KEY = aReceipt().key;
const NEW = { kind: "new" };
const IN_PROGRESS = { kind: "in_progress" };
const answered = ({ fingerprint, answer }: Receipt) => ({ kind: "answered", fingerprint, answer });

const OWNER = aReceipt().owner;

const claimKey = (store: Store, nowMs = NOW_MS, key = KEY) =>
  at(store, nowMs).claimIdempotencyKey(PROJECT, key, claimBy(OWNER));

/** The objects that come with a receipt. */
const INSERTS: Record<string, (store: Store, receipt?: Receipt) => Promise<unknown>> = {
  file: (store, receipt) => insertFile(store, aFile(), receipt),
  batch: (store, receipt) => store.insertBatch(aBatch(), { receipt }),
  upload: (store, receipt) => store.insertUpload(anUpload(), { receipt }),
  "completed upload": async (store, receipt) => {
    const [upload, file] = [anUpload(), aFile()];
    await store.insertUpload(upload);
    await completeUpload(store, { upload, file, receipt });
  },
};

export function testIdempotency(open: OpenStore): void {
  testClaims(open);
  testReceipts(open);
  testAge(open);
}

function testClaims(open: OpenStore): void {
  test("a key is taken once, and is in progress for others", async () => {
    const { store } = await open();
    const states = await Promise.all(Array.from({ length: 10 }, () => claimKey(store)));
    expect(states.filter(({ kind }) => kind === "new")).toHaveLength(1);
    expect(states.filter(({ kind }) => kind === "in_progress")).toHaveLength(9);
  });

  test("a key means something in its project only", async () => {
    const { store } = await open();
    expect(await claimKey(store)).toEqual(NEW);
    expect(await store.claimIdempotencyKey("search", KEY, claimBy("other"))).toEqual(NEW);
    expect(await claimKey(store, NOW_MS, `${KEY} `)).toEqual(NEW);
    expect(await store.releaseIdempotencyKeyIfHeld("search", KEY, "other")).toBe(true);
    expect(await claimKey(store)).toEqual(IN_PROGRESS);
  });

  test("a released key is free at once, and only its owner releases it", async () => {
    const { store } = await open();
    await claimKey(store);
    expect(await store.releaseIdempotencyKeyIfHeld(PROJECT, KEY, "other")).toBe(false);
    expect(await claimKey(store)).toEqual(IN_PROGRESS);
    expect(await store.releaseIdempotencyKeyIfHeld(PROJECT, KEY, OWNER)).toBe(true);
    expect(await store.releaseIdempotencyKeyIfHeld(PROJECT, KEY, OWNER)).toBe(false);
    expect(await claimKey(store)).toEqual(NEW);
  });

  test("a claim that is renewed does not run out, until its owner has lost it", async () => {
    const { store } = await open();
    const renew = (owner: string, nowMs: number) =>
      at(store, nowMs).renewIdempotencyKeyIfHeld(PROJECT, KEY, claimBy(owner));
    await claimKey(store);
    expect(await renew("other", NOW_MS + 1)).toBe(false);
    expect(await renew(OWNER, NOW_MS + 1)).toBe(true);
    expect(await claimKey(store, AFTER_LEASES_MS)).toEqual(IN_PROGRESS);
    expect(
      await at(store, AFTER_LEASES_MS + 1).claimIdempotencyKey(PROJECT, KEY, claimBy("other")),
    ).toEqual(NEW);
    expect(await renew(OWNER, AFTER_LEASES_MS + 1)).toBe(false);
    expect(await store.releaseIdempotencyKeyIfHeld(PROJECT, KEY, OWNER)).toBe(false);
  });

  test("a key in progress is taken over exactly when its claim has run out", async () => {
    const { store } = await open();
    await claimKey(store);
    expect(await claimKey(store, AFTER_LEASES_MS - 1)).toEqual(IN_PROGRESS);
    expect(await claimKey(store, AFTER_LEASES_MS)).toEqual(NEW);
    expect(await claimKey(store, AFTER_LEASES_MS)).toEqual(IN_PROGRESS);
  });
}

function testReceipts(open: OpenStore): void {
  for (const [what, insert] of Object.entries(INSERTS)) {
    test(`the answer that tells of a ${what} is remembered with it, also after a restart`, async () => {
      const opened = await open();
      const receipt = aReceipt();
      await claimKey(opened.store);
      await insert(opened.store, receipt);
      expect(await claimKey(opened.store)).toEqual(answered(receipt));
      const store = await opened.reopen();
      expect(await claimKey(store)).toEqual(answered(receipt));
    });

    test(`a ${what} that comes without a key answers none`, async () => {
      const { store } = await open();
      await claimKey(store);
      await insert(store);
      expect(await claimKey(store)).toEqual(IN_PROGRESS);
    });
  }

  test("an answer is not remembered when its object could not be stored", async () => {
    const { store } = await open();
    const [file, batch, upload] = [aFile(), aBatch(), anUpload()];
    await insertFile(store, file);
    await store.insertBatch(batch);
    await store.insertUpload(upload);
    await claimKey(store);
    await expect(insertFile(store, file, aReceipt())).rejects.toThrow();
    await expect(store.insertBatch(batch, { receipt: aReceipt() })).rejects.toThrow();
    await expect(store.insertUpload(upload, { receipt: aReceipt() })).rejects.toThrow();
    expect(await claimKey(store)).toEqual(IN_PROGRESS);
  });

  test("an answered key does not run out with its claim, and is not released", async () => {
    const { store } = await open();
    const receipt = aReceipt();
    await claimKey(store);
    await insertFile(store, aFile(), receipt);
    expect(await store.releaseIdempotencyKeyIfHeld(PROJECT, KEY, OWNER)).toBe(false);
    expect(await claimKey(store, AFTER_LEASES_MS)).toEqual(answered(receipt));
  });

  for (const [what, insert] of Object.entries(INSERTS)) {
    test(`a ${what} whose request has lost its key is not stored`, async () => {
      const { store } = await open();
      const [late, winner] = [aReceipt(), aReceipt({ owner: "other", answer: '"b"' })];
      await claimKey(store);
      const claim = claimBy("other");
      expect(await at(store, AFTER_LEASES_MS).claimIdempotencyKey(PROJECT, KEY, claim)).toEqual(
        NEW,
      );
      await expect(insert(store, late)).rejects.toThrow(IdempotencyKeyLost);
      await insert(store, winner);
      await expect(insert(store, late)).rejects.toThrow(IdempotencyKeyLost);
      expect(await claimKey(store)).toEqual(answered(winner));
    });
  }

  test("an object that is refused for its key leaves nothing", async () => {
    const { store } = await open();
    const [file, batch, upload] = [aFile(), aBatch(), anUpload()];
    const pending = anUpload();
    await store.insertUpload(pending);
    await expect(insertFile(store, file, aReceipt())).rejects.toThrow(IdempotencyKeyLost);
    await expect(
      completeUpload(store, { upload: pending, file, receipt: aReceipt() }),
    ).rejects.toThrow(IdempotencyKeyLost);
    await expect(store.insertBatch(batch, { receipt: aReceipt() })).rejects.toThrow(
      IdempotencyKeyLost,
    );
    await expect(store.insertUpload(upload, { receipt: aReceipt() })).rejects.toThrow(
      IdempotencyKeyLost,
    );
    expect(await store.findFile(file)).toBeNull();
    expect(await store.findBatch(batch)).toBeNull();
    expect(await store.findUpload(upload)).toBeNull();
    expect(await store.findUpload(pending)).toEqual(pending);
    expect(await claimKey(store)).toEqual(NEW);
  });
}

function testAge(open: OpenStore): void {
  const OLD_MS = NOW_MS + IDEMPOTENCY_KEY_KEPT_MS;

  test("an answer is remembered for exactly 24 hours from the claim, swept or not", async () => {
    const { store } = await open();
    const receipt = aReceipt();
    await claimKey(store);
    await insertFile(store, aFile(), receipt);
    await at(store, OLD_MS - 1).forgetIdempotencyKeys();
    expect(await claimKey(store, OLD_MS - 1)).toEqual(answered(receipt));
    expect(await claimKey(store, OLD_MS)).toEqual(NEW);
    expect(await claimKey(store, OLD_MS)).toEqual(IN_PROGRESS);
  });

  test("a key that was taken over gets its 24 hours anew", async () => {
    const { store } = await open();
    const receipt = aReceipt();
    await claimKey(store);
    await claimKey(store, AFTER_LEASES_MS);
    await insertFile(store, aFile(), receipt);
    await at(store, OLD_MS).forgetIdempotencyKeys();
    expect(await claimKey(store, OLD_MS)).toEqual(answered(receipt));
  });

  test("a key whose request still renews its claim is not forgotten, however old", async () => {
    const { store } = await open();
    await claimKey(store);
    await at(store, OLD_MS).renewIdempotencyKeyIfHeld(PROJECT, KEY, claimBy(OWNER));
    await at(store, OLD_MS + 1).forgetIdempotencyKeys();
    expect(await claimKey(store, OLD_MS + 1)).toEqual(IN_PROGRESS);
    await insertFile(store, aFile(), aReceipt());
    expect(await claimKey(store, OLD_MS + 1)).toEqual(answered(aReceipt()));
  });

  test("old keys are forgotten, and only those", async () => {
    const { store } = await open();
    const [old, young] = [aReceipt(), aReceipt({ key: "key-2" })];
    await claimKey(store);
    await claimKey(store, NOW_MS + 1, young.key);
    for (const receipt of [old, young]) await insertFile(store, aFile(), receipt);
    await at(store, OLD_MS).forgetIdempotencyKeys();
    // Asked at the time of the first claim: the old key would still stand for its answer.
    expect(await claimKey(store)).toEqual(NEW);
    expect(await claimKey(store, NOW_MS, young.key)).toEqual(answered(young));
  });
}
