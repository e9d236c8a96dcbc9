/** Deliveries of several projects to one place. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { dataRoot } from "../support/data-root.ts";
import { create, post, upload } from "../support/projects.ts";
import { startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const MANY = 12;
/** So many deliveries to one place are under way at a time. */
const SIDE_BY_SIDE = 2;

test.each([
  { place: "the same place", end: "delivery.delivered", isThere: true },
  { place: "a place that is gone", end: "delivery.attempt_failed", isThere: false },
])(
  "a delivery waits for no more than a turn of a project that has many to $place",
  async ({ end: ended, isThere }) => {
    using data = temporaryFolder("batchd-turns-", dataRoot());
    using share = temporaryFolder("batchd-share-");
    const keys = ["many", "one"].map((name) => ({ name, key: `key-${name}`, project: name }));
    const locations = [{ name: "share", kind: "folder", path: join(share.path), access: "write" }];
    await using upstream = await startUpstream();
    const start = (role: "api" | "all", config: object = { locations }) =>
      startTestService({
        dataDir: data.path,
        role,
        config: { auth: { keys }, ...config },
        upstreamUrl: upstream.url,
      });
    const owners = [...Array.from({ length: MANY }, () => "key-many"), "key-one"];

    const batches: string[] = [];
    const end = async (service: TestService, key: string) => {
      const { id: fileId = "" } = (await upload(service.url, undefined, key)).body;
      const { id = "" } = (await create(service.url, fileId, { key })).body;
      await service.events.reached("batch.completed", { batch: id });
      batches.push(id);
    };
    await using first = await start("all");
    for (const key of owners) await end(first, key);
    await first.close();

    // A server of the API delivers nothing.
    await using api = await start("api");
    for (const [i, batch] of batches.entries()) {
      const asked = await post(
        api.url,
        `batches/${batch}/deliveries`,
        { location: "share" },
        owners[i],
      );
      expect(asked.status).toBe(200);
    }
    await api.close();

    await using last = await start("all", isThere ? { locations } : {});
    for (const batch of batches) await last.events.reached(ended, { batch });
    const order = last.events.all.filter(({ event }) => event === ended).map(({ batch }) => batch);
    expect(order).toHaveLength(MANY + 1);
    expect(order.indexOf(batches.at(-1) ?? "")).toBeLessThanOrEqual(SIDE_BY_SIDE);
  },
);
