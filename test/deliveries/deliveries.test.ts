/** Deliveries by the front door: a real server, a real folder. */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { pathsBelow } from "../support/files-below.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { folderAt, startShare } from "../support/share.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
const SECOND_MS = 1_000;

interface Answer {
  readonly status: number;
  readonly body: Record<string, unknown> & { error?: { code: string | null; message: string } };
}

async function call(
  { url }: TestService,
  path: string,
  {
    body,
    method = body === undefined ? "GET" : "POST",
    key,
  }: { body?: unknown; method?: string; key?: string } = {},
): Promise<Answer> {
  const response = await fetch(`${url}/v1${path}`, {
    method,
    headers: {
      "content-type": "application/json",
      ...(key !== undefined && { "idempotency-key": key }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Answer["body"] };
}

async function deliver(
  service: TestService,
  batchId: string,
  body: unknown,
): Promise<DeliveryObject> {
  const answer = await call(service, `/batches/${batchId}/deliveries`, { body });
  expect(answer).toMatchObject({ status: 200 });
  return answer.body as unknown as DeliveryObject;
}

const find = async (service: TestService, { batch_id, id }: DeliveryObject) =>
  (await call(service, `/batches/${batch_id}/deliveries/${id}`)).body as unknown as DeliveryObject;

interface Passing {
  readonly service: TestService;
  readonly clock: FakeClock;
  readonly made: DeliveryObject;
  /** It is small where the delivery must not be given up meanwhile: that takes a day. */
  readonly stepMs?: number;
}

/**
 * Lets time pass in steps until the event is there. Time stands still while an attempt is under way: it would lose its lease
 * on a busy machine, one attempt after the other.
 */
async function passTimeUntil(
  reached: Promise<void>,
  { service, clock, made, stepMs = 10 * MINUTE_MS }: Passing,
): Promise<void> {
  let isReached = false;
  const done = reached.finally(() => {
    isReached = true;
  });
  while (!isReached) {
    const { status, next_attempt_at: nextAt } = await find(service, made);
    const isDue = nextAt !== null && nextAt * 1000 <= clock.nowMs();
    if (status !== "delivering") clock.advance(isDue ? SECOND_MS : stepMs);
    await Promise.race([done, sleep(10)]);
  }
  await done;
}

/** The last line fails for good. */
const lines = (count: number) =>
  chatLines(count, (n) => (n === count ? "[[status 400]]" : `Say ${n}`));

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

test("the results of a batch are in its folder once it has ended, as their files have them", async () => {
  await using share = await startShare();
  const { service } = share;
  const input_file_id = await service.upload(lines(5));
  const created = await call(service, "/batches", {
    body: {
      input_file_id,
      endpoint: "/v1/chat/completions",
      x_batchd: { deliver: [{ location: "share", path: "team/run 1" }] },
    },
  });
  const id = created.body["id"] as string;
  await service.events.reached("delivery.delivered", { batch: id });
  const batch = await service.openai.batches.retrieve(id);
  const delivered = join(share.path, "team/run 1", id);
  expect(readdirSync(delivered).toSorted()).toEqual(["errors.jsonl", "output.jsonl", "run.json"]);
  for (const [name, file] of [
    ["output.jsonl", batch.output_file_id],
    ["errors.jsonl", batch.error_file_id],
  ] as const) {
    expect(readFileSync(join(delivered, name), "utf8")).toBe(await service.text(file));
  }
  const record = await (await fetch(`${service.url}/v1/batches/${id}/run`)).text();
  expect(readFileSync(join(delivered, "run.json"), "utf8")).toBe(record);
  const { body } = await call(service, `/batches/${id}/deliveries`);
  expect(body).toMatchObject({
    object: "list",
    has_more: false,
    data: [
      {
        object: "batch.delivery",
        batch_id: id,
        location: "share",
        path: "team/run 1",
        format: "jsonl",
        status: "delivered",
        error: null,
        address: delivered,
        attempts: 1,
      },
    ],
  });
});

test("the results of a cancelled batch are delivered as far as there are any, and a failed one has none", async () => {
  await using share = await startShare({ config: { engine: { stop_grace_seconds: 0 } } });
  const { service } = share;
  const create = async (input: readonly string[]) => {
    const input_file_id = await service.upload(input);
    const x_batchd = { deliver: [{ location: "share" }] };
    const body = { input_file_id, endpoint: "/v1/chat/completions", x_batchd };
    return (await call(service, "/batches", { body })).body["id"] as string;
  };
  const cancelled = await create(chatLines(2, (n) => (n === 1 ? "Hello" : "[[hang]]")));
  await service.events.reached("line.recorded", { batch: cancelled });
  const early = await call(service, `/batches/${cancelled}/deliveries`, {
    body: { location: "share", path: "early" },
  });
  expect(early).toMatchObject({ status: 409 });
  expect(early.body.error?.message).toContain("in_progress");
  await service.openai.batches.cancel(cancelled);
  await service.events.reached("delivery.delivered", { batch: cancelled });
  expect(readFileSync(join(share.path, cancelled, "output.jsonl"), "utf8")).toContain("line-1");
  expect(readFileSync(join(share.path, cancelled, "errors.jsonl"), "utf8")).toContain(
    "batch_cancelled",
  );

  const failed = await create([...chatLines(1), "no JSON"]);
  await service.ended(failed);
  const { body } = await call(service, `/batches/${failed}/deliveries`);
  expect(body["data"]).toMatchObject([{ status: "failed", error: { code: "batch_failed" } }]);
  const later = await call(service, `/batches/${failed}/deliveries`, {
    body: { location: "share" },
  });
  expect(later).toMatchObject({ status: 409 });
  expect(existsSync(join(share.path, failed))).toBe(false);
});

test("what cannot be delivered is refused before anything is stored", async () => {
  using folder = temporaryFolder("batchd-share-");
  await using service = await startTestService({
    config: {
      locations: [
        folderAt(folder.path),
        { ...folderAt(folder.path, "inputs"), access: "read" },
        { ...folderAt(folder.path, "foreign"), projects: ["other"] },
      ],
    },
  });
  const input_file_id = await service.upload(lines(1));
  const refused = [
    [[{ location: "nowhere" }], "x_batchd.deliver.0.location"],
    [[{ location: "inputs" }], "x_batchd.deliver.0.location"],
    [[{ location: "foreign" }], "x_batchd.deliver.0.location"],
    [[{ location: "share" }, { location: "share", path: "a" }], "x_batchd.deliver.1.location"],
    [[{ location: "share", path: "../a" }], "x_batchd.deliver.0.path"],
    [[{ location: "share", path: "/etc" }], "x_batchd.deliver.0.path"],
    [[{ location: "share", format: "xml" }], "x_batchd.deliver.0.format"],
    [[{ location: "share", bucket: "b" }], "x_batchd.deliver.0.bucket"],
    [[{ path: "a" }], "x_batchd.deliver.0.location"],
    [Array.from({ length: 9 }, (_, i) => ({ location: `l${i}` })), "x_batchd.deliver"],
  ] as const;
  for (const [deliver, param] of refused) {
    const body = { input_file_id, endpoint: "/v1/chat/completions", x_batchd: { deliver } };
    const answer = await call(service, "/batches", { body });
    expect([answer.status, answer.body.error], JSON.stringify(deliver)).toMatchObject([
      400,
      { param },
    ]);
  }
  expect((await service.openai.batches.list()).data).toEqual([]);
});

test("a batch is delivered later and again, one delivery to a place at a time", async () => {
  using folder = temporaryFolder("batchd-share-");
  const [mounted, gone] = [join(folder.path, "mounted"), join(folder.path, "gone")];
  mkdirSync(mounted);
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    clock,
    config: { locations: [folderAt(mounted), folderAt(gone, "away")] },
  });
  const { id } = await service.run(lines(3));
  const [first, ...rest] = await Promise.all(
    Array.from({ length: 5 }, () =>
      call(service, `/batches/${id}/deliveries`, { body: { location: "away" } }),
    ),
  ).then((answers) => answers.toSorted((a, b) => a.status - b.status));
  expect(first).toMatchObject({ status: 200, body: { status: "pending", location: "away" } });
  for (const each of rest) {
    expect(each).toMatchObject({ status: 409, body: { error: { code: "delivery_in_progress" } } });
  }
  await service.events.reached("delivery.attempt_failed", { batch: id });
  const share = await deliver(service, id, { location: "share" });
  await service.events.reached("delivery.delivered", { delivery: share.id });

  const waiting = first!.body as unknown as DeliveryObject;
  expect(await find(service, waiting)).toMatchObject({
    status: "pending",
    error: { code: "unavailable" },
    attempts: 1,
  });
  mkdirSync(gone);
  await passTimeUntil(service.events.reached("delivery.delivered", { delivery: waiting.id }), {
    service,
    clock,
    made: waiting,
  });
  expect(readdirSync(join(gone, id))).toContain("run.json");
  const again = await deliver(service, id, { location: "away" });
  await service.events.reached("delivery.delivered", { delivery: again.id });
  expect(readdirSync(gone)).toEqual([id]);
  const { body } = await call(service, `/batches/${id}/deliveries?limit=2`);
  expect((body["data"] as DeliveryObject[]).map((each) => each.id)).toEqual([again.id, share.id]);
});

test("a place that stays away is tried for a day, then the delivery fails, and the batch does not", async () => {
  const clock = new FakeClock();
  await using share = await startShare({ below: "gone", clock });
  const { service } = share;
  const { id } = await service.run(lines(2));
  const made = await deliver(service, id, { location: "share" });
  await passTimeUntil(service.events.reached("delivery.given_up", { delivery: made.id }), {
    service,
    clock,
    made,
  });
  const ended = await find(service, made);
  expect(ended).toMatchObject({
    status: "failed",
    error: { code: "unavailable" },
    next_attempt_at: null,
  });
  const triedForMs = ((ended.ended_at ?? 0) - ended.created_at) * 1000;
  expect(triedForMs).toBeGreaterThan(23 * HOUR_MS);
  expect(triedForMs).toBeLessThan(25 * HOUR_MS);
  expect((await service.openai.batches.retrieve(id)).status).toBe("completed");
  expect(service.events.count("delivery.attempt_failed", { level: "warn" })).toBe(1);
  expect(service.events.count("delivery.given_up", { level: "error" })).toBe(1);
});

test("a delivery that waits is cancelled; a repeated request makes no second one", async () => {
  await using share = await startShare({ below: "gone" });
  const { service } = share;
  const { id } = await service.run(lines(2));
  const path = `/batches/${id}/deliveries`;
  const ask = (key: string, body: unknown = { location: "share" }) =>
    call(service, path, { key, body });
  const first = await ask("once");
  expect(await ask("once")).toEqual(first);
  expect(await ask("once", { location: "share", path: "other" })).toMatchObject({ status: 422 });
  expect(await ask("twice")).toMatchObject({ status: 409 });
  const delivery = first.body as unknown as DeliveryObject;
  await service.events.reached("delivery.attempt_failed", { delivery: delivery.id });
  for (let n = 0; n < 2; n++) {
    const cancelled = await call(service, `${path}/${delivery.id}/cancel`, { method: "POST" });
    expect(cancelled).toMatchObject({
      status: 200,
      body: { status: "failed", error: { code: "cancelled" } },
    });
  }
  expect(await ask("twice")).toMatchObject({ status: 200 });
  expect(await call(service, `${path}/delivery_0`)).toMatchObject({ status: 404 });
});

test("results go out as a table when that is asked for, and nothing is left of the making", async () => {
  await using share = await startShare();
  const { service } = share;
  const { id } = await service.run(lines(4));
  for (const format of ["csv", "parquet"]) {
    const made = await deliver(service, id, { location: "share", format });
    await service.events.reached("delivery.delivered", { delivery: made.id });
  }
  const delivered = join(share.path, id);
  const { output_file_id, error_file_id } = await service.openai.batches.retrieve(id);
  for (const format of ["csv", "parquet"]) {
    for (const [name, file] of [
      ["output", output_file_id],
      ["errors", error_file_id],
    ] as const) {
      const table = await fetch(`${service.url}/v1/files/${file}/content?format=${format}`);
      const expected = sha256(new Uint8Array(await table.arrayBuffer()));
      expect(sha256(readFileSync(join(delivered, `${name}.${format}`)))).toBe(expected);
    }
  }
  expect(pathsBelow(join(service.dataDir, "blobs/deliveries"))).toEqual([]);
});

test("a result that was deleted is delivered all the same when its delivery waits, and goes with a deleted batch", async () => {
  const clock = new FakeClock();
  await using share = await startShare({ below: "gone", clock });
  const { path: place, service } = share;
  const [kept, deleted] = [await service.run(lines(2)), await service.run(lines(2))];
  const waiting = await deliver(service, kept.id, { location: "share" });
  const lost = await deliver(service, deleted.id, { location: "share" });
  await service.events.reached("delivery.attempt_failed", { delivery: waiting.id });
  await service.events.reached("delivery.attempt_failed", { delivery: lost.id });
  await service.openai.files.delete(kept.output_file_id!);
  await fetch(`${service.url}/v1/batches/${deleted.id}`, { method: "DELETE" });
  await passTimeUntil(service.events.reached("file.removed", { file: deleted.output_file_id }), {
    service,
    clock,
    made: waiting,
    stepMs: MINUTE_MS,
  });
  expect(await call(service, `/batches/${deleted.id}/deliveries`)).toMatchObject({ status: 404 });

  mkdirSync(place);
  await passTimeUntil(service.events.reached("delivery.delivered", { delivery: waiting.id }), {
    service,
    clock,
    made: waiting,
  });
  expect(readFileSync(join(place, kept.id, "output.jsonl"), "utf8")).toContain("line-1");
  expect(readdirSync(place)).toEqual([kept.id]);
  await passTimeUntil(service.events.reached("file.removed", { file: kept.output_file_id }), {
    service,
    clock,
    made: waiting,
  });
  const again = await call(service, `/batches/${kept.id}/deliveries`, {
    body: { location: "share" },
  });
  expect(again).toMatchObject({ status: 409 });
  rmSync(place, { recursive: true });
});
