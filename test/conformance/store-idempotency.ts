import { expect, test } from "vitest";
import { IDEMPOTENCY_KEY_KEPT_MS, type Receipt } from "../../src/store/idempotency.ts";
import type { Store } from "../../src/store/store.ts";
import {
  AFTER_LEASES_MS,
  aBatch,
  aFile,
  anUpload,
  aReceipt,
  claimBy,
  insertFile,
  NOW_MS,
  PROJECT,
} from "../support/store-builders.ts";
import type { OpenStore } from "./store.ts";

const KEY = aReceipt().key;
const NEW = { kind: "new" };
const IN_PROGRESS = { kind: "in_progress" };
const answered = ({ fingerprint, answer }: Receipt) => ({ kind: "answered", fingerprint, answer });

const claimKey = (store: Store, nowMs = NOW_MS, key = KEY) =>
  store.claimIdempotencyKey(PROJECT, key, claimBy("somebody", nowMs));

/** The objects that come with a receipt. */
const INSERTS: Record<string, (store: Store, receipt?: Receipt) => Promise<unknown>> = {
  file: (store, receipt) => insertFile(store, aFile(), receipt),
  batch: (store, receipt) => store.insertBatch(aBatch(), receipt),
  upload: (store, receipt) => store.insertUpload(anUpload(), receipt),
};

export function testIdempotency(open: OpenStore): void {
  testClaims(open);
  testReceipts(open);
  testAge(open);
}

function testClaims(open: OpenStore): void {
  test("a key is taken once, and is in progress for others", async () => {
    await using opened = await open();
    const { store } = opened;
    const states = await Promise.all(Array.from({ length: 10 }, () => claimKey(store)));
    expect(states.filter(({ kind }) => kind === "new")).toHaveLength(1);
    expect(states.filter(({ kind }) => kind === "in_progress")).toHaveLength(9);
  });

  test("a key means something in its project only", async () => {
    await using opened = await open();
    const { store } = opened;
    expect(await claimKey(store)).toEqual(NEW);
    expect(await store.claimIdempotencyKey("search", KEY, claimBy("other"))).toEqual(NEW);
    expect(await claimKey(store, NOW_MS, `${KEY} `)).toEqual(NEW);
    await store.releaseIdempotencyKey("search", KEY);
    expect(await claimKey(store)).toEqual(IN_PROGRESS);
  });

  test("a released key is free at once", async () => {
    await using opened = await open();
    const { store } = opened;
    await claimKey(store);
    await store.releaseIdempotencyKey(PROJECT, KEY);
    expect(await claimKey(store)).toEqual(NEW);
  });

  test("a key in progress is taken over exactly when its claim has run out", async () => {
    await using opened = await open();
    const { store } = opened;
    await claimKey(store);
    expect(await claimKey(store, AFTER_LEASES_MS - 1)).toEqual(IN_PROGRESS);
    expect(await claimKey(store, AFTER_LEASES_MS)).toEqual(NEW);
    expect(await claimKey(store, AFTER_LEASES_MS)).toEqual(IN_PROGRESS);
  });
}

