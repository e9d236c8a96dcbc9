import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { type ReceivedEvent, startReceiver } from "../support/receiver.ts";
import { startReplicas } from "../support/replicas.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const SECRET = `whsec_${Buffer.from("a key that the receiver knows").toString("base64")}`;
const DAY_MS = 24 * 60 * 60 * 1000;
const HOUR_MS = 60 * 60 * 1000;

interface EndpointValues {
  readonly url: string;
  readonly [key: string]: unknown;
}

/** They are as in the configuration file; this machine may be delivered to. */
const webhooks = (...endpoints: readonly EndpointValues[]) => ({
  webhooks: {
    endpoints: endpoints.map((endpoint, i) => ({ name: `w${i + 1}`, secret: SECRET, ...endpoint })),
    allow_private_hosts: ["127.0.0.1"],
  },
});

const bodyOf = (event: ReceivedEvent) =>
  JSON.parse(event.body) as { id: string; type: string; created_at: number; data: { id: string } };

const typesOf = (events: readonly ReceivedEvent[]) => events.map((event) => bodyOf(event).type);

/** A batch that fails at once: no upstream serves its model. */
const submitToFail = (service: TestService) => service.submit(chatLines(1));

test("a batch whose window ends is told as expired, with the time at which it was", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using receiver = await startReceiver();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    clock,
    config: webhooks({ url: receiver.url }),
  });
  const { id } = await service.submit(chatLines(1, () => "[[status 429]]"));
  await upstream.reached(1);
  clock.advance(DAY_MS);
  await service.events.reached("webhook.delivered", { batch: id });

  const { expired_at } = await service.openai.batches.retrieve(id);
  expect(receiver.seen.map(bodyOf)).toMatchObject([
    { type: "batch.expired", created_at: expired_at, data: { id } },
  ]);
});

test.each([
  { failure: "a server error", reaction: { status: 500 }, reason: "answered 500" },
  {
    failure: "a redirect",
    reaction: { status: 307, headers: { location: "/elsewhere" } },
    reason: "answered 307",
  },
  { failure: "a gone page", reaction: { status: 410 }, reason: "answered 410" },
  { failure: "a broken connection", reaction: "reset", reason: "read ECONNRESET" },
  { failure: "no answer in time", reaction: "hang", reason: "no answer within 10 seconds" },
] as const)(
  "after $failure the event is sent again under the same id, with a fresh time and signature",
  async ({ reaction, reason }) => {
    // The official client compares with the time of this machine.
    const clock = new FakeClock(Date.now());
    await using receiver = await startReceiver();
    await using service = await startTestService({
      clock,
      config: webhooks({ url: receiver.url }),
    });
    receiver.reactNext(reaction);
    const { id } = await submitToFail(service);
    await receiver.reached(1);
    if (reaction === "hang") clock.advance(10_000);
    await service.events.reached("webhook.attempt_failed", { level: "warn", reason });
    clock.advance(5_000);
    await service.events.reached("webhook.delivered", { batch: id, attempt: 2 });

    const [first, second, ...others] = receiver.seen;
    expect(others).toEqual([]);
    expect(second).toMatchObject({ path: "/hook", body: first!.body });
    expect(second!.headers["webhook-id"]).toBe(first!.headers["webhook-id"]);
    const waitedSeconds =
      Number(second!.headers["webhook-timestamp"]) - Number(first!.headers["webhook-timestamp"]);
    expect(waitedSeconds).toBe(reaction === "hang" ? 15 : 5);
    expect(second!.headers["webhook-signature"]).not.toBe(first!.headers["webhook-signature"]);
    for (const event of [first!, second!]) {
      await service.openai.webhooks.verifySignature(event.body, event.headers, SECRET);
    }
  },
);

test("any 2xx is a success, whatever follows it", async () => {
  await using receiver = await startReceiver();
  await using service = await startTestService({ config: webhooks({ url: receiver.url }) });
  receiver.reactNext({ status: 204 }, { status: 299, body: "x".repeat(1_000_000) }, "endless");
  for (let n = 1; n <= 3; n++) await submitToFail(service);

  await service.events.reached("webhook.delivered", { count: 3, attempt: 1 });
  expect(receiver.seen).toHaveLength(3);
});

