/** Readers of the failed lines of a long batch read only the segments that hold such lines, however many lines are between. */
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import type { Blobs } from "../../src/blobs/blobs.ts";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import { refusal } from "../support/given.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const CHUNK_LINES = 512;
const CHUNK_COUNT = 3;
const COUNT = CHUNK_COUNT * CHUNK_LINES;
const FAILED = [100, 400];
/** These lines are answered when the test says so, and the last of them never: the batch runs on. */
const LATE = [COUNT - 2, COUNT - 1, COUNT];

let upstream: TestUpstream;
let service: TestService;
let id: string;
/** The segments that were read, in order. */
const segmentsRead: string[] = [];
const answerLate = new Map<string, () => void>();

/** Notes the segments that are read. */
const noting = (blobs: Blobs): Blobs =>
  new Proxy(blobs, {
    get: (target, name) => {
      const value: unknown = Reflect.get(target, name);
      if (typeof value !== "function") return value;
      return (...args: readonly unknown[]) => {
        if (name === "readRange" && String(args[0]).startsWith("journal/")) {
          segmentsRead.push(String(args[0]));
        }
        return Reflect.apply(value, target, args) as unknown;
      };
    },
  });

const userOf = (body: string) => (JSON.parse(body) as { user: string }).user;
const isLine = (user: string, numbers: readonly number[]) =>
  numbers.some((n) => user === `line-${n}`);
const bad = refusal(400, { message: "No.", type: "invalid_request_error", code: "bad" });
const completion = {
  object: "chat.completion",
  choices: [{ index: 0, message: { role: "assistant", content: "Hi" }, finish_reason: "stop" }],
};

beforeAll(async () => {
  upstream = await startUpstream({
    answers: async ({ body }) => {
      const user = userOf(body);
      if (isLine(user, FAILED)) return bad;
      if (!isLine(user, LATE)) return { body: completion };
      const { promise, resolve } = Promise.withResolvers<void>();
      answerLate.set(user, resolve);
      await promise;
      return bad;
    },
  });
  service = await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 64 }],
      engine: { stop_grace_seconds: 0 },
    },
    openStorage: async (config, deps) => {
      const opened = await openStorage(config, deps);
      return opened.ok ? { ...opened, blobs: noting(opened.blobs) } : opened;
    },
  });
  ({ id } = await service.submit(chatLines(COUNT)));
  await service.events.reached("line.recorded", { batch: id, count: COUNT - LATE.length });
  const isDone = async () => {
    const { request_counts: counts } = await service.openai.batches.retrieve(id);
    expect((counts?.completed ?? 0) + (counts?.failed ?? 0)).toBe(COUNT - LATE.length);
  };
  await vi.waitFor(isDone, { timeout: 60_000 });
});
afterAll(async () => {
  for (const answer of answerLate.values()) answer();
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
});

/** Resolves to the numbers of the lines in an answer, and to how many segments were read for it. */
async function linesOf(path: string) {
  segmentsRead.length = 0;
  const text = await (await fetch(`${service.url}/v1/batches/${id}/${path}`)).text();
  const numbers = [...text.matchAll(/"line":(\d+)/g)].map(([, n]) => Number(n));
  return { numbers, readCount: segmentsRead.length };
}

test.each(["errors", "lines?status=failed", "failures"])("of %s", async (path) => {
  const all = await linesOf("output");
  expect(all.numbers).toHaveLength(COUNT - LATE.length - FAILED.length);
  expect(all.readCount).toBeGreaterThanOrEqual(CHUNK_COUNT);
  const { numbers, readCount } = await linesOf(path);
  expect(numbers).toEqual(FAILED);
  expect(readCount).toBeLessThanOrEqual(FAILED.length);
});

test("of events: a follower reads no segment of a chunk again that has ended before the next line", async () => {
  segmentsRead.length = 0;
  const stream = await fetch(`${service.url}/v1/batches/${id}/errors`, {
    headers: { accept: "text/event-stream" },
  });
  const reader = stream.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  const until = async (line: number) => {
    while (!text.includes(`id: ${line}\n`)) text += (await reader.read()).value ?? "";
  };
  await until(FAILED[1]!);
  for (const line of LATE.slice(0, 2)) {
    answerLate.get(`line-${line}`)?.();
    await until(line);
  }
  await reader.cancel();
  const ofEarlyChunks = segmentsRead.filter((key) => !key.includes(`/${CHUNK_COUNT - 1}-`));
  expect(ofEarlyChunks.length).toBeGreaterThan(0);
  expect(new Set(ofEarlyChunks).size).toBe(ofEarlyChunks.length);
});
