/** The ends of batches: those of one project hold up no other one. */
import { expect, test } from "vitest";
import { dataRoot } from "../support/data-root.ts";
import { ask, create, upload } from "../support/projects.ts";
import { startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

/** So many batches end at a time. */
const SIDE_BY_SIDE = 3;

test("a batch that ends waits for no more than a turn of a project of which many batches end", async () => {
  using folder = temporaryFolder("batchd-ends-", dataRoot());
  const options = { dataDir: folder.path };
  const keys = ["many", "one"].map((name) => ({ name, key: `key-${name}`, project: name }));
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
