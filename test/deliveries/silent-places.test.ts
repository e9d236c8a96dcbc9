/** Deliveries to places that never answer, beside one that does. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { post } from "../support/projects.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

/** A server has sixteen deliveries under way, and two to one place. */
const SILENT_PLACES = 8;

/** Takes every request and answers none. */
async function startSilentServer() {
  let count = 0;
  const server = createServer(() => void count++).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    get requestCount() {
      return count;
    },
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
    },
  };
}

test("eight places that never answer, with two deliveries each, hold up no other place", async () => {
  using share = temporaryFolder("batchd-share-");
  await using silent = await startSilentServer();
  await using upstream = await startUpstream();
  const places = Array.from({ length: SILENT_PLACES }, (_, n) => ({
    name: `silent-${n}`,
    kind: "s3",
    access: "write",
    bucket: `bucket-${n}`,
    region: "eu-central-1",
    endpoint: silent.url,
    force_path_style: true,
    access_key_id: "any",
    secret_access_key: "any-other",
  }));
  const healthy = { name: "share", kind: "folder", path: share.path, access: "write" };
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations: [...places, healthy], engine: { drain_grace_seconds: 0 } },
  });
  const batches = [await service.run(chatLines(1)), await service.run(chatLines(1))];
  const deliver = (id: string, location: string) =>
    post(service.url, `batches/${id}/deliveries`, { location });
  for (const { id } of batches) {
    for (const { name } of places) expect((await deliver(id, name)).status).toBe(200);
  }
  await expect.poll(() => silent.requestCount).toBeGreaterThanOrEqual(SILENT_PLACES);
  const [{ id }] = batches as [{ id: string }, ...unknown[]];
  expect((await deliver(id, "share")).status).toBe(200);
  await service.events.reached("delivery.delivered", { batch: id, location: "share" });
  expect(service.events.count("delivery.attempt_failed")).toBe(0);
});