test("an endpoint that never takes an event is tried for three days, then given up", async () => {
  const clock = new FakeClock();
  await using receiver = await startReceiver();
  await using service = await startTestService({ clock, config: webhooks({ url: receiver.url }) });
  receiver.reactAlways({ status: 503 });
  const { id } = await submitToFail(service);
  const givenUp = service.events.reached("webhook.given_up", { batch: id });
  for (let attempt = 1; service.events.count("webhook.given_up") === 0; attempt++) {
    await Promise.race([
      service.events.reached("webhook.attempt_failed", { batch: id, attempt }),
      givenUp,
    ]);
    clock.advance(HOUR_MS);
  }

  const atSeconds = receiver.seen.map((event) => Number(event.headers["webhook-timestamp"]));
  const triedForHours = (atSeconds.at(-1)! - bodyOf(receiver.seen[0]!).created_at) / 3_600;
  expect(triedForHours).toBeGreaterThan(70);
  expect(triedForHours).toBeLessThanOrEqual(72);
  expect(service.events.count("webhook.attempt_failed", { level: "warn" })).toBe(1);

  receiver.reactAlways({ status: 200 });
  const later = await submitToFail(service);
  await service.events.reached("webhook.delivered", { batch: later.id });
  expect(bodyOf(receiver.seen.at(-1)!).data.id).toBe(later.id);
  expect(receiver.seen).toHaveLength(atSeconds.length + 1);
});

test("an event that was not taken before a restart is delivered after it, once", async () => {
  const clock = new FakeClock();
  const down = await startReceiver();
  const { port, url } = down;
  await down.close();
  await using before = await startTestService({ clock, config: webhooks({ url }) });
  const { id } = await submitToFail(before);
  await before.events.reached("webhook.attempt_failed", { batch: id });
  await before.close();

  await using receiver = await startReceiver({ port });
  clock.advance(5_000);
  await using after = await startTestService({
    clock,
    dataDir: before.dataDir,
    config: webhooks({ url }),
  });
  await after.events.reached("webhook.delivered", { batch: id, attempt: 2 });
  clock.advance(DAY_MS);
  const later = await submitToFail(after);
  await after.events.reached("webhook.delivered", { batch: later.id });

  expect(receiver.seen.map((event) => bodyOf(event).data.id)).toEqual([id, later.id]);
});

test("a delivery that a stop interrupts goes out at the next start, under the same id", async () => {
  await using receiver = await startReceiver();
  const config = webhooks({ url: receiver.url });
  await using before = await startTestService({ config });
  receiver.reactNext("hang");
  await submitToFail(before);
  await receiver.reached(1);
  await before.close();

  await using after = await startTestService({ dataDir: before.dataDir, config });
  await after.events.reached("webhook.delivered");

  const ids = receiver.seen.map((event) => event.headers["webhook-id"]);
  expect(ids).toEqual([ids[0], ids[0]]);
});

test("deliveries to an endpoint that was taken out of the configuration are given up after three days", async () => {
  const clock = new FakeClock();
  await using receiver = await startReceiver();
  receiver.reactAlways({ status: 500 });
  await using before = await startTestService({ clock, config: webhooks({ url: receiver.url }) });
  const { id } = await submitToFail(before);
  await before.events.reached("webhook.attempt_failed", { batch: id });
  await before.close();

  clock.advance(5_000);
  await using after = await startTestService({ clock, dataDir: before.dataDir });
  const reason = "no webhook of this name is configured for the project";
  await after.events.reached("webhook.attempt_failed", { batch: id, attempt: 2, reason });
  clock.advance(3 * DAY_MS);
  await after.events.reached("webhook.given_up", { batch: id, webhook: "w1", reason });
  expect(receiver.seen).toHaveLength(1);
});

test("an event is not lost to a replica that does not know its endpoint", async () => {
  await using receiver = await startReceiver();
  await using replicas = await startReplicas({ config: webhooks({ url: receiver.url }) });
  const { a, b } = replicas;
  b.service.reconfigure({});
  receiver.reactNext({ status: 503 });
  const { id } = await submitToFail(a.service);
  await a.service.events.reached("webhook.attempt_failed", { batch: id, attempt: 1 });
  b.clock.advance(5_000);
  await b.service.events.reached("webhook.attempt_failed", { batch: id, attempt: 2 });
  a.clock.advance(15_000);
  await a.service.events.reached("webhook.delivered", { batch: id, attempt: 3 });
});

test("an endpoint is told only of the events that it asks for", async () => {
  await using upstream = await startUpstream();
  await using all = await startReceiver();
  await using some = await startReceiver();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: webhooks(
      { url: all.url },
      { url: `${some.url}?source=batchd`, events: ["batch.failed", "batch.cancelled"] },
    ),
  });
  await service.run(chatLines(1));
  await service.run(["{}"]);
  await service.events.reached("webhook.delivered", { webhook: "w1", count: 2 });
  await service.events.reached("webhook.delivered", { webhook: "w2" });

  expect(typesOf(all.seen)).toEqual(["batch.completed", "batch.failed"]);
  expect(typesOf(some.seen)).toEqual(["batch.failed"]);
  expect(some.seen[0]!.path).toBe("/hook?source=batchd");
});

