import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { ServerResponse } from "node:http";
import type { Readable } from "node:stream";
import { describe, expect, test, vi } from "vitest";
import { contentDisposition, parseRange } from "../../src/http/download.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { openCount } from "../support/open-files.ts";
import { RawConnection } from "../support/raw-http.ts";
import { startTestApi, uploadInput, wireOf } from "../support/test-http.ts";

const CONTENT = `{"custom_id":"0123456789"}\n`;
const BYTES = CONTENT.length;
/** It is more than a connection takes at once. */
const LARGE = `${JSON.stringify({ filler: "y".repeat(1_000) })}\n`.repeat(20_000);
/** A download looks so often whether its file is still there. */
const LOOK_EVERY_MS = 10_000;

const api = forAllTests(await startTestApi());
const id = await uploadInput(api, CONTENT);

const download = (headers: Record<string, string> = {}, method = "GET") =>
  api.fetch(`/v1/files/${id}/content`, { headers, method });

describe("a download", () => {
  test("is the bytes as they came, under the name they came with", async () => {
    // Both SDKs ask for a type that nothing has.
    const response = await download({ accept: "application/binary" });
    expect(response.status).toBe(200);
    expect(Object.fromEntries(response.headers)).toMatchObject({
      "content-type": "application/octet-stream",
      "content-disposition": 'attachment; filename="input.jsonl"',
      "content-length": String(BYTES),
      "accept-ranges": "bytes",
      "x-request-id": expect.stringMatching(/^req_[0-9a-f]{32}$/),
      "openai-version": "2020-10-01",
      "openai-processing-ms": expect.stringMatching(/^\d+$/),
    });
    expect(await response.text()).toBe(CONTENT);
  });

  test("answers HEAD with the same headers and no body", async () => {
    const response = await download({}, "HEAD");
    expect(response.status).toBe(200);
    expect(response.headers.get("content-length")).toBe(String(BYTES));
    expect(response.headers.get("x-request-id")).toMatch(/^req_/);
    expect(await response.text()).toBe("");
  });

  test.each([
    ["bytes=0-0", 0, 1],
    ["bytes=2-5", 2, 6],
    ["bytes=5-", 5, BYTES],
    ["bytes=-4", BYTES - 4, BYTES],
    ["bytes=-1000", 0, BYTES],
    ["bytes=3-100000", 3, BYTES],
    ["Bytes=2-5", 2, 6],
  ])("gives the range %s", async (range, start, end) => {
    const response = await download({ range });
    expect(response.status).toBe(206);
    expect(response.headers.get("content-range")).toBe(`bytes ${start}-${end - 1}/${BYTES}`);
    expect(response.headers.get("content-length")).toBe(String(end - start));
    expect(await response.text()).toBe(CONTENT.slice(start, end));
  });

  test.each(["bytes=0-1,4-5", "lines=1-2", "bytes=5-2", "bytes=-", "bytes=a-b"])(
    "gives the whole file for %s",
    async (range) => {
      const response = await download({ range });
      expect(response.status).toBe(200);
      expect(await response.text()).toBe(CONTENT);
    },
  );

  test.each([`bytes=${BYTES}-`, "bytes=1000-2000", "bytes=-0"])(
    "refuses %s with the size of the file",
    async (range) => {
      const response = await download({ range });
      expect(response.status).toBe(416);
      expect(response.headers.get("content-range")).toBe(`bytes */${BYTES}`);
      expect(await response.json()).toMatchObject({ error: { type: "invalid_request_error" } });
    },
  );

  test("goes on where it broke off only if it is the same file", async () => {
    const etag = (await download()).headers.get("etag") ?? "";
    const same = await download({ range: "bytes=4-", "if-range": etag });
    expect([same.status, await same.text()]).toEqual([206, CONTENT.slice(4)]);
    const other = await download({ range: "bytes=4-", "if-range": '"other"' });
    expect([other.status, await other.text()]).toEqual([200, CONTENT]);
  });

  test("is not sent again to a client that has it", async () => {
    const etag = (await download()).headers.get("etag") ?? "";
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`, "*"]) {
      const response = await download({ "if-none-match": known, range: "bytes=4-" });
      expect([response.status, await response.text()], known).toEqual([304, ""]);
      expect(response.headers.get("etag")).toBe(etag);
    }
    const other = await download({ "if-none-match": '"other", nonsense' });
    expect([other.status, await other.text()]).toEqual([200, CONTENT]);
  });

  test("is refused to a client that goes on with another content", async () => {
    const etag = (await download()).headers.get("etag") ?? "";
    for (const expected of ['"other"', `W/${etag}`, "nonsense"]) {
      const response = await download({ "if-match": expected, range: "bytes=4-" });
      expect(response.status, expected).toBe(412);
      expect(await response.json()).toMatchObject({ error: { param: "If-Match" } });
    }
    for (const expected of ["*", `"other", ${etag}`]) {
      const response = await download({ "if-match": expected, range: "bytes=4-" });
      expect([response.status, await response.text()]).toEqual([206, CONTENT.slice(4)]);
    }
  });

  test("gives the connection back for the next request", async () => {
    using connection = await RawConnection.open(api.url);
    for (let i = 0; i < 3; i++) {
      connection.send(`GET /v1/files/${id}/content HTTP/1.1\r\nHost: x\r\n\r\n`);
      const answer = await connection.answer();
      expect([answer.status, answer.body]).toEqual([200, CONTENT]);
    }
  });

  test("of a large file is whole", async () => {
    const large = await uploadInput(api, LARGE);
    const response = await api.fetch(`/v1/files/${large}/content`);
    expect((await response.text()) === LARGE).toBe(true);
  });

  test("frees the memory of each piece that is sent, which would cost a look through the whole heap", async () => {
    const large = await uploadInput(api, LARGE);
    using write = vi.spyOn(ServerResponse.prototype, "write");
    await (await api.fetch(`/v1/files/${large}/content`)).text();
    const pieces = write.mock.calls.map(([piece]) => piece as Buffer<ArrayBuffer>);
    expect(pieces.length).toBeGreaterThan(LARGE.length / (1024 * 1024));
    // The client may have the last piece before the server knows so.
    expect(pieces.slice(0, -1).every(({ buffer }) => buffer.detached)).toBe(true);
  });

  test("has released the file when its last byte is there, as the client may close then", async () => {
    using connection = await RawConnection.open(api.url);
    for (let i = 0; i < 20; i++) {
      connection.send(`GET /v1/files/${id}/content HTTP/1.1\r\nHost: x\r\n\r\n`);
      await connection.answer();
      expect(openCount(id)).toBe(0);
    }
  });

  test("releases the file when the client goes away", async () => {
    const large = await uploadInput(api, LARGE);
    const connection = await RawConnection.open(api.url);
    connection.socket.once("data", () => connection.socket.pause());
    connection.send(`GET /v1/files/${large}/content HTTP/1.1\r\nHost: x\r\n\r\n`);
    await once(connection.socket, "pause");
    expect(openCount(large)).toBe(1);
    connection.socket.destroy();
    await expect.poll(() => openCount(large)).toBe(0);
    expect((await download()).status).toBe(200);
  });

  test("ends with its file, whose bytes it would keep on the disk, and with no other one", async () => {
    const clock = new FakeClock();
    await using own = await startTestApi({ clock });
    const [deleted, kept] = [await uploadInput(own, LARGE), await uploadInput(own, LARGE)];
    const open = async (file: string) => {
      const connection = await RawConnection.open(own.url);
      connection.socket.once("data", () => connection.socket.pause());
      connection.send(`GET /v1/files/${file}/content HTTP/1.1\r\nHost: x\r\n\r\n`);
      await once(connection.socket, "pause");
      expect(openCount(file)).toBe(1);
      return connection;
    };
    using broken = await open(deleted);
    using whole = await open(kept);
    await own.fetch(`/v1/files/${deleted}`, { method: "DELETE" });
    clock.advance(LOOK_EVERY_MS);
    // Neither client reads meanwhile.
    await expect.poll(() => openCount(deleted)).toBe(0);
    await expect.poll(() => own.log.join()).toMatch(/"level":"debug".*"download\.broken"/);
    broken.socket.resume();
    await expect(broken.answer()).rejects.toThrow("the connection ended");
    let readBytes = 0;
    whole.socket.on("data", (text: string) => {
      readBytes += text.length;
    });
    whole.socket.resume();
    await expect.poll(() => readBytes).toBeGreaterThan(0.9 * LARGE.length);
  });

  test("releases the file when the client is gone before it is open", async () => {
    await using own = await startTestApi();
    const early = await uploadInput(own, LARGE);
    const answers: ServerResponse[] = [];
    const onRequest = (message: unknown) =>
      answers.push((message as { readonly response: ServerResponse }).response);
    subscribe("http.server.request.start", onRequest);
    const connection = await RawConnection.open(own.url);
    const read = own.blobs.read.bind(own.blobs);
    const contents: Readable[] = [];
    own.blobs.read = (...asked) => {
      const content = read(...asked);
      contents.push(content);
      return content;
    };
    const find = own.store.findFile.bind(own.store);
    own.store.findFile = async (asked) => {
      const gone = Promise.all(answers.map((answer) => once(answer, "close")));
      connection.socket.destroy();
      await gone;
      return find(asked);
    };
    connection.send(`GET /v1/files/${early}/content HTTP/1.1\r\nHost: x\r\n\r\n`);
    await expect.poll(() => own.log.join()).toContain("download.broken");
    // Nothing has gone wrong, and a client can leave hundreds of times a second.
    expect(own.log.join()).toMatch(/"level":"debug".*"download\.broken"/);
    expect(own.log.join()).not.toContain('"stack"');
    unsubscribe("http.server.request.start", onRequest);
    await expect.poll(() => contents.map(({ closed }) => closed)).toEqual([true]);
  });

  test("of a file whose bytes are gone is a 404 and not half an answer", async () => {
    const gone = await uploadInput(api);
    await api.blobs.delete(`files/${gone}`);
    const response = await api.fetch(`/v1/files/${gone}/content`);
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({
      error: {
        message: `The content of the file ${gone} is missing in the storage of this server.`,
      },
    });
  });
});

describe("the name of a download", () => {
  test("is quoted so that it can neither end early nor bring in a header", () => {
    expect(contentDisposition("a b.jsonl")).toBe('attachment; filename="a b.jsonl"');
    expect(contentDisposition('a"b\\c')).toBe(
      "attachment; filename=\"a_b_c\"; filename*=UTF-8''a%22b%5Cc",
    );
    expect(contentDisposition("a\r\nSet-Cookie: b")).toBe(
      "attachment; filename=\"a__Set-Cookie: b\"; filename*=UTF-8''a%0D%0ASet-Cookie%3A%20b",
    );
  });

  test("is exact where it is not ASCII", () => {
    expect(contentDisposition("größe (1).jsonl")).toBe(
      "attachment; filename=\"gr__e (1).jsonl\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%20%281%29.jsonl",
    );
    expect(contentDisposition("half \ud800")).toContain("filename*=UTF-8''half%20%EF%BF%BD");
  });

  test("survives the way through a real answer", async () => {
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new Blob(["{}\n"]), 'größe "1".jsonl');
    const uploaded = await api.fetch("/v1/files", { method: "POST", body: form });
    const { id: named } = await wireOf(uploaded);
    const response = await api.fetch(`/v1/files/${named}/content`);
    expect(response.status).toBe(200);
    expect(response.headers.get("content-disposition")).toContain("filename*=UTF-8''gr%C3%B6");
    await response.text();
  });
});

test("a range of an empty file cannot be given", () => {
  expect(parseRange("bytes=0-", 0)).toBe("unsatisfiable");
  expect(parseRange("bytes=-5", 0)).toBe("unsatisfiable");
});
