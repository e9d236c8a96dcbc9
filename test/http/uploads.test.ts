import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { UploadObject } from "../../src/contract/upload.ts";
import { multipart, type Part, RawConnection, rawRequest } from "../support/raw-http.ts";
import { chatLine, startTestApi, type TestApi, type Wire, wireOf } from "../support/test-http.ts";

const HOUR_MS = 60 * 60 * 1000;
const CONTENT = `${chatLine("a")}${chatLine("b")}${chatLine("c")}`;

let api: TestApi;
beforeAll(async () => {
  api = await startTestApi();
});
afterAll(() => api[Symbol.asyncDispose]());

type Body = string | FormData | null;
type UploadWire = Wire & { readonly file: Wire | null; readonly bytes: number };

async function post(path: string, body: Body = null, on: TestApi = api) {
  const response = await on.fetch(`/v1/uploads${path}`, { method: "POST", body });
  return { status: response.status, body: (await wireOf(response)) as UploadWire };
}

const request = (more: Record<string, unknown> = {}) =>
  JSON.stringify({
    filename: "input.jsonl",
    purpose: "batch",
    bytes: CONTENT.length,
    mime_type: "text/jsonl",
    ...more,
  });

const create = async (more: Record<string, unknown> = {}, on: TestApi = api) =>
  (await post("", request(more), on)).body.id;

async function addPart(id: string, content: string | Buffer, on: TestApi = api): Promise<string> {
  const form = new FormData();
  form.set("data", new Blob([content]), "upload");
  const { status, body } = await post(`/${id}/parts`, form, on);
  expect(status).toBe(200);
  return body.id;
}

const complete = (id: string, part_ids: readonly string[], more: object = {}, on: TestApi = api) =>
  post(`/${id}/complete`, JSON.stringify({ part_ids, ...more }), on);

/** Linux counts here what a process reads and writes. */
const PROCESS_IO = "/proc/self/io";

/** The bytes that this process has passed to system calls so far. */
const bytesWritten = () => Number(/^wchar: (\d+)$/m.exec(readFileSync(PROCESS_IO, "utf8"))?.[1]);

/** An upload of batch input with its two parts. */
async function pendingUpload(on: TestApi = api) {
  const id = await create({}, on);
  const parts = [
    await addPart(id, CONTENT.slice(0, 100), on),
    await addPart(id, CONTENT.slice(100), on),
  ];
  return { id, parts };
}

const contentOf = async (fileId: string) => {
  const response = await api.fetch(`/v1/files/${fileId}/content`);
  return Buffer.from(await response.arrayBuffer());
};

const refusal = (message: string | RegExp, param: string | null = null) => ({
  status: 400,
  body: {
    error: {
      message: typeof message === "string" ? message : expect.stringMatching(message),
      type: "invalid_request_error",
      param,
      code: null,
    },
  },
});

