import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { UntrustedId } from "../../src/batch/batch.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import {
  BOUNDARY,
  multipart,
  RawConnection,
  rawRequest,
  uploadRequest,
} from "../support/raw-http.ts";
import { chatLine, startTestApi } from "../support/test-http.ts";

const api = forAllTests(await startTestApi());

const LINE = chatLine("a");
const form = (content: string) =>
  multipart([
    { name: "purpose", content: "user_data" },
    { name: "file", filename: "a.bin", content },
  ]);

async function bytesOf(id: string): Promise<number | undefined> {
  return (await api.store.findFile({ project: "default", id: id as UntrustedId<"file"> }))?.bytes;
}

describe("a file is never stored shortened", () => {
  test.each([
    ["a line that begins with it", `\r\n--${BOUNDARY}more`],
    ["a line of it", `\r\n--${BOUNDARY}\r\n`],
    ["a line of it that looks like the header of a part", `\r\n--${BOUNDARY}\r\nA: b\r\n\r\n`],
    ["the end of its form", `\r\n--${BOUNDARY}--`],
    ["the end of its form, and more in the line", `\r\n--${BOUNDARY}--more`],
  ])("when it holds the boundary of its form: %s", async (_case, mark) => {
    const before = api.storedFiles();
    const request = uploadRequest(form(`${LINE}\r\n${LINE}${mark}\r\n${LINE}`));
    const { status, body } = await rawRequest(api.url, request);
    expect(status).toBe(400);
    expect(JSON.parse(body).error).toMatchObject({
      message: expect.stringContaining("Use a boundary that the file does not contain"),
      type: "invalid_request_error",
    });
    await expect.poll(() => api.storedFiles()).toEqual(before);
  });

  test("whatever it holds, and wherever the network cuts it", async () => {
    const pieces = ["\r\n", "\r", "\n", "--", "-", BOUNDARY, BOUNDARY.slice(0, 5), "x", "\r\n\r\n"];
    const content = fc.array(fc.constantFrom(...pieces, `\r\n--${BOUNDARY}`), { maxLength: 12 });
    await fc.assert(
      fc.asyncProperty(content, fc.integer({ min: 1, max: 40 }), async (parts, chunkBytes) => {
        const file = parts.join("");
        using connection = await RawConnection.open(api.url);
        connection.send(
          `POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary="${BOUNDARY}"\r\n\r\n`,
        );
        const body = form(file);
        for (let at = 0; at < body.length; at += chunkBytes) {
          const chunk = body.slice(at, at + chunkBytes);
          connection.send(`${chunk.length.toString(16)}\r\n${chunk}\r\n`);
        }
        connection.send("0\r\n\r\n");
        const answer = await connection.answer();
        const hasBoundary = `\r\n${file}`.includes(`\r\n--${BOUNDARY}`);
        expect(answer.status).toBe(hasBoundary ? 400 : 200);
        if (!hasBoundary) expect(await bytesOf(JSON.parse(answer.body).id)).toBe(file.length);
      }),
      { numRuns: 200 },
    );
  });
});

describe("a form", () => {
  test("may have a preamble, and empty lines behind its end", async () => {
    const body = `a preamble\r\n${form(LINE)}${"\r\n".repeat(500_000)}`;
    const answer = await rawRequest(api.url, uploadRequest(body));
    expect(answer.status).toBe(200);
    expect(await bytesOf(JSON.parse(answer.body).id)).toBe(LINE.length);
  });

  test("of ever more empty parts is refused before its parser has read them", async () => {
    const body = "\r\n--a\r\n\r\n".repeat(500_000).slice(2);
    const request = uploadRequest(body, { type: "multipart/form-data; boundary=a" });
    const answer = await rawRequest(api.url, request);
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.body).error.message).toBe("The form has too many parts.");
  });
});
