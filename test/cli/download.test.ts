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
  const url = `http://127.0.0.1:${port}/v1`;
  const { signal } = new AbortController();
  const server = new Server(
    { url, apiKey: null, keyVariable: "BATCHD_API_KEY", isNamedByFlag: false, unusedProxy: null },
    signal,
  );
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
    /^http:\S+ \S.*; 8 tries in a row have brought nothing more of file-1 than 100 bytes$/,
  );
  expect(asked.slice(0, 2)).toEqual([undefined, "bytes=100-"]);
  expect(waits.length).toBe(written.length);
  expect(written[0]).toMatch(
    /^batchd: .*broke off its answer .*; file-1 goes on after 100 bytes in 1 s\n$/,
  );
  expect(written.at(-1)).toMatch(/; file-1 goes on after 100 bytes in 30 s\n$/);
});
