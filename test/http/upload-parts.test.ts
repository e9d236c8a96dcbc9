import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { multipart, type Part, RawConnection, rawRequest } from "../support/raw-http.ts";
import { startTestApi } from "../support/test-http.ts";
import { refusal, UploadClient } from "../support/upload-client.ts";

const api = forAllTests(await startTestApi());
const uploads = new UploadClient(api);

describe("a part", () => {
  const data = (content = "x"): Part => ({ name: "data", content, filename: "upload" });
  test.each<[string, Part[], string]>([
    ["without data", [], "'data' is a required property"],
    ["with two", [data(), data()], "Only one 'data' can be uploaded in a request."],
    [
      "under another name",
      [{ ...data(), name: "file" }],
      "Additional properties are not allowed ('file' was unexpected)",
    ],
    [
      "with something beside it",
      [data(), { name: "purpose", content: "batch" }],
      "Additional properties are not allowed ('purpose' was unexpected)",
    ],
  ])("%s is refused and leaves nothing", async (_case, parts, message) => {
    const upload = await uploads.create();
    const before = api.storedFiles();
    const answer = await rawRequest(api.url, partRequest(upload, multipart(parts)));
    expect({ ...answer, body: JSON.parse(answer.body) }).toMatchObject(refusal(message));
    expect(api.storedFiles()).toEqual(before);
  });

  test("that breaks off leaves nothing", async () => {
    const upload = await uploads.create();
    const before = api.storedFiles();
    const connection = await RawConnection.open(api.url);
    const body = multipart([data("x".repeat(100_000))], { isClosed: false });
    connection.send(partRequest(upload, body, 10_000_000));
    await expect.poll(() => api.storedFiles().length).toBe(before.length + 1);
    connection.socket.destroy();
    await expect.poll(() => api.storedFiles()).toEqual(before);
  });
});

const partRequest = (upload: string, body: string, length = body.length) =>
  [
    `POST /v1/uploads/${upload}/parts HTTP/1.1`,
    "Host: localhost",
    "Content-Type: multipart/form-data; boundary=----a-boundary",
    `Content-Length: ${length}`,
    "",
    body,
  ].join("\r\n");
