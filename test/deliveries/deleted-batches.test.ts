/** A batch is deleted while a delivery of it waits for its next attempt: what the attempts have left at the place is removed. */
import { readdirSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startStepProxy } from "../support/step-proxy.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const filesBelow = (folder: string) =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ name }) => name);

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
    const start = (more: object) =>
      startTestService({ dataDir: folder.path, config: configWith(more) });

    let id: string;
    {
      await using service = await start({});
      ({ id } = await service.run(chatLines(2)));
      const half = proxy.stopAt({ method: "PUT", path: /run\.json/, at: "request" });
      const asked = await fetch(`${service.url}/v1/batches/${id}/deliveries`, {
        method: "POST",
        body: JSON.stringify({ location: "lake" }),
      });
      expect(asked.status).toBe(200);
      await half;
    }
    expect(filesBelow(bucket.bucketFolder)).toEqual(["output.jsonl"]);

    await using service = await start({ projects: ["other"] });
    await service.events.reached("delivery.attempt_failed", { batch: id });
    proxy.release();
    await fetch(`${service.url}/v1/batches/${id}`, { method: "DELETE" });
    await service.events.reached("batch.removed", { batch: id });
    expect(filesBelow(bucket.bucketFolder)).toEqual([]);
  });
});
