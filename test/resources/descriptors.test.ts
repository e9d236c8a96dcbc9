/** A server with few descriptors serves few, tells the others to come back, and does not lose its way: a real process. */
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { parseConfig } from "../../src/config/config.ts";
import { planDescriptors } from "../../src/resources/descriptors.ts";
import { submitLines } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { BatchdProcess } from "../support/process.ts";
import { hasProgram } from "../support/programs.ts";
import { multipart, RawConnection, uploadRequest } from "../support/raw-http.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const folder = forAllTests(temporaryFolder("batchd-descriptors-")).path;
const upstream = forAllTests(await startUpstream());
upstream.forget();

async function start(env: Readonly<Record<string, string>>) {
  const dataDir = await mkdtemp(join(folder, "data-"));
  const args = ["serve", "--port", "0", "--data-dir", dataDir, "--upstream", upstream.url];
  const server = new BatchdProcess(args, env);
  const url = await server.listening();
  return { server, url, openai: new OpenAI({ baseURL: `${url}/v1`, apiKey: "x", maxRetries: 20 }) };
}

/** Says as much as this and no more. */
function silentConnection(url: string, words = ""): { socket: Socket; said: Promise<string> } {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on("error", () => {});
  socket.write(words);
  const said = new Promise<string>((resolve) => {
    socket.once("data", (text) => resolve(text.toString()));
    socket.once("close", () => resolve(""));
  });
  return { socket, said };
}

describe("with 48 descriptors and an upstream of 64 slots", () => {
  test("the operator is told, a batch ends, and who cannot be served is told to come back", async () => {
    const { server, url, openai } = await start({ OPEN_FILES: "48" });
    await using _server = server;
    await server.loggedLike(/the limit of 48 open files is too low .* raise it to \d+ or more/);
    const { id } = await submitLines(openai, chatLines(200));
    const silent = Array.from({ length: 60 }, () => silentConnection(url));

    const turnedAway = await Promise.race(
      silent.map(({ said }) =>
        said.then((text) => (text === "" ? new Promise<never>(() => {}) : text)),
      ),
    );
    expect(turnedAway).toMatch(/^HTTP\/1\.1 503 /);
    expect(turnedAway).toMatch(/\r\nretry-after: 1\r\n/);
    expect(turnedAway).toMatch(/\r\nConnection: close\r\n/);
    await server.batchEnded(id);
    for (const { socket } of silent) socket.destroy();
    const batch = await openai.batches.retrieve(id);
    expect(batch.request_counts).toEqual({ total: 200, completed: 200, failed: 0 });
  });

  test.each([
    ["without a word", ""],
    ["and never come to the end of their headers", "GET / HTTP/1.1\r\nHost: x\r\n"],
  ])("a client is served while others hold all connections %s", async (_, words) => {
    const { server, url, openai } = await start({ OPEN_FILES: "48" });
    await using _server = server;
    const silent = Array.from({ length: 30 }, () => silentConnection(url, words));
    await once(silent[0]!.socket, "connect");
    expect((await openai.models.list()).data).not.toHaveLength(0);
    for (const { socket } of silent) socket.destroy();
  });
});

test.skipIf(!hasProgram("prlimit", "the tests of descriptors"))(
  "without a free descriptor an upload is a 503 that may be repeated, and passes once there is one",
  async () => {
    const { server, url } = await start({});
    await using _server = server;
    const setLimit = (limit: number) =>
      spawnSync("prlimit", ["--pid", String(server.pid), `--nofile=${limit}:4096`]).status;
    // One connection for all, so that the limit meets the file alone.
    using connection = await RawConnection.open(url);
    const form = multipart([
      { name: "purpose", content: "user_data" },
      { name: "file", content: "content", filename: "f" },
    ]);
    const upload = () => {
      connection.send(uploadRequest(form));
      return connection.answer();
    };
    expect((await upload()).status).toBe(200);
    expect(setLimit(8)).toBe(0);

    const refused = await upload();
    expect(refused.status).toBe(503);
    expect(refused.headers["retry-after"]).toBe("1");
    expect(setLimit(4096)).toBe(0);
    expect((await upload()).status).toBe(200);
  },
);

const planFor = (storage: object, limit = 1_024) => {
  const parsed = parseConfig({ storage, upstreams: [] });
  if (!parsed.ok) throw new Error(parsed.problems.join("\n"));
  return planDescriptors({ limit, usedCount: 24 }, parsed.config);
};

test("connections to a bucket are part of the plan: those of the engine, and two for each client", () => {
  const { maxRequests, maxConnections } = planFor({ type: "s3", bucket: "b" });
  expect(maxConnections).toBe(Math.floor((1_024 - 24 - 8 - 70 - 30 - maxRequests) / 3));
  expect(maxConnections).toBeLessThan(planFor({}).maxConnections);
});

test("six threads that convert results have five descriptors each, and a quarter of few", () => {
  const { maxRequests, maxConnections } = planFor({});
  expect(2 * maxConnections + maxRequests).toBeLessThanOrEqual(1_024 - 24 - 8 - 30);
  const few = planFor({}, 64);
  expect(2 * few.maxConnections + few.maxRequests).toBeGreaterThanOrEqual(64 - 24 - 8 - 8 - 1);
});
