/** The deletion of a project with more batches than one round takes. */
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { pathsBelow } from "../support/files-below.ts";
import { blobsAround, GatedBlobs } from "../support/gated-blobs.ts";
import { ask, create, post, upload } from "../support/projects.ts";
import { startTestService } from "../support/service.ts";

const admin = "key-admin";
/** A round takes 100. */
const BATCHES = 210;
/** The time after which a server looks for deleted projects. */
const LOOK_AFTER_MS = 1_000;
const SWEEP_AFTER_MS = 60_000;

/** A server with a project of many batches, whose deletion has just begun. */
async function startDeletion() {
  const clock = new FakeClock();
  const service = await startTestService({
    clock,
    config: { auth: { keys: [{ name: "operator", key: admin, scopes: ["admin"] }] } },
  });
  const { url, dataDir } = service;
  const made = await post(url, "admin/keys", { name: "k", project: "doomed" }, admin);
  const { key } = made.body as unknown as { key: string };
  const file = (await upload(url, undefined, key)).body.id as string;
  for (let n = 0; n < BATCHES; n++) await create(url, file, { key });
  const db = new Database(join(dataDir, "batchd.sqlite"), { readonly: true });
  const left = () => db.prepare("select count(*) as count from batches").get();
  expect(left()).toEqual({ count: BATCHES });
  const deleted = await ask(url, "admin/projects/doomed", { method: "DELETE" }, admin);
  expect(deleted.status).toBe(200);
  return {
    service,
    clock,
    left,
    async [Symbol.asyncDispose]() {
      db.close();
      await service[Symbol.asyncDispose]();
    },
  };
}

test("the deletion of a project goes on without a pause while it finds what it can delete", async () => {
  await using deletion = await startDeletion();
  deletion.clock.advance(LOOK_AFTER_MS);
  await expect.poll(deletion.left, { interval: 50 }).toEqual({ count: 0 });
});

test("each batch of a deleted project is removed once, also where the sweep of all that is finished begins meanwhile", async () => {
  await using deletion = await startDeletion();
  const { service, clock, left } = deletion;
  const leftAtSweep = () => {
    clock.advance(SWEEP_AFTER_MS);
    return left();
  };
  await expect.poll(leftAtSweep, { interval: 10 }).toEqual({ count: 0 });
  await service.close();
  expect(service.events.count("batch.removed")).toBe(BATCHES);
});

/** A page of the sweep has 100 files. */
const FILES = 120;

test("a server that closes leaves the rest of a deletion to its next start", async () => {
  const clock = new FakeClock();
  const wrapped = blobsAround(GatedBlobs);
  await using service = await startTestService({
    clock,
    openStorage: wrapped.open,
    config: { auth: { keys: [{ name: "operator", key: admin, scopes: ["admin"] }] } },
  });
  const { url, dataDir } = service;
  const made = await post(url, "admin/keys", { name: "k", project: "doomed" }, admin);
  const { key } = made.body as unknown as { key: string };
  for (let n = 0; n < FILES; n++) expect((await upload(url, undefined, key)).status).toBe(200);
  const { deletes } = wrapped.blobs();
  deletes.close("files/");

  await ask(url, "admin/projects/doomed", { method: "DELETE" }, admin);
  clock.advance(LOOK_AFTER_MS);
  await deletes.reached();
  const closed = service.close();
  deletes.open();
  await closed;
  expect(pathsBelow(join(dataDir, "blobs/files"))).toHaveLength(FILES - 100);
});