describe("a new upload", () => {
  test.each<[string, object, string, string, string]>([
    [
      "without a name",
      { filename: undefined },
      "Missing required parameter: 'filename'.",
      "filename",
      "missing_required_parameter",
    ],
    [
      "without a purpose",
      { purpose: undefined },
      "Missing required parameter: 'purpose'.",
      "purpose",
      "missing_required_parameter",
    ],
    [
      "without a size",
      { bytes: undefined },
      "Missing required parameter: 'bytes'.",
      "bytes",
      "missing_required_parameter",
    ],
    [
      "without a type",
      { mime_type: undefined },
      "Missing required parameter: 'mime_type'.",
      "mime_type",
      "missing_required_parameter",
    ],
    [
      "for an unknown purpose",
      { purpose: "xyz" },
      "Invalid value: 'xyz'. Supported values are: 'fine-tune', 'assistants', 'batch', 'user_data', 'vision', and 'evals'.",
      "purpose",
      "invalid_value",
    ],
    [
      "for a result of a batch",
      { purpose: "batch_output" },
      "Invalid value: 'batch_output'. Supported values are: 'fine-tune', 'assistants', 'batch', 'user_data', 'vision', and 'evals'.",
      "purpose",
      "invalid_value",
    ],
    [
      "of less than nothing",
      { bytes: -1 },
      "Invalid 'bytes': integer below minimum value. Expected a value >= 0, but got -1 instead.",
      "bytes",
      "integer_below_min_value",
    ],
    [
      "of a size that is text",
      { bytes: "10" },
      "Invalid type for 'bytes': expected a number, but got a string instead.",
      "bytes",
      "invalid_type",
    ],
    [
      "with too short an expiry of its file",
      { expires_after: { anchor: "created_at", seconds: 60 } },
      "Invalid 'expires_after.seconds': integer below minimum value. Expected a value >= 3600, but got 60 instead.",
      "expires_after.seconds",
      "integer_below_min_value",
    ],
    ["with an unknown field", { foo: 1 }, "Unknown parameter: 'foo'.", "foo", "unknown_parameter"],
  ])("%s is refused", async (_case, more, message, param, code) => {
    const { status, body } = await post("", request({ ...more }));
    expect(status).toBe(400);
    expect(body.error).toEqual({ message, type: "invalid_request_error", param, code });
  });

  test("may be as large as the operator allows", async () => {
    await using small = await startTestApi({ limits: { maxUploadBytes: 1_000 } });
    expect((await post("", request({ bytes: 1_000 }), small)).status).toBe(200);
    const { body } = await post("", request({ bytes: 1_001 }), small);
    expect(body.error.code).toBe("integer_above_max_value");
  });
});

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
    const upload = await create();
    const before = api.storedFiles();
    const answer = await rawRequest(api.url, partRequest(upload, multipart(parts)));
    expect({ ...answer, body: JSON.parse(answer.body) }).toMatchObject(refusal(message));
    expect(api.storedFiles()).toEqual(before);
  });

  test("that breaks off leaves nothing", async () => {
    const upload = await create();
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

describe("a completed upload", () => {
  test("is a file like any other, of the parts in the order that is asked for", async () => {
    const id = await create();
    const [third, first, second] = await Promise.all([
      addPart(id, CONTENT.slice(200)),
      addPart(id, CONTENT.slice(0, 90)),
      addPart(id, CONTENT.slice(90, 200)),
    ]);
    const nudges = api.nudges();
    const { status, body } = await complete(id, [first, second, third]);
    expect(status).toBe(200);
    expect(body).toMatchObject({ id, status: "completed", object: "upload" });
    expect(UploadObject.strict().safeParse(body).success).toBe(true);
    const file = body.file as Wire;
    expect(file).toEqual({
      object: "file",
      id: expect.stringMatching(/^file-/),
      purpose: "batch",
      filename: "input.jsonl",
      bytes: CONTENT.length,
      created_at: expect.any(Number),
      expires_at: file.created_at + 2_592_000,
      status: "processed",
      status_details: null,
    });
    expect((await contentOf(file.id)).toString()).toBe(CONTENT);
    expect(await (await api.fetch(`/v1/files/${file.id}`)).json()).toEqual(file);
    expect(api.nudges()).toBe(nudges + 1);
    const etag = (await api.fetch(`/v1/files/${file.id}/content`)).headers.get("etag");
    expect(etag).toBe(`"${createHash("sha256").update(CONTENT).digest("hex")}"`);
  });

  test("leaves out the parts that are not listed", async () => {
    const id = await create();
    await addPart(id, "a part that went wrong");
    const { body } = await complete(id, [await addPart(id, CONTENT)]);
    expect((await contentOf(body.file?.id ?? "")).toString()).toBe(CONTENT);
  });

  test("may be empty, unless it is for a batch", async () => {
    const empty = await create({ purpose: "user_data", bytes: 0 });
    expect((await complete(empty, [])).body).toMatchObject({
      status: "completed",
      file: { bytes: 0, expires_at: null },
    });
    const input = await create({ bytes: 0 });
    expect(await complete(input, [])).toMatchObject(
      refusal(/^Invalid file format for Batch API\. Must be \.jsonl \(HINT: The file is empty\./),
    );
  });

  test("may be larger than a file in one piece, unless it is for a batch", async () => {
    await using small = await startTestApi({ limits: { maxFileBytes: 100 } });
    const announce = (purpose: string, bytes: number) => {
      const body = JSON.stringify({ filename: "a", mime_type: "b", purpose, bytes });
      return small.fetch("/v1/uploads", { method: "POST", body });
    };
    expect((await announce("user_data", 101)).status).toBe(200);
    expect((await announce("batch", 100)).status).toBe(200);
    const refused = await announce("batch", 101);
    expect([refused.status, (await wireOf(refused)).error]).toEqual([
      400,
      {
        message:
          "Invalid 'bytes': integer above maximum value. Expected a value <= 100, but got 101 instead.",
        type: "invalid_request_error",
        param: "bytes",
        code: "integer_above_max_value",
      },
    ]);
  });
});

describe("an upload is not completed, and stays pending,", () => {
  /** Holds the refusal against what is expected, and completes the upload after all. */
  async function expectRefused(
    attempt: (upload: { id: string; parts: string[] }) => Promise<unknown>,
    expected: object,
  ) {
    const upload = await pendingUpload();
    const before = api.storedFiles();
    expect(await attempt(upload)).toMatchObject(expected);
    expect(api.storedFiles()).toEqual(before);
    expect((await complete(upload.id, upload.parts)).status).toBe(200);
  }

  test("with too few bytes, or too many", async () => {
    const bytesDiffer = refusal(
      /^The parts have \d+ bytes together, but the upload was created for \d+ bytes\.$/,
      "part_ids",
    );
    await expectRefused(({ id, parts }) => complete(id, parts.slice(1)), bytesDiffer);
    const { id, parts } = await pendingUpload();
    const tooMany = [...parts, await addPart(id, "x")];
    expect(await complete(id, tooMany)).toMatchObject(bytesDiffer);
    expect((await complete(id, parts)).status).toBe(200);
  });

  test("with a part twice", async () => {
    await expectRefused(
      ({ id, parts }) => complete(id, [...parts, ...parts]),
      refusal(/^The part 'part_\w+' is listed more than once\.$/, "part_ids"),
    );
  });

  test("with a part of another upload, or of none", async () => {
    const other = await pendingUpload();
    for (const stranger of [other.parts[0] ?? "", "part_x"]) {
      await expectRefused(
        ({ id, parts }) => complete(id, [stranger, ...parts.slice(1)]),
        refusal(/^The part 'part_\w+' does not belong to the upload 'upload_\w+'\.$/, "part_ids"),
      );
    }
  });

  test("with another MD5, but with the right one in either case", async () => {
    await expectRefused(
      ({ id, parts }) => complete(id, parts, { md5: "0".repeat(32) }),
      refusal(/^The MD5 of the parts together is '[0-9a-f]{32}', but the request says/, "md5"),
    );
    const md5 = createHash("md5").update(CONTENT).digest("hex");
    for (const each of [md5, md5.toUpperCase(), null]) {
      const { id, parts } = await pendingUpload();
      expect((await complete(id, parts, { md5: each })).status).toBe(200);
    }
  });

  test("with content that no upload of batch input may have", async () => {
    await expectRefused(
      ({ id, parts }) => complete(id, parts.toReversed()),
      refusal(/^Invalid file format for Batch API\. Must be \.jsonl \(HINT: Line 1 is not JSON\./),
    );
  });

  test.each([
    ["no JSON", "", "We could not parse the JSON body"],
    ["no parts", "{}", "Missing required parameter: 'part_ids'."],
    ["parts that are no list", '{"part_ids":"a"}', "Invalid type for 'part_ids'"],
    ["parts that are no ids", '{"part_ids":[1]}', "Invalid type for 'part_ids.0'"],
  ])("with %s in the body", async (_case, body, message) => {
    await expectRefused(({ id }) => post(`/${id}/complete`, body), {
      status: 400,
      body: { error: { message: expect.stringContaining(message) } },
    });
  });
});

describe("an upload that has ended", () => {
  const form = () => {
    const data = new FormData();
    data.set("data", new Blob(["x"]), "upload");
    return data;
  };

  test("as completed takes nothing more, and says which file it became", async () => {
    const { id, parts } = await pendingUpload();
    const fileId = (await complete(id, parts)).body.file?.id;
    const expected = refusal(`The upload '${id}' is already completed: its file is '${fileId}'.`);
    const before = api.storedFiles();
    expect(await post(`/${id}/parts`, form())).toMatchObject(expected);
    expect(await complete(id, parts)).toMatchObject(expected);
    expect(await post(`/${id}/cancel`)).toMatchObject(expected);
    expect(api.storedFiles()).toEqual(before);
  });

  test("as cancelled takes nothing more, and may be cancelled again", async () => {
    const { id, parts } = await pendingUpload();
    const nudges = api.nudges();
    for (const body of [null, "{}"]) {
      expect(await post(`/${id}/cancel`, body)).toMatchObject({
        status: 200,
        body: { id, status: "cancelled", file: null },
      });
    }
    expect(api.nudges()).toBe(nudges + 1);
    const expected = refusal(`The upload '${id}' is already cancelled.`);
    expect(await post(`/${id}/parts`, form())).toMatchObject(expected);
    expect(await complete(id, parts)).toMatchObject(expected);
  });

  test("by the clock takes nothing more", async () => {
    await using fresh = await startTestApi();
    const { id, parts } = await pendingUpload(fresh);
    fresh.advance(HOUR_MS);
    const expected = refusal(`The upload '${id}' is already expired.`);
    expect(await post(`/${id}/parts`, form(), fresh)).toMatchObject(expected);
    expect(await complete(id, parts, {}, fresh)).toMatchObject(expected);
    expect(await post(`/${id}/cancel`, null, fresh)).toMatchObject(expected);
  });

  test("has one end, however many ask for it at once", async () => {
    const { id, parts } = await pendingUpload();
    const before = api.storedFiles().length;
    const answers = await Promise.all(Array.from({ length: 5 }, () => complete(id, parts)));
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 400, 400, 400, 400]);
    expect(api.storedFiles()).toHaveLength(before + 1);
    const named = answers.filter(({ status }) => status === 200).map(({ body }) => body.file?.id);
    const { error } = answers.find(({ status }) => status === 400)?.body ?? {};
    expect(error?.message).toContain(named[0]);
  });

  test.skipIf(!existsSync(PROCESS_IO))(
    "is written once, however many ask for it at once",
    async () => {
      const bytes = 4 * 1024 * 1024;
      const id = await create({ purpose: "user_data", bytes });
      const part = await addPart(id, Buffer.alloc(bytes));
      const before = bytesWritten();
      await Promise.all(Array.from({ length: 16 }, () => complete(id, [part])));
      expect(bytesWritten() - before).toBeLessThan(4 * bytes);
    },
  );
});
