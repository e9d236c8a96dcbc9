/** Batches of a server whose files, journals and results are in a bucket. */
import { spawnSync } from "node:child_process";
import { basename, join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { createBatch } from "../support/batches.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { Scrape } from "../support/prometheus.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, newPrefix, type S3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

let server: S3Server;

describe.skipIf(!hasS3Server())("with a bucket", () => {
  beforeAll(async () => {
    server = await startS3Server();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test("results are merged from several segments that are read at a time, in the order of the input", async () => {
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: {
        storage,
        upstreams: [{ name: "u", base_url: upstream.url, models: ["*"], max_concurrency: 256 }],
      },
    });
    // Three chunks.
    const count = 1_500;
    proxy.trouble = { kind: "hold", method: "GET", path: /\/journal\// };
    const { id } = await service.submit(chatLines(count));
    // No read has its answer, so each was started without the result of another one.
    await expect.poll(() => proxy.held.length).toBeGreaterThanOrEqual(3);
    proxy.trouble = null;
    const batch = await service.ended(id);
    const rows = await service.rows(batch.output_file_id);
    expect(rows.map((row) => row.custom_id)).toEqual(
      Array.from({ length: count }, (_, i) => `line-${i + 1}`),
    );
  });

  test("a batch of 4,000 lines takes at most ten requests to the bucket for a thousand lines, and the metric counts each", async () => {
    await using upstream = await startUpstream();
    upstream.forget();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    // Time stands still: a chunk that takes longer than two seconds is written more often, and a busy machine is slow.
    await using service = await startTestService({
      clock: new FakeClock(),
      config: {
        storage,
        upstreams: [{ name: "u", base_url: upstream.url, models: ["*"], max_concurrency: 64 }],
      },
    });
    const requestsSoFar = async () => {
      const text = await (await fetch(`${service.url}/metrics`)).text();
      return new Scrape(text).value("batchd_s3_requests_total");
    };
    await expect.poll(async () => (await requestsSoFar()) - proxy.requests.length).toBe(0);
    const before = await requestsSoFar();
    const count = 4_000;
    const batch = await service.run(chatLines(count));
    expect(batch.request_counts?.completed).toBe(count);
    const made = (await requestsSoFar()) - before;
    expect(made).toBeGreaterThanOrEqual(count / 512);
    expect(made / (count / 1_000)).toBeLessThanOrEqual(10);
  });

  test("a batch waits while a proxy answers in the place of the bucket that there is no such page", async () => {
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { storage, engine: { lease_seconds: 3 } },
    });
    const readsSoFar = () => proxy.requests.filter((each) => each.startsWith("GET")).length;
    proxy.trouble = { kind: "page_not_found" };
    const before = readsSoFar();
    const { id, input_file_id: file } = await service.submit(chatLines(20));
    await expect.poll(() => readsSoFar() - before).toBeGreaterThanOrEqual(1);
    const download = await fetch(`${service.url}/v1/files/${file}/content`);
    expect(download.status).toBe(503);
    proxy.trouble = null;
    const batch = await service.ended(id);
    expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 20 } });
    expect(upstream.total).toBe(20);
  });

  test("a client is asked to wait for results that the bucket does not find at first, not told that there are none", async () => {
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { storage },
    });
    const { output_file_id: file } = await service.run(chatLines(3));
    proxy.trouble = { kind: "behind", path: /\/files\//, times: 1 };
    const download = () => fetch(`${service.url}/v1/files/${file}/content`);
    const first = await download();
    expect([first.status, first.headers.get("retry-after")]).toEqual([503, "5"]);
    expect((await (await download()).text()).split("\n")).toHaveLength(4);
    await service.openai.files.delete(file!);
    expect((await download()).status).toBe(404);
  });

  test("a file is removed from a bucket that says of an object that is gone that there is none", async () => {
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({ config: { storage } });
    const file = await service.upload(chatLines(1));
    proxy.trouble = { kind: "deletes_once" };
    await service.openai.files.delete(file);
    const ends = () => ["file.removed", "sweep.failed"].map((end) => service.events.count(end));
    await expect.poll(ends).not.toEqual([0, 0]);
    expect(ends()).toEqual([1, 0]);
  });

  test("a server is not ready, and its log says why, while the bucket lets it write and not read", async () => {
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({ config: { storage } });
    const ready = async () => (await fetch(`${service.url}/ready`)).status;
    expect(await ready()).toBe(200);
    proxy.trouble = { kind: "denied", method: "GET", path: /x-id=GetObject/ };
    expect(await ready()).toBe(503);
    const reason = { message: expect.stringContaining("AccessDenied") };
    expect(service.events.all).toContainEqual(
      expect.objectContaining({
        path: "/ready",
        status: 503,
        err: expect.objectContaining(reason),
      }),
    );
    proxy.trouble = null;
    expect(await ready()).toBe(200);
  });

  test("a client never gets other bytes than it has asked for, whatever range the bucket answers with", async () => {
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: "ranges/", endpoint: proxy.url });
    await using service = await startTestService({ config: { storage } });
    const url = `${service.url}/v1/files/${await service.upload(chatLines(1))}/content`;
    const download = () => fetch(url, { headers: { range: "bytes=1-9" } });
    proxy.trouble = { kind: "other_range", laterStart: 2, laterEnd: 0 };
    expect((await download()).status).toBe(503);
    proxy.trouble = { kind: "other_range", laterStart: 0, laterEnd: 2 };
    expect((await download()).status).toBe(503);
    proxy.trouble = null;
    expect(await (await download()).text()).toBe(chatLines(1)[0]?.slice(1, 10));
  });

  test("a client that leaves in the middle of a download costs the bucket no further request", async () => {
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({ config: { storage } });
    // The system takes some megabytes for a client that does not read.
    const file = await service.upload([JSON.stringify({ filler: "x".repeat(24 * 1024 * 1024) })]);
    const url = `${service.url}/v1/files/${file}/content`;
    const readsOfFile = () =>
      proxy.requests.filter((asked) => asked.includes("x-id=GetObject")).length;
    const before = readsOfFile();
    const leave = async () => {
      const leaving = new AbortController();
      await fetch(url, { signal: leaving.signal });
      leaving.abort();
      await service.events.reached("download.broken");
    };
    await leave();
    // A request that came late of the one before would be counted by the end of this one.
    expect((await (await fetch(url)).arrayBuffer()).byteLength).toBeGreaterThan(24 * 1024 * 1024);
    expect(readsOfFile() - before).toBe(2);
  });

  test("a batch says that it waits for the bucket while its input or its journal cannot be read", async () => {
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { storage, engine: { lease_seconds: 3 } },
    });
    const isWaiting = async (id: string) => {
      const { status, x_batchd } = (await service.openai.batches.retrieve(id)) as BatchObject;
      return `${status}: ${x_batchd.waiting?.reason}, ${x_batchd.at_risk}`;
    };
    const input = await service.upload(chatLines(20));
    proxy.trouble = { kind: "cut", afterBytes: 0 };
    const { id } = await createBatch(service.openai, input);
    await expect.poll(() => isWaiting(id)).toBe("validating: storage_unavailable, true");
    proxy.trouble = { kind: "hold", method: "GET", path: /\/journal\// };
    await expect.poll(() => proxy.held.length).toBeGreaterThanOrEqual(1);
    proxy.trouble = { kind: "cut", afterBytes: 0 };
    await expect.poll(() => isWaiting(id)).toBe("finalizing: storage_unavailable, true");
    proxy.trouble = null;
    expect(await service.ended(id)).toMatchObject({
      status: "completed",
      request_counts: { completed: 20 },
      x_batchd: { waiting: null },
    });
  });

  test("a bucket that sends a byte each second holds no validation and no download for ever", async () => {
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const clock = new FakeClock();
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      clock,
      config: { storage },
    });
    const endedAfterLeases = async (id: string) => {
      const status = async () => {
        clock.advance(10_000);
        return (await service.openai.batches.retrieve(id)).status;
      };
      await expect.poll(status).toBe("completed");
      return service.openai.batches.retrieve(id);
    };
    const file = await service.upload(chatLines(20));
    const { bytes } = await service.openai.files.retrieve(file);
    let sentBytes = 0;
    const beforeByte = () => {
      sentBytes++;
      clock.advance(1_000);
    };
    proxy.trouble = { kind: "trickle", beforeByte };
    const download = await fetch(`${service.url}/v1/files/${file}/content`);
    await expect(download.text()).rejects.toThrow();
    const created = await createBatch(service.openai, file);
    await service.events.reached("loop.pass_failed", { loop: "intake" });
    proxy.trouble = null;
    const batch = await endedAfterLeases(created.id);
    expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 20 } });
    expect(upstream.total).toBe(20);
    // Each would take the whole file. The last bytes are on their way when the reader gives up.
    expect(sentBytes).toBeLessThan(bytes / 2);
  });

  test("of a deleted batch nothing is left in the bucket", async () => {
    await using upstream = await startUpstream();
    const prefix = newPrefix();
    const storage = server.storage({ prefix });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { storage },
    });
    const batch = await service.run(chatLines(20, (n) => (n === 1 ? "[[status 400]]" : "fine")));
    const folder = join(server.bucketFolder, prefix);
    const keys = () => {
      const { stdout } = spawnSync("find", [folder, "-type", "f"], { encoding: "utf8" });
      const names = stdout.split("\n").map((path) => basename(path));
      return names.filter((name) => name !== "" && name !== ".ping");
    };
    const names = [batch.input_file_id, batch.output_file_id, batch.error_file_id];
    expect(keys()).toEqual(expect.arrayContaining(names));
    const path = `${service.url}/v1/batches/${batch.id}?files=input`;
    expect((await fetch(path, { method: "DELETE" })).status).toBe(200);
    await expect.poll(keys).toEqual([]);
  });

  test("requests that the bucket turns away are counted as throttled, each try of them", async () => {
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    await using service = await startTestService({ config: { storage } });
    proxy.trouble = { kind: "slow_down" };
    await expect(service.upload(chatLines(1))).rejects.toMatchObject({ status: 503 });
    proxy.trouble = null;
    const text = await (await fetch(`${service.url}/metrics`)).text();
    const labels = { operation: "PutObject", outcome: "throttled" };
    expect(new Scrape(text).value("batchd_s3_requests_total", labels)).toBe(4);
  });
});
