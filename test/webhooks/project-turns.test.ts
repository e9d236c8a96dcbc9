/** Events of several projects, for one endpoint and for several. */
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

test("an event waits for no more than a turn of an endpoint with many events that fail at once", async () => {
  using data = temporaryFolder("batchd-turns-", dataRoot());
  await using receiver = await startReceiver();
  const keys = ["many", "one"].map((name) => ({ name, key: `key-${name}`, project: name }));
  const startWith = (names: readonly string[]) => {
    const endpoints = names.map((name) => ({
      name,
      project: name,
      url: receiver.url,
      secret: "s",
    }));
    const webhooks = { endpoints, allow_private_hosts: ["127.0.0.1"] };
    return startTestService({ dataDir: data.path, config: { auth: { keys }, webhooks } });
  };

  receiver.reactAlways("hang");
  await using first = await startWith(["many", "one"]);
  const owners = [...Array.from({ length: MANY }, () => "key-many"), "key-one"];
  for (const key of owners) {
    const { id = "" } = (await create(first.url, "file-none", { key })).body;
    await first.events.reached("batch.failed", { batch: id });
  }
  await first.close();

  // An event for an endpoint that is not configured any more fails without a request.
  await using last = await startWith([]);
  await last.events.reached("webhook.attempt_failed", { count: owners.length });
  const failed = last.events.all.filter(({ event }) => event === "webhook.attempt_failed");
  const order = failed.map(({ webhook }) => webhook);
  expect(order.indexOf("one")).toBeLessThanOrEqual(SIDE_BY_SIDE);
});
