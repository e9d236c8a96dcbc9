/** A delivery under way is cancelled: its server stops, whichever server was asked, and nothing half done stays. */
import { chmodSync, existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type Clock, systemClock } from "../../src/clock.ts";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { endLeases } from "../support/end-leases.ts";
import { namesBelow } from "../support/files-below.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { TestRepository } from "../support/git-repository.ts";
import { sharePostgres } from "../support/postgres.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startStepProxy } from "../support/step-proxy.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("deliveries that are cancelled"));

/** A clock on which nothing happens that comes once a minute or less often: only a nudge makes such work begin. */
const clock: Clock = {
  ...systemClock,
  after: (ms, fn) => (ms < 60_000 ? systemClock.after(ms, fn) : () => {}),
};

/** The output has some 12 MB, so it goes to a bucket in two parts. */
const LARGE = chatLines(3, () => "[[big 4000000]]");

async function post(service: TestService, path: string, body?: object) {
  const { status, text } = await service.post(path, body);
  return { status, body: JSON.parse(text) as DeliveryObject };
}

describe.skipIf(postgres === null || !hasS3Server())("on two servers of one database", () => {
  test("a delivery in the middle of an upload ends at the server that has it, and leaves nothing in the bucket", async () => {
    using folder = temporaryFolder("batchd-cancel-");
    await using upstream = await startUpstream();
    await using bucket = await startS3Server();
    await using proxy = await startStepProxy(bucket.url);
    const { type: _, ...s3 } = bucket.storage({ endpoint: proxy.url });
    const config = {
      data_dir: folder.path,
      database_url: await postgres!.createDatabase(),
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      locations: [{ name: "lake", kind: "s3", access: "write", ...s3 }],
      // No renewal comes during the test.
      engine: { lease_seconds: 600 },
    };
    await using api = await startTestService({ dataDir: folder.path, config, clock, role: "api" });
    await using worker = await startTestService({
      dataDir: folder.path,
      config,
      clock,
      role: "worker" as const,
    });
    const { id } = await api.submit(LARGE);
    await worker.events.reached("batch.completed", { batch: id });
    const half = proxy.stopAt({ method: "PUT", path: /partNumber=2/, at: "request" });
    const path = `/batches/${id}/deliveries`;
    const { body: made } = await post(api, path, { location: "lake" });
    await half;
    const cancelled = await post(api, `${path}/${made.id}/cancel`);
    expect(cancelled).toMatchObject({ status: 200, body: { error: { code: "cancelled" } } });
    await worker.events.reached("delivery.cancelled", { delivery: made.id });
    const again = await post(api, `${path}/${made.id}/cancel`);
    expect(again).toMatchObject({
      status: 200,
      body: { status: "failed", error: { code: "cancelled" } },
    });
    expect(namesBelow(bucket.bucketFolder)).toEqual([]);
    proxy.release();
    const next = await post(api, path, { location: "lake" });
    await worker.events.reached("delivery.delivered", { delivery: next.body.id });
    expect(namesBelow(join(bucket.bucketFolder, id))).toEqual(["output.jsonl", "run.json"]);
    const late = await post(api, `${path}/${next.body.id}/cancel`);
    expect(late.status).toBe(409);
  });

  test("an object that arrives when its delivery has ended without it does not stay, whichever server had sent it", async () => {
    using folder = temporaryFolder("batchd-cancel-");
    await using upstream = await startUpstream();
    await using bucket = await startS3Server();
    await using proxy = await startStepProxy(bucket.url);
    const { type: _, ...s3 } = bucket.storage({ endpoint: proxy.url });
    const databaseUrl = await postgres!.createDatabase();
    const config = {
      data_dir: folder.path,
      database_url: databaseUrl,
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      locations: [{ name: "lake", kind: "s3", access: "write", ...s3 }],
      // No renewal comes during the test.
      engine: { lease_seconds: 600 },
    };
    await using service = await startTestService({ dataDir: folder.path, config, clock });
    const { id } = await service.submit(chatLines(2));
    await service.events.reached("batch.completed", { batch: id });
    const path = `/batches/${id}/deliveries`;
    // The one request is of a server that stood still beyond its lease, and the other of one that has stopped to wait for it.
    for (const [name, isLeaseOver] of [
      ["run.json", true],
      ["output.jsonl", false],
    ] as const) {
      const late = proxy.stopAt({ method: "PUT", path: new RegExp(name), at: "late" });
      const { body: made } = await post(service, path, { location: "lake" });
      await late;
      if (isLeaseOver) await endLeases(databaseUrl);
      await post(service, `${path}/${made.id}/cancel`);
      await service.events.reached("delivery.cancelled", { delivery: made.id });
      proxy.release();
      await proxy.ended();
      await expect.poll(() => namesBelow(bucket.bucketFolder)).toEqual([]);
    }
  });

  test("a server that has lost a delivery to another one removes nothing of what that one delivers", async () => {
    using folder = temporaryFolder("batchd-cancel-");
    await using upstream = await startUpstream();
    await using bucket = await startS3Server();
    await using refusing = await startS3Proxy(bucket.url);
    await using stopping = await startStepProxy(bucket.url);
    const databaseUrl = await postgres!.createDatabase();
    const start = (endpoint: string, role: "all" | "worker") => {
      const { type: _, ...s3 } = bucket.storage({ endpoint });
      const config = {
        data_dir: folder.path,
        database_url: databaseUrl,
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
        locations: [{ name: "lake", kind: "s3" as const, access: "write" as const, ...s3 }],
        // No renewal comes during the test.
        engine: { lease_seconds: 600 },
      };
      return startTestService({ dataDir: folder.path, config, clock, role });
    };
    await using first = await start(refusing.url, "all");
    const { id } = await first.submit(chatLines(2));
    await first.events.reached("batch.completed", { batch: id });
    refusing.trouble = { kind: "hold", method: "PUT", path: /run\.json/ };
    const { body: made } = await post(first, `/batches/${id}/deliveries`, { location: "lake" });
    await expect.poll(() => refusing.held.length).toBe(1);

    await endLeases(databaseUrl);
    const placed = stopping.stopAt({ method: "PUT", path: /run\.json/, at: "request" });
    await using second = await start(stopping.url, "worker");
    await placed;
    refusing.trouble = { kind: "denied", method: "PUT", path: /run\.json/ };
    await first.events.reached("delivery.lost", { delivery: made.id });
    stopping.release();
    await second.events.reached("delivery.delivered", { delivery: made.id });
    expect(namesBelow(join(bucket.bucketFolder, id))).toEqual(["output.jsonl", "run.json"]);
  });
});

