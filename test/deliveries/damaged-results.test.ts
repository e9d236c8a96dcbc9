/** A delivery of results that a disk has damaged: it fails, and no place ever gets a part of them. */
import { readdirSync, readFileSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

test.each(["jsonl", "csv", "parquet"])(
  "results that have lost their last rows are not delivered as %s",
  async (format) => {
    using folder = temporaryFolder("batchd-share-");
    await using upstream = await startUpstream();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: {
        locations: [{ name: "share", kind: "folder", path: folder.path, access: "write" }],
      },
    });
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
    expect(readdirSync(folder.path)).toEqual([]);
  },
);
