/** A batch is deleted while a delivery of it waits or begins: what the attempts have left at the place is removed. */
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import type { Store } from "../../src/store/store.ts";
import { uploadLines } from "../support/batches.ts";
import { namesBelow } from "../support/files-below.ts";
import { BatchdProcess } from "../support/process.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startStepProxy } from "../support/step-proxy.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

/** Resolves when the delivery has ended, or its rows are gone. */
const cleanedUp = ({ events }: TestService, batch: string) =>
  Promise.race(
    ["delivery.cancelled", "batch.removed"].map((end) => events.reached(end, { batch })),
  );

/** Creates a batch whose results go to a location. */
async function submitTo(url: string, location: string): Promise<string> {
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const { id } = await openai.post<{ id: string }>("/batches", {
    body: {
      input_file_id: await uploadLines(openai, chatLines(2)),
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      x_batchd: { deliver: [{ location }] },
    },
  });
  return id;
}

describe.skipIf(!hasS3Server())("in a bucket", () => {
  test("half of a parcel goes with its batch, although the project may not use the location any more", async () => {
    using folder = temporaryFolder("batchd-deleted-");
    await using upstream = await startUpstream();
    await using bucket = await startS3Server();
    await using proxy = await startStepProxy(bucket.url);
    const { type: _, ...s3 } = bucket.storage({ endpoint: proxy.url });
    const location = { name: "lake", kind: "s3", access: "write", ...s3 };
    const configWith = (more: object) => ({
      data_dir: folder.path,
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      locations: [{ ...location, ...more }],
      engine: { drain_grace_seconds: 0 },
    });
    const half = proxy.stopAt({ method: "PUT", path: /run\.json/, at: "request" });
    const path = join(folder.path, "batchd.yaml");
    writeFileSync(path, JSON.stringify(configWith({})));
    const killed = new BatchdProcess(["serve", "--port", "0", "--config", path]);
    const id = await submitTo(await killed.listening(), "lake");
    await half;
    await killed.kill();
    expect(namesBelow(bucket.bucketFolder)).toEqual(["output.jsonl"]);

    const config = configWith({ projects: ["other"] });
    await using service = await startTestService({ dataDir: folder.path, config });
    await service.events.reached("delivery.attempt_failed", { batch: id });
    proxy.release();
    await fetch(`${service.url}/v1/batches/${id}`, { method: "DELETE" });
    await cleanedUp(service, id);
    expect(namesBelow(bucket.bucketFolder)).toEqual([]);
  });
});

const AT_RENAME = new URL("../support/fixtures/kill-at-rename.ts", import.meta.url).href;

test("what a killed process has left in a folder goes with its batch", async () => {
  using folder = temporaryFolder("batchd-deleted-");
  const [dataDir, share] = [join(folder.path, "data"), join(folder.path, "share")];
  mkdirSync(share);
  await using upstream = await startUpstream();
  const location = { name: "share", kind: "folder", path: share, access: "write" };
  const configWith = (more: object) => ({
    data_dir: dataDir,
    upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
    locations: [{ ...location, ...more }],
  });
  const config = join(folder.path, "batchd.yaml");
  writeFileSync(config, JSON.stringify(configWith({})));
  await using killed = new BatchdProcess(["serve", "--port", "0", "--config", config], {
    NODE_OPTIONS: `--import ${AT_RENAME}`,
    KILL_AT_RENAME: "before",
    KILL_AT_RENAME_OF: "[.]batchd-",
  });
  const id = await submitTo(await killed.listening(), "share");
  await killed.exited();
  expect(readdirSync(share)).toEqual([expect.stringContaining(`.batchd-${id}`)]);

  const only = { projects: ["other"] };
  await using service = await startTestService({ dataDir, config: configWith(only) });
  await service.events.reached("delivery.attempt_failed", { batch: id });
  await fetch(`${service.url}/v1/batches/${id}`, { method: "DELETE" });
  await cleanedUp(service, id);
  expect(readdirSync(share)).toEqual([]);
});

test("a batch that another server deletes as its delivery begins is no loss of results", async () => {
  using share = temporaryFolder("batchd-share-");
  await using upstream = await startUpstream();
  const locations = [{ name: "share", kind: "folder", path: share.path, access: "write" }];
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations },
    openStorage: async (config, deps) => {
      const opened = await openStorage(config, deps);
      if (!opened.ok) return opened;
      const { store } = opened;
      const keepRunRecord: Store["keepRunRecord"] = async (id, record) => {
        const batch = { project: "default", id };
        await store.deleteBatchIfPresent(batch, { withInput: false });
        return store.keepRunRecord(id, record);
      };
      return { ...opened, store: { ...store, keepRunRecord } };
    },
  });
  const id = await submitTo(service.url, "share");
  await service.events.reached("delivery.cancelled", { batch: id });
  expect(service.events.count("delivery.given_up")).toBe(0);
  expect(readdirSync(share.path)).toEqual([]);
});

