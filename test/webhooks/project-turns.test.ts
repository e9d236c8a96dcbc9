/** Events of several projects for one endpoint. */
import { expect, test } from "vitest";
import { dataRoot } from "../support/data-root.ts";
import { create } from "../support/projects.ts";
import { startReceiver } from "../support/receiver.ts";
import { startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const MANY = 12;
/** So many events are sent to an endpoint at a time. */
const SIDE_BY_SIDE = 2;

test("an event waits for no more than a turn of a project that has many for the same endpoint", async () => {
  using data = temporaryFolder("batchd-turns-", dataRoot());
  await using receiver = await startReceiver();
  const keys = ["many", "one"].map((name) => ({ name, key: `key-${name}`, project: name }));
  const endpoints = [{ name: "hook", url: receiver.url, secret: "s" }];
  const webhooks = { endpoints, allow_private_hosts: ["127.0.0.1"] };
  const start = () =>
    startTestService({ dataDir: data.path, config: { auth: { keys }, webhooks } });

  receiver.reactAlways("hang");
  await using first = await start();
  const owners = [...Array.from({ length: MANY }, () => "key-many"), "key-one"];
  const batches: string[] = [];
  for (const key of owners) {
    const { id = "" } = (await create(first.url, "file-none", { key })).body;
    await first.events.reached("batch.failed", { batch: id });
    batches.push(id);
  }
  // What is under way is interrupted, and is due again.
  await first.close();
  const before = receiver.seen.length;

  receiver.reactAlways({ status: 200 });
  await using _last = await start();
  await receiver.reached(before + batches.length);
  const order = receiver.seen
    .slice(before)
    .map(({ body }) => (JSON.parse(body) as { data: { id: string } }).data.id);
  expect(order.toSorted()).toEqual(batches.toSorted());
  expect(order.indexOf(batches.at(-1) ?? "")).toBeLessThanOrEqual(SIDE_BY_SIDE);
});
