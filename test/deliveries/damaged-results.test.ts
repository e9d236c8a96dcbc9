/** A delivery of results that a disk has damaged, or that are away: no place ever gets a part of them. */
import { readdirSync, readFileSync, renameSync, truncateSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { describe, expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import { StoreUnavailable } from "../../src/store/failures.ts";
import type { Store } from "../../src/store/store.ts";
import { expectToWait } from "../support/away-place.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { listening } from "../support/listening.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startShare } from "../support/share.ts";
import { startUpstream } from "../support/upstream.ts";

test.each(["jsonl", "csv", "parquet"])(
  "results that have lost their last rows are not delivered as %s",
  async (format) => {
    await using share = await startShare();
    const { service } = share;
    const { id, output_file_id } = await service.run(chatLines(3));
    const path = join(service.dataDir, "blobs/files", output_file_id ?? "");
    truncateSync(path, readFileSync(path, "utf8").indexOf("\n") + 1);
    const deliveries = `/batches/${id}/deliveries`;
    const body = { location: "share", format };
    const made = (await service.openai.post(deliveries, { body })) as DeliveryObject;
    const ends = ["delivery.given_up", "delivery.delivered"] as const;
    await Promise.race(ends.map((end) => service.events.reached(end, { delivery: made.id })));
    const ended = (await service.openai.get(`${deliveries}/${made.id}`)) as DeliveryObject;
    expect(ended).toMatchObject({ status: "failed", error: { code: "results_lost" } });
    expect(readdirSync(share.path)).toEqual([]);
  },
);

test.each(["jsonl", "csv"])(
  "results on a disk that is not mounted wait for it as %s",
  async (format) => {
    const clock = new FakeClock();
    await using share = await startShare({ clock });
    const { service } = share;
    const { id } = await service.run(chatLines(3));
    const [blobs, away] = [join(service.dataDir, "blobs"), join(service.dataDir, "away")];
    renameSync(blobs, away);
    const deliveries = `/batches/${id}/deliveries`;
    const body = { location: "share", format };
    const made = (await service.openai.post(deliveries, { body })) as DeliveryObject;
    const tries = ["delivery.given_up", "delivery.attempt_failed"] as const;
    await Promise.race(tries.map((end) => service.events.reached(end, { delivery: made.id })));
    expect(await service.openai.get(`${deliveries}/${made.id}`)).toMatchObject({
      status: "pending",
    });
    renameSync(away, blobs);
    clock.advance(60_000);
    await service.events.reached("delivery.delivered", { delivery: made.id });
    expect(readdirSync(share.path)).toEqual([id]);
  },
);

/** A bucket that takes objects, confirms none of them by a checksum, and shows none while it is `behind`. */
async function startBucketBehind() {
  const stored = new Map<string, Buffer>();
  const state = { isBehind: true };
  const respond = async (asked: IncomingMessage, answer: ServerResponse): Promise<void> => {
    const key = new URL(asked.url ?? "", "http://localhost").pathname;
    const tag = { etag: '"tag"' };
    const bytes = await buffer(asked);
    if (asked.method === "PUT") {
      stored.set(key, bytes);
      answer.writeHead(200, tag).end();
      return;
    }
    const found = state.isBehind || asked.method === "HEAD" ? undefined : stored.get(key);
    if (found === undefined) answer.writeHead(404).end();
    else answer.writeHead(200, { ...tag, "content-length": found.length }).end(found);
  };
  const server = createServer((asked, answer) => void respond(asked, answer));
  return { stored, state, endpoint: `http://127.0.0.1:${await listening(server)}` };
}

test("results that a bucket has taken and does not show yet are delivered once it does", async () => {
  const bucket = await startBucketBehind();
  const place = { bucket: "b", region: "r", endpoint: bucket.endpoint, force_path_style: true };
  const keys = { access_key_id: "any", secret_access_key: "any-other" };
  const id = await expectToWait({
    location: { name: "lake", kind: "s3", ...place, ...keys },
    message: "output.jsonl was stored, and the server does not find it",
    comeBack: () => {
      bucket.state.isBehind = false;
    },
  });
  expect([...bucket.stored.keys()]).toEqual([`/b/${id}/output.jsonl`, `/b/${id}/run.json`]);
});

describe.skipIf(!hasS3Server())("in a bucket", () => {
  test.each(["jsonl", "csv"])(
    "results that the bucket does not find at first are delivered later as %s",
    async (format) => {
      await using server = await startS3Server();
      await using proxy = await startS3Proxy(server.url);
      const storage = server.storage({ prefix: `${format}/`, endpoint: proxy.url });
      await using share = await startShare({ config: { storage } });
      const { service } = share;
      const { id } = await service.run(chatLines(3));
      proxy.trouble = { kind: "behind", path: /\/files\//, times: 1 };
      const body = { location: "share", format };
      const { id: delivery } = (await service.openai.post(`/batches/${id}/deliveries`, {
        body,
      })) as DeliveryObject;
      const ends = ["delivery.given_up", "delivery.delivered"] as const;
      await Promise.race(ends.map((end) => service.events.reached(end, { delivery })));
      expect(service.events.count("delivery.attempt_failed", { delivery })).toBe(1);
      expect(readdirSync(share.path)).toEqual([id]);
    },
  );

  test("a database that is away is not said to be the place that does not answer", async () => {
    let isAway = true;
    await using server = await startS3Server();
    const { type: _, ...s3 } = server.storage();
    await using upstream = await startUpstream();
    const clock = new FakeClock();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      clock,
      config: { locations: [{ name: "lake", kind: "s3", access: "write", ...s3 }] },
      openStorage: async (config, deps) => {
        const opened = await openStorage(config, deps);
        if (!opened.ok) return opened;
        const saveDeliveryProgressIfLeased: Store["saveDeliveryProgressIfLeased"] = async (
          ...saved
        ) => {
          if (isAway) throw new StoreUnavailable(new Error("away"));
          return opened.store.saveDeliveryProgressIfLeased(...saved);
        };
        return { ...opened, store: { ...opened.store, saveDeliveryProgressIfLeased } };
      },
    });
    const { id } = await service.run(chatLines(1));
    const path = `/batches/${id}/deliveries`;
    const { id: delivery } = (await service.openai.post(path, {
      body: { location: "lake" },
    })) as DeliveryObject;
    await service.events.reached("delivery.attempt_failed", { delivery });
    expect(await service.openai.get(`${path}/${delivery}`)).toMatchObject({
      error: {
        code: "storage_unavailable",
        message: "The database of the server cannot be read or written.",
      },
    });
    isAway = false;
    clock.advance(60_000);
    await service.events.reached("delivery.delivered", { delivery });
  });
});