function testReceipts(open: OpenStore): void {
  for (const [what, insert] of Object.entries(INSERTS)) {
    test(`the answer that tells of a ${what} is remembered with it, also after a restart`, async () => {
      await using opened = await open();
      const receipt = aReceipt();
      await claimKey(opened.store);
      await insert(opened.store, receipt);
      expect(await claimKey(opened.store)).toEqual(answered(receipt));
      const store = await opened.reopen();
      expect(await claimKey(store)).toEqual(answered(receipt));
    });

    test(`a ${what} that comes without a key answers none`, async () => {
      await using opened = await open();
      await claimKey(opened.store);
      await insert(opened.store);
      expect(await claimKey(opened.store)).toEqual(IN_PROGRESS);
    });
  }

  test("an answer is not remembered when its object could not be stored", async () => {
    await using opened = await open();
    const { store } = opened;
    const [file, batch, upload] = [aFile(), aBatch(), anUpload()];
    await insertFile(store, file);
    await store.insertBatch(batch);
    await store.insertUpload(upload);
    await claimKey(store);
    await expect(insertFile(store, file, aReceipt())).rejects.toThrow();
    await expect(store.insertBatch(batch, aReceipt())).rejects.toThrow();
    await expect(store.insertUpload(upload, aReceipt())).rejects.toThrow();
    expect(await claimKey(store)).toEqual(IN_PROGRESS);
  });

  test("an answered key does not run out with its claim, and is not released", async () => {
    await using opened = await open();
    const { store } = opened;
    const receipt = aReceipt();
    await claimKey(store);
    await insertFile(store, aFile(), receipt);
    await store.releaseIdempotencyKey(PROJECT, KEY);
    expect(await claimKey(store, AFTER_LEASES_MS)).toEqual(answered(receipt));
  });

  test("the first answer to a key stays, while later objects are stored all the same", async () => {
    await using opened = await open();
    const { store } = opened;
    const [first, second] = [aReceipt({ answer: '"a"' }), aReceipt({ answer: '"b"' })];
    const late = aFile();
    await claimKey(store);
    await claimKey(store, AFTER_LEASES_MS);
    await insertFile(store, aFile(), first);
    await insertFile(store, late, second);
    expect(await store.findFile({ project: PROJECT, id: late.id })).toEqual(late);
    expect(await claimKey(store)).toEqual(answered(first));
  });

  test("a receipt answers its own key, and only one that was claimed", async () => {
    await using opened = await open();
    const { store } = opened;
    const [receipt, unclaimed] = [aReceipt(), aReceipt({ key: "key-2" })];
    await claimKey(store);
    await claimKey(store, NOW_MS, "key-3");
    await insertFile(store, aFile(), receipt);
    await insertFile(store, aFile(), unclaimed);
    expect(await claimKey(store, NOW_MS, "key-2")).toEqual(NEW);
    expect(await claimKey(store, NOW_MS, "key-3")).toEqual(IN_PROGRESS);
  });
}

function testAge(open: OpenStore): void {
  const OLD_MS = NOW_MS + IDEMPOTENCY_KEY_KEPT_MS;

  test("an answer is remembered for exactly 24 hours from the claim, swept or not", async () => {
    await using opened = await open();
    const { store } = opened;
    const receipt = aReceipt();
    await claimKey(store);
    await insertFile(store, aFile(), receipt);
    await store.forgetIdempotencyKeys(OLD_MS - 1);
    expect(await claimKey(store, OLD_MS - 1)).toEqual(answered(receipt));
    expect(await claimKey(store, OLD_MS)).toEqual(NEW);
    expect(await claimKey(store, OLD_MS)).toEqual(IN_PROGRESS);
  });

  test("a key that was taken over gets its 24 hours anew", async () => {
    await using opened = await open();
    const { store } = opened;
    const receipt = aReceipt();
    await claimKey(store);
    await claimKey(store, AFTER_LEASES_MS);
    await insertFile(store, aFile(), receipt);
    await store.forgetIdempotencyKeys(OLD_MS);
    expect(await claimKey(store, OLD_MS)).toEqual(answered(receipt));
  });

  test("old keys are forgotten, and only those", async () => {
    await using opened = await open();
    const { store } = opened;
    const [old, young] = [aReceipt(), aReceipt({ key: "key-2" })];
    await claimKey(store);
    await claimKey(store, NOW_MS + 1, young.key);
    for (const receipt of [old, young]) await insertFile(store, aFile(), receipt);
    await store.forgetIdempotencyKeys(OLD_MS);
    // Asked at the time of the first claim: the old key would still stand for its answer.
    expect(await claimKey(store)).toEqual(NEW);
    expect(await claimKey(store, NOW_MS, young.key)).toEqual(answered(young));
  });
}