test("an endpoint of a project is told only of that project's batches", async () => {
  await using all = await startReceiver();
  await using search = await startReceiver();
  await using service = await startTestService({
    config: {
      ...webhooks({ url: all.url }, { url: search.url, project: "search" }),
      auth: {
        keys: [
          { name: "one", key: "test", project: "default" },
          { name: "two", key: "of-search", project: "search" },
        ],
      },
    },
  });
  const batchOf = async (apiKey: string): Promise<string> => {
    const client = service.openai.withOptions({ apiKey });
    return (await submitLines(client, ["{}"])).id;
  };
  const [ofDefault, ofSearch] = [await batchOf("test"), await batchOf("of-search")];
  await service.events.reached("webhook.delivered", { count: 3 });

  const told = (events: readonly ReceivedEvent[]) => events.map((each) => bodyOf(each).data.id);
  expect(new Set(told(all.seen))).toEqual(new Set([ofDefault, ofSearch]));
  expect(told(search.seen)).toEqual([ofSearch]);
  const eventIds = [...all.seen, ...search.seen].map((event) => bodyOf(event).id);
  expect(new Set(eventIds).size).toBe(2);
  const webhookIds = [...all.seen, ...search.seen].map((event) => event.headers["webhook-id"]);
  expect(new Set(webhookIds).size).toBe(3);
});

test("an endpoint that is given to another project is not told of batches that ended before", async () => {
  await using search = await startReceiver();
  await using other = await startReceiver();
  search.reactAlways({ status: 500 });
  const keys = [{ name: "one", key: "test", project: "search" }];
  const configWith = (endpoint: EndpointValues) => ({ ...webhooks(endpoint), auth: { keys } });
  const clock = new FakeClock();
  await using service = await startTestService({
    clock,
    config: configWith({ url: search.url, project: "search" }),
  });
  const { id } = await submitToFail(service);
  await service.events.reached("webhook.attempt_failed", { batch: id });
  service.reconfigure(configWith({ url: other.url, project: "other" }));
  clock.advance(5_000);
  const ends = ["webhook.attempt_failed", "webhook.delivered"];
  await Promise.race(ends.map((end) => service.events.reached(end, { batch: id, attempt: 2 })));
  expect(other.seen).toEqual([]);
});

test("an endpoint that does not answer holds up no other, and gets two events at once at most", async () => {
  const clock = new FakeClock();
  await using slow = await startReceiver();
  await using quick = await startReceiver();
  slow.reactAlways("hang");
  await using service = await startTestService({
    clock,
    config: webhooks({ url: slow.url }, { url: quick.url }),
  });
  for (let n = 1; n <= 12; n++) await submitToFail(service);
  await service.events.reached("webhook.delivered", { webhook: "w2", count: 12 });

  expect(slow.seen).toHaveLength(2);
  expect(slow.inFlight).toBe(2);
  // Lets the two end, so that the service may stop.
  clock.advance(10_000);
  slow.reactAlways({ status: 200 });
  await service.events.reached("webhook.delivered", { webhook: "w1", count: 10 });
  expect(slow.maxInFlight).toBe(2);
});

test("many endpoints that do not answer hold up no other", async () => {
  const clock = new FakeClock();
  await using slow = await startReceiver();
  await using quick = await startReceiver();
  slow.reactAlways("hang");
  const dead = Array.from({ length: 40 }, () => ({ url: slow.url }));
  await using service = await startTestService({
    clock,
    config: webhooks(...dead, { url: quick.url }),
  });
  for (let n = 1; n <= 4; n++) await submitToFail(service);
  await service.events.reached("webhook.delivered", { webhook: "w41", count: 4 });

  expect(slow.seen.length).toBeGreaterThanOrEqual(dead.length);
  slow.reactAlways({ status: 200 });
  clock.advance(10_000);
});

test("private addresses are refused in every spelling, and told once with the reason", async () => {
  const clock = new FakeClock();
  await using receiver = await startReceiver();
  const hosts = [
    "127.0.0.1",
    "localhost",
    "LocalHost",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
  ];
  const { webhooks: configured } = webhooks(
    ...hosts.map((host) => ({ url: `http://${host}:${receiver.port}/hook` })),
  );
  await using service = await startTestService({
    clock,
    config: { webhooks: { endpoints: configured.endpoints } },
  });
  await submitToFail(service);
  const reached = (attempt: number) =>
    service.events.reached("webhook.attempt_failed", { attempt, count: hosts.length });
  await reached(1);
  clock.advance(5_000);
  await reached(2);

  const failures = service.events.all.filter(({ event }) => event === "webhook.attempt_failed");
  for (const failure of failures) expect(failure["reason"]).toContain("has no public address");
  expect(failures.filter(({ level }) => level === "warn")).toHaveLength(hosts.length);
  expect(receiver.connectionCount).toBe(0);
});

test("secrets never reach the log", async () => {
  await using receiver = await startReceiver();
  receiver.reactNext({ status: 500, body: SECRET }, "reset");
  await using service = await startTestService({ config: webhooks({ url: receiver.url }) });
  await submitToFail(service);
  await submitToFail(service);
  await service.events.reached("webhook.attempt_failed", { count: 2 });

  const logged = JSON.stringify(service.events.all);
  expect(logged).not.toContain(SECRET.slice("whsec_".length));
});
