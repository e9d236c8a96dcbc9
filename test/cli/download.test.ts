/** A download that breaks off at each try: what the user sees meanwhile, and how it ends. */
import { createServer } from "node:http";
import { buffer } from "node:stream/consumers";
import { expect, test, vi } from "vitest";
import { contentOf } from "../../src/client/download.ts";
import { CommandFailure } from "../../src/client/failure.ts";
import { Server } from "../../src/client/server.ts";
import type { Clock } from "../../src/clock.ts";
import { listening } from "../support/listening.ts";

/** Time passes at once, and is noted. */
function hurriedClock() {
  const waits: number[] = [];
  const after: Clock["after"] = (ms, fn) => {
    waits.push(ms);
    const immediate = setImmediate(fn);
    return () => clearImmediate(immediate);
  };
  return { waits, clock: { nowMs: () => 0, elapsedMs: () => 0, after } };
}

function serverAt(port: number) {
  const url = `http://127.0.0.1:${port}/v1`;
  const { signal } = new AbortController();
  const settings = {
    url,
    apiKey: null,
    keyVariable: "BATCHD_API_KEY",
    isNamedByFlag: false,
    proxyVariable: null,
    usesProxies: false,
  } as const;
  return { server: new Server(settings, signal), signal };
}

/** Breaks the first answer off after 100 of 1,000 bytes, and answers as it likes from then on. */
async function downloaded(rangeFor: (from: number) => readonly [start: number, end: number]) {
  const content = Buffer.from(Array.from({ length: 1_000 }, (_, at) => at % 251));
  const asked: number[] = [];
  const port = await listening(
    createServer(({ headers }, response) => {
      const from = Number(/^bytes=(\d+)-$/.exec(headers.range ?? "")?.[1] ?? 0);
      asked.push(from);
      if (from === 0) {
        response.writeHead(200, { "content-length": content.length });
        response.write(content.subarray(0, 100), () => response.destroy());
        return;
      }
      const [start, end] = rangeFor(from);
      const range = `bytes ${start}-${end - 1}/${content.length}`;
      response.writeHead(206, { "content-range": range, "content-length": end - start });
      response.end(content.subarray(start, end));
    }),
  );
  const { server, signal } = serverAt(port);
  const stderr = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  const { clock } = hurriedClock();
  const got = await buffer(contentOf(server, "file-1", { clock, signal })).catch(
    (error: Error) => error.message,
  );
  stderr.mockRestore();
  return { asked, isWhole: content.equals(Buffer.from(got)), got: String(got) };
}

test("a download is whole where the server sends other parts than it was asked for", async () => {
  const inParts = await downloaded((from) => [from, Math.min(from + 400, 1_000)]);
  expect(inParts).toMatchObject({ isWhole: true, asked: [0, 100, 500, 900] });
  expect((await downloaded(() => [0, 1_000])).isWhole).toBe(true);
  const { got } = await downloaded((from) => [from + 1, 1_000]);
  expect(got).toMatch(/^http:\S+ leaves out a part of file-1, after 100 B$/);
  expect((await downloaded((from) => [from - 1, from])).got).toMatch(/8 tries in a row/);
});

test("a download that always breaks off tells of each try, and ends with a sentence", async () => {
  const asked: (string | undefined)[] = [];
  const port = await listening(
    createServer(({ headers }, response) => {
      asked.push(headers.range);
      const isFirst = headers.range === undefined;
      response.writeHead(isFirst ? 200 : 206, { "content-length": 1_000 });
      if (isFirst) response.write("x".repeat(100), () => response.destroy());
      else response.flushHeaders();
      if (!isFirst) response.destroy();
    }),
  );
  const { server, signal } = serverAt(port);
  const { waits, clock } = hurriedClock();
  const written: string[] = [];
  const stderr = vi.spyOn(process.stderr, "write").mockImplementation((text) => {
    written.push(String(text));
    return true;
  });
  const failure = await buffer(contentOf(server, "file-1", { clock, signal })).catch(
    (error: unknown) => error,
  );
  stderr.mockRestore();
  expect(failure).toBeInstanceOf(CommandFailure);
  expect((failure as CommandFailure).message).toMatch(
    /^http:\S+ \S.*; 8 tries in a row have brought nothing more of file-1 than 100 B$/,
  );
  expect(asked.slice(0, 2)).toEqual([undefined, "bytes=100-"]);
  expect(waits.length).toBe(written.length);
  expect(written[0]).toMatch(
    /^batchd: .*broke off its answer .*; file-1 goes on after 100 B in 1 s\n$/,
  );
  expect(written.at(-1)).toMatch(/; file-1 goes on after 100 B in 30 s\n$/);
});