describe("of a location that is no longer in the configuration", () => {
  const configFor = (dataDir: string, upstreamUrl: string, locations: readonly object[]) => ({
    data_dir: dataDir,
    upstreams: [{ name: "one", base_url: upstreamUrl, models: ["*"] }],
    locations,
    engine: { drain_grace_seconds: 0 },
  });
  const deliver = async ({ url }: TestService, batch: string) => {
    const body = JSON.stringify({ location: "lake" });
    const asked = await fetch(`${url}/v1/batches/${batch}/deliveries`, { method: "POST", body });
    return ((await asked.json()) as { id: string }).id;
  };
  const cancel = ({ url }: TestService, batch: string, id: string) =>
    fetch(`${url}/v1/batches/${batch}/deliveries/${id}/cancel`, { method: "POST" });

  test.skipIf(!hasS3Server()).each(["a reload", "a restart"] as const)(
    "half of a parcel is removed, or named to the operator, after %s",
    async (what) => {
      using folder = temporaryFolder("batchd-removed-");
      await using upstream = await startUpstream();
      await using bucket = await startS3Server();
      await using proxy = await startStepProxy(bucket.url);
      const { type: _, ...s3 } = bucket.storage({ endpoint: proxy.url });
      const lake = { name: "lake", kind: "s3", access: "write", ...s3 };
      const start = (locations: readonly object[]) => {
        const config = configFor(folder.path, upstream.url, locations);
        return startTestService({ dataDir: folder.path, config });
      };
      let id: string;
      let delivery: string;
      {
        await using service = await start([lake]);
        ({ id } = await service.run(chatLines(2)));
        const half = proxy.stopAt({ method: "PUT", path: /run\.json/, at: "request" });
        delivery = await deliver(service, id);
        await half;
        if (what === "a reload") {
          service.reconfigure(configFor(folder.path, upstream.url, []));
          await cancel(service, id, delivery);
          await service.events.reached("delivery.cancelled", { delivery });
          expect(namesBelow(bucket.bucketFolder)).toEqual([]);
          return;
        }
      }
      expect(namesBelow(bucket.bucketFolder)).toEqual(["output.jsonl"]);
      await using service = await start([]);
      await cancel(service, id, delivery);
      await service.events.reached("delivery.not_discarded", { delivery });
      const told = service.events.all.find(({ event }) => event === "delivery.not_discarded");
      expect(told).toMatchObject({
        location: "lake",
        batch: id,
        reason: "there is no location 'lake'",
        left: { bucket: "tests", made: [`${id}/output.jsonl`, `${id}/run.json`] },
      });
    },
  );

  test.skipIf(!hasS3Server()).each(["a reload", "a restart"] as const)(
    "half of a parcel is not taken for its own by the folder that has the name after %s",
    async (what) => {
      using folder = temporaryFolder("batchd-renamed-");
      const [dataDir, share] = [join(folder.path, "data"), join(folder.path, "share")];
      mkdirSync(share);
      await using upstream = await startUpstream();
      await using bucket = await startS3Server();
      await using proxy = await startStepProxy(bucket.url);
      const { type: _, ...s3 } = bucket.storage({ endpoint: proxy.url });
      const asBucket = { name: "lake", kind: "s3", access: "write", ...s3 };
      const asFolder = { name: "lake", kind: "folder", access: "write", path: share };
      const config = (location: object) => configFor(dataDir, upstream.url, [location]);
      let id: string;
      let delivery: string;
      {
        await using service = await startTestService({ dataDir, config: config(asBucket) });
        ({ id } = await service.run(chatLines(2)));
        const half = proxy.stopAt({ method: "PUT", path: /run\.json/, at: "request" });
        delivery = await deliver(service, id);
        await half;
        if (what === "a reload") {
          service.reconfigure(config(asFolder));
          await cancel(service, id, delivery);
          await service.events.reached("delivery.cancelled", { delivery });
          expect(service.events.count("delivery.not_discarded", {})).toBe(0);
          expect(namesBelow(bucket.bucketFolder)).toEqual([]);
          return;
        }
      }
      await using service = await startTestService({ dataDir, config: config(asFolder) });
      await service.events.reached("delivery.delivered", { delivery });
      expect(namesBelow(share)).toEqual(["output.jsonl", "run.json"]);
      const told = service.events.all.find(({ event }) => event === "delivery.not_discarded");
      expect(told).toMatchObject({
        location: "lake",
        left: { bucket: "tests", made: [`${id}/output.jsonl`, `${id}/run.json`] },
      });
    },
  );
});
