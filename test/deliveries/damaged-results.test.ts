/** A delivery of results that a disk has damaged, or that are away: no place ever gets a part of them. */
import { readdirSync, readFileSync, renameSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines } from "../support/service.ts";
import { startShare } from "../support/share.ts";

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
});
