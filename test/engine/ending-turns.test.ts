/** The steps of batches: what one project has under way, and how many of its batches wait, holds up no other one. */
import { expect, test } from "vitest";
import { dataRoot } from "../support/data-root.ts";
import type { DerivedBatch } from "../support/derived.ts";
import { blobsAround, GatedBlobs } from "../support/gated-blobs.ts";
import { ask, clientOf, create, post, upload } from "../support/projects.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

/** So many batches of a project are validated at a time, and so many end. */
const SIDE_BY_SIDE = 3;

const keys = ["many", "one"].map((name) => ({ name, key: `key-${name}`, project: name }));

const shown = async (url: string, batch: string): Promise<DerivedBatch["x_batchd"]> =>
  ((await clientOf(url, "key-many").batches.retrieve(batch)) as DerivedBatch).x_batchd;

/** A project whose inputs and results are read for as long as a test wants, and one whose are not. */
async function startWithSlow() {
  const upstream = await startUpstream();
  const around = blobsAround(GatedBlobs);
  const options = {
    upstreamUrl: upstream.url,
    openStorage: around.open,
    config: { auth: { keys } },
  };
  const service = await startTestService(options);
  const { url } = service;
  const { reads } = around.blobs();
  const uploaded = async (key: string, content?: string) =>
    (await upload(url, content, key)).body.id ?? "";
  const many = await uploaded("key-many", `${chatLine("a", "Hi")}\n${chatLine("b", "Hi")}\n`);
  return {
    url,
    many,
    reads,
    events: service.events,
    submit: async (fileId: string, key: string, x_batchd = {}) =>
      (await create(url, fileId, { key, x_batchd })).body.id ?? "",
    one: await uploaded("key-one"),
    async [Symbol.asyncDispose]() {
      reads.open();
      await service[Symbol.asyncDispose]();
      await upstream[Symbol.asyncDispose]();
    },
  };
}

test("a batch is validated while another project has more large inputs than are read at a time", async () => {
  await using slow = await startWithSlow();
  const { reads, events, submit } = slow;
  reads.close(`files/${slow.many}`);
  const many: string[] = [];
  for (let n = 0; n <= SIDE_BY_SIDE; n++) many.push(await submit(slow.many, "key-many"));
  await reads.reached(SIDE_BY_SIDE);
  const one = await submit(slow.one, "key-one");
  await events.reached("batch.completed", { batch: one });
  reads.open();
  for (const batch of many) await events.reached("batch.completed", { batch });
});

test("a batch is made of lines of another one while another project has more large ones to make", async () => {
  await using slow = await startWithSlow();
  const { reads, events, submit } = slow;
  const ended = async (fileId: string, key: string) => {
    const batch = await submit(fileId, key);
    await events.reached("batch.completed", { batch });
    return batch;
  };
  const [many, one] = [await ended(slow.many, "key-many"), await ended(slow.one, "key-one")];
  reads.close(`files/${slow.many}`);
  const derive = async (batch: string, key: string) => {
    const from = { batch, lines: "all" };
    const asked = { endpoint: "/v1/chat/completions", x_batchd: { from } };
    return (await post(slow.url, "batches", asked, key)).body.id ?? "";
  };
  const made: string[] = [];
  for (let n = 0; n <= SIDE_BY_SIDE; n++) made.push(await derive(many, "key-many"));
  await reads.reached(SIDE_BY_SIDE);
  await events.reached("batch.completed", { batch: await derive(one, "key-one") });
  reads.open();
  for (const batch of made) await events.reached("batch.completed", { batch });
});

test("a batch ends while another project has more large ends than are written at a time", async () => {
  await using slow = await startWithSlow();
  const { reads, events, submit, url } = slow;
  const many: string[] = [];
  for (let n = 0; n <= SIDE_BY_SIDE; n++) {
    const batch = await submit(slow.many, "key-many", { sample: 1 });
    await expect.poll(async () => (await shown(url, batch)).paused).not.toBeNull();
    many.push(batch);
  }
  // The rows of lines that never ran are made of the input.
  reads.close(`files/${slow.many}`);
  for (const batch of many) await post(url, `batches/${batch}/cancel`, {}, "key-many");
  await reads.reached(SIDE_BY_SIDE);
  await events.reached("batch.completed", { batch: await submit(slow.one, "key-one") });
  reads.open();
  for (const batch of many) await events.reached("batch.cancelled", { batch });
});

test("a batch that ends waits for no more than a turn of a project of which many batches end", async () => {
  using folder = temporaryFolder("batchd-ends-", dataRoot());
  const options = { dataDir: folder.path };
  const config = { auth: { keys } };
  const cancelled = async (url: string, key: string, fileId: string): Promise<string> => {
    const { id = "" } = (await create(url, fileId, { key })).body;
    expect((await ask(url, `batches/${id}/cancel`, { method: "POST" }, key)).status).toBe(200);
    return id;
  };
  // Without a worker, nothing ends.
  await using api = await startTestService({ ...options, config, role: "api" });
  const { url } = api;
  const ofMany = (await upload(url, undefined, "key-many")).body.id ?? "";
  const ofOne = (await upload(url, undefined, "key-one")).body.id ?? "";
  const many: string[] = [];
  for (let n = 0; n < 30; n++) many.push(await cancelled(url, "key-many", ofMany));
  const one = await cancelled(url, "key-one", ofOne);
  await api.close();

  await using worker = await startTestService({ ...options, config });
  for (const batch of [...many, one]) await worker.events.reached("batch.cancelled", { batch });
  const ends = worker.events.all.filter(({ event }) => event === "batch.cancelled");
  const order = ends.map(({ batch }) => batch);
  expect(order).toHaveLength(31);
  expect(order.indexOf(one)).toBeLessThanOrEqual(SIDE_BY_SIDE);
});