/** Starts a server with a repository that keeps each push waiting until it is let go. */
async function startWithSlowRepository() {
  const folder = temporaryFolder("batchd-cancel-");
  const repository = new TestRepository();
  const [entered, left] = [join(folder.path, "entered"), join(folder.path, "left")];
  const hook = join(repository.path, "hooks", "pre-receive");
  const wait = `touch '${entered}'\nwhile [ ! -e '${left}' ]; do sleep 0.05; done`;
  writeFileSync(hook, `#!/bin/sh\n${wait}\n`);
  chmodSync(hook, 0o755);
  const upstream = await startUpstream();
  const service = await startTestService({
    upstreamUrl: upstream.url,
    config: {
      locations: [{ name: "evals", kind: "git", access: "write", repository: repository.path }],
      // No renewal comes during the test.
      engine: { lease_seconds: 600 },
    },
  });
  return {
    service,
    repository,
    pushBegins: () => expect.poll(() => existsSync(entered), { timeout: 60_000 }).toBe(true),
    letGo: () => writeFileSync(left, ""),
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]();
      await upstream[Symbol.asyncDispose]();
      repository[Symbol.dispose]();
      folder[Symbol.dispose]();
    },
  };
}

test("a delivery in the middle of a push ends, and the repository has no branch of it", async () => {
  await using slow = await startWithSlowRepository();
  const { service, repository } = slow;
  const { id } = await service.run(chatLines(2));
  const path = `/batches/${id}/deliveries`;
  const { body: made } = await post(service, path, { location: "evals" });
  await slow.pushBegins();
  expect((await post(service, `${path}/${made.id}/cancel`)).status).toBe(200);
  await service.events.reached("delivery.cancelled", { delivery: made.id });
  slow.letGo();
  expect(repository.branches).toEqual(["main"]);
  const next = await post(service, path, { location: "evals" });
  await service.events.reached("delivery.delivered", { delivery: next.body.id });
  expect(repository.branches).toEqual([`batch/${id}`, "main"]);
  expect(repository.text("fsck", "--full", "--no-dangling")).toBe("");
});

test("a delivery whose batch is deleted in the middle of a push ends at once, without a branch", async () => {
  await using slow = await startWithSlowRepository();
  const { service, repository } = slow;
  const { id } = await service.run(chatLines(2));
  const { body: made } = await post(service, `/batches/${id}/deliveries`, { location: "evals" });
  await slow.pushBegins();
  const deleted = await fetch(`${service.url}/v1/batches/${id}`, { method: "DELETE" });
  expect(deleted.status).toBe(200);
  await service.events.reached("delivery.cancelled", { delivery: made.id });
  slow.letGo();
  expect(repository.branches).toEqual(["main"]);
});
