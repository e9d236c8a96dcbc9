/** Deliveries of several projects, to one place and as tables. */
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { dataRoot } from "../support/data-root.ts";
import { blobsAround, GatedBlobs } from "../support/gated-blobs.ts";
import { clientOf, create, post, upload } from "../support/projects.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
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

/** So many tables are made at a time for any project, and so many of its deliveries to a place are under way. */
const AT_ONCE = 2;

test.each([
  { what: "as a table", held: ["a", "b", "c"], asked: { location: "d", format: "csv" } },
  { what: "to one place", held: ["a", "a"], asked: { location: "a", format: "jsonl" } },
])("a delivery $what waits for none of another project, however long those take", async (row) => {
  using share = temporaryFolder("batchd-share-");
  const keys = ["many", "one"].map((name) => ({ name, key: `key-${name}`, project: name }));
  const locations = ["a", "b", "c", "d"].map((name) => ({
    name,
    kind: "folder",
    path: mkdtempSync(join(share.path, name)),
    access: "write",
  }));
  const gated = blobsAround(GatedBlobs);
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: { auth: { keys }, locations },
    upstreamUrl: upstream.url,
    openStorage: gated.open,
  });
  const { events, url } = service;
  const deliver = async (asked: object, key: string) => {
    const { id } = await submitLines(clientOf(url, key), chatLines(1));
    await events.reached("batch.completed", { batch: id });
    const { body } = await post(url, `batches/${id}/deliveries`, asked, key);
    return body.id ?? "";
  };
  const { puts } = gated.blobs();
  puts.close("deliveries/");
  const held: string[] = [];
  for (const location of row.held)
    held.push(await deliver({ location, format: "csv" }, "key-many"));
  await puts.reached(AT_ONCE);
  // Those at the gate stay there.
  puts.close("no blob");
  try {
    const delivery = await deliver(row.asked, "key-one");
    await events.reached("delivery.delivered", { delivery });
  } finally {
    puts.open();
  }
  for (const delivery of held) await events.reached("delivery.delivered", { delivery });
});
