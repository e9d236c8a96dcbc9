import { existsSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestApi } from "../support/test-http.ts";
import { refusal, UploadClient, uploadRequest } from "../support/upload-client.ts";

const HOUR_MS = 60 * 60 * 1000;

const api = forAllTests(await startTestApi());
const uploads = new UploadClient(api);

/** Linux counts here what a process reads and writes. */
const PROCESS_IO = "/proc/self/io";

/** The bytes that this process has passed to system calls so far. */
const bytesWritten = () => Number(/^wchar: (\d+)$/m.exec(readFileSync(PROCESS_IO, "utf8"))?.[1]);
describe("a new upload", () => {
  const lacking = (param: string): [string, object, string, string, string] => [
    `without '${param}'`,
    { [param]: undefined },
    `Missing required parameter: '${param}'.`,
    param,
    "missing_required_parameter",
  ];
  test.each<[string, object, string, string, string]>([
    ...["filename", "purpose", "bytes", "mime_type"].map(lacking),
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
      "with too short an expiry of its file",
      { expires_after: { anchor: "created_at", seconds: 60 } },
      "Invalid 'expires_after.seconds': integer below minimum value. Expected a value >= 3600, but got 60 instead.",
      "expires_after.seconds",
      "integer_below_min_value",
    ],
    ["with an unknown field", { foo: 1 }, "Unknown parameter: 'foo'.", "foo", "unknown_parameter"],
  ])("%s is refused", async (_case, more, message, param, code) => {
    const { status, body } = await uploads.post("", uploadRequest({ ...more }));
    expect(status).toBe(400);
    expect(body.error).toEqual({ message, type: "invalid_request_error", param, code });
  });

  test("is named like a file that comes in one piece: without folders, and never by a folder alone", async () => {
    const named = async (filename: string) =>
      (await uploads.post("", uploadRequest({ filename }))).body.filename;
    expect(await named("/home/me/größe.jsonl")).toBe("größe.jsonl");
    expect(await named("..\\in.jsonl")).toBe("in.jsonl");
    for (const folder of ["", ".", "../..", "in/"]) expect(await named(folder)).toBe("upload");
    expect(await named("a\0b\ud800.jsonl")).toBe("a\ufffdb\ufffd.jsonl");
  });

  test("may be as large as the operator allows", async () => {
    await using small = await startTestApi({ limits: { maxUploadBytes: 1_000 } });
    const others = new UploadClient(small);
    expect((await others.post("", uploadRequest({ bytes: 1_000 }))).status).toBe(200);
    const { body } = await others.post("", uploadRequest({ bytes: 1_001 }));
    expect(body.error.code).toBe("integer_above_max_value");
  });
});

describe("an upload that has ended", () => {
  const form = () => {
    const data = new FormData();
    data.set("data", new Blob(["x"]), "upload");
    return data;
  };

  test("as completed takes nothing more, and says which file it became", async () => {
    const { id, parts } = await uploads.pending();
    const fileId = (await uploads.complete(id, parts)).body.file?.id;
    const expected = refusal(`The upload '${id}' is already completed: its file is '${fileId}'.`);
    const before = api.storedFiles();
    expect(await uploads.post(`/${id}/parts`, form())).toMatchObject(expected);
    expect(await uploads.complete(id, parts)).toMatchObject(expected);
    expect(await uploads.post(`/${id}/cancel`)).toMatchObject(expected);
    expect(api.storedFiles()).toEqual(before);
  });

  test("as cancelled takes nothing more, and may be cancelled again", async () => {
    const { id, parts } = await uploads.pending();
    const nudges = api.nudges();
    for (const body of [null, "{}"]) {
      expect(await uploads.post(`/${id}/cancel`, body)).toMatchObject({
        status: 200,
        body: { id, status: "cancelled", file: null },
      });
    }
    expect(api.nudges()).toBe(nudges + 1);
    const expected = refusal(`The upload '${id}' is already cancelled.`);
    expect(await uploads.post(`/${id}/parts`, form())).toMatchObject(expected);
    expect(await uploads.complete(id, parts)).toMatchObject(expected);
  });

  test("by the clock takes nothing more", async () => {
    await using fresh = await startTestApi();
    const others = new UploadClient(fresh);
    const { id, parts } = await others.pending();
    fresh.advance(HOUR_MS);
    const expected = refusal(`The upload '${id}' is already expired.`);
    expect(await others.post(`/${id}/parts`, form())).toMatchObject(expected);
    expect(await others.complete(id, parts)).toMatchObject(expected);
    expect(await others.post(`/${id}/cancel`)).toMatchObject(expected);
  });

  test("has one end, however many ask for it at once", async () => {
    const { id, parts } = await uploads.pending();
    const before = api.storedFiles().length;
    const answers = await Promise.all(Array.from({ length: 5 }, () => uploads.complete(id, parts)));
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
      const id = await uploads.create({ purpose: "user_data", bytes });
      const part = await uploads.addPart(id, Buffer.alloc(bytes));
      const before = bytesWritten();
      await Promise.all(Array.from({ length: 16 }, () => uploads.complete(id, [part])));
      expect(bytesWritten() - before).toBeLessThan(4 * bytes);
    },
  );
});
