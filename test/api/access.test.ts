/** The keys that a server holds in memory, with its database there and away. Time is a fake, the store is real. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { Access, type ConfiguredKey } from "../../src/api/access.ts";
import { Keys } from "../../src/api/keys.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const GOOD_FOR_MS = 4_000;
const FILE_KEY = { name: "file", key: "key-of-the-file", project: "a", scopes: ["read" as const] };

/** A server whose database can go away, and an operator with a connection that stays. */
async function start(
  configured: readonly ConfiguredKey[] = [FILE_KEY],
  { isOperators = false }: { readonly isOperators?: boolean } = {},
) {
  const folder = temporaryFolder("batchd-access-");
  const clock = new FakeClock();
  const opened = await openSqliteStore({ path: join(folder.path, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  let isAway = false;
  let readCount = 0;
  let heldCount = 0;
  let held: Promise<void> = Promise.resolve();
  const log = createLog("silent");
  const access = new Access({
    clock,
    log,
    configured: () => configured,
    store: {
      recordKeyUses: store.recordKeyUses,
      findKeysInForce: async (mark) => {
        readCount++;
        if (isAway) throw new Error("the database is away");
        const found = await store.findKeysInForce(mark);
        heldCount++;
        await held;
        return found;
      },
    },
  });
  await access.start();
  // Another process makes the keys, or this one does.
  const onChanged = isOperators ? access.apply : async () => {};
  const keys = new Keys({ store, clock, log, onChanged });
  const request = { name: "n", project: "b", scopes: ["read" as const], expiresAtMs: null };
  return {
    access,
    clock,
    keys,
    readCount: () => readCount,
    create: () => keys.create(request),
    /** Holds readings back that have read all keys. */
    holdReadings: () => {
      const { promise, resolve: release } = Promise.withResolvers<void>();
      held = promise;
      heldCount = 0;
      return { release, reached: () => expect.poll(() => heldCount).toBe(1) };
    },
    setAway: (away: boolean) => {
      isAway = away;
    },
    async [Symbol.asyncDispose]() {
      await access.close();
      await store.close();
      folder[Symbol.dispose]();
    },
  };
}

test("a key that was revoked while the database is away is good for four seconds and no longer", async () => {
  await using server = await start();
  const { access, clock, keys } = server;
  const { key, text } = await server.create();
  clock.advance(GOOD_FOR_MS);
  expect(await access.callerWith(text)).toMatchObject({ project: "b", keyId: key.id });
  server.setAway(true);
  await keys.revoke(key.id);
  clock.advance(GOOD_FOR_MS - 1);
  expect(await access.callerWith(text)).not.toBeNull();
  clock.advance(1);
  await expect(access.callerWith(text)).rejects.toThrow("the database is away");
  expect(await access.callerWith(FILE_KEY.key)).toMatchObject({ project: "a", keyId: null });
  server.setAway(false);
  expect(await access.callerWith(text)).toBeNull();
});

test("requests that come together wait for one reading, and wrong keys cause none", async () => {
  await using server = await start();
  const { text } = await server.create();
  server.clock.advance(GOOD_FOR_MS);
  const before = server.readCount();
  const callers = await Promise.all(
    Array.from({ length: 100 }, () => server.access.callerWith(text)),
  );
  expect(callers.every((caller) => caller !== null)).toBe(true);
  for (let n = 0; n < 100; n++) expect(await server.access.callerWith(`wrong-${n}`)).toBeNull();
  // The loop of the server may have read at the same moment.
  expect(server.readCount() - before).toBeLessThanOrEqual(2);
});

test("of tens of thousands of keys in the configuration each is found as fast as one", async () => {
  const keys = Array.from({ length: 40_000 }, (_, i) => ({
    ...FILE_KEY,
    name: `key ${i}`,
    key: `key-of-the-file-${i}`,
  }));
  await using server = await start(keys);
  for (const { name, key } of keys.slice(-5_000)) {
    expect(await server.access.callerWith(key)).toMatchObject({ keyName: name });
  }
  expect(await server.access.callerWith("key-of-the-file-40000")).toBeNull();
});

test("a key that this server makes or revokes is known at once, without a reading of all keys", async () => {
  await using server = await start([FILE_KEY], { isOperators: true });
  const { access, keys } = server;
  const before = server.readCount();
  const { key, text } = await server.create();
  expect(await access.callerWith(text)).toMatchObject({ project: "b", keyId: key.id });
  await keys.revoke(key.id);
  expect(await access.callerWith(text)).toBeNull();
  expect(server.readCount()).toBe(before);
});

test("a reading that began before a change does not take it back", async () => {
  await using server = await start([], { isOperators: true });
  const { access, clock, keys } = server;
  const old = await server.create();
  clock.advance(GOOD_FOR_MS);
  const { release, reached } = server.holdReadings();
  const reading = access.callerWith(old.text);
  await reached();
  const changes = Promise.all([server.create(), keys.revoke(old.key.id)]);
  await expect
    .poll(async () => (await keys.list({ limit: 2, after: null })).data.map(({ id }) => id))
    .not.toContain(old.key.id);
  release();
  await reading;
  const [made] = await changes;
  expect(await access.callerWith(made.text)).toMatchObject({ keyId: made.key.id });
  expect(await access.callerWith(old.text)).toBeNull();
});
