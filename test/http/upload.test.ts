import { createHash } from "node:crypto";
import { gzipSync } from "node:zlib";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import {
  BOUNDARY,
  multipart,
  type Part,
  RawConnection,
  rawRequest,
  uploadRequest,
} from "../support/raw-http.ts";
import { chatLine, startTestApi, wireOf } from "../support/test-http.ts";

const MAX_BYTES = 300_000;

const api = forAllTests(await startTestApi({ limits: { maxFileBytes: MAX_BYTES } }));

const LINE = chatLine("a");
const purpose = (value = "batch"): Part => ({ name: "purpose", content: value });
const file = (content = LINE, more: Partial<Part> = {}): Part => ({
  name: "file",
  filename: "input.jsonl",
  content,
  ...more,
});

async function upload(parts: readonly Part[]) {
  const { status, body } = await rawRequest(api.url, uploadRequest(multipart(parts)));
  return { status, body: JSON.parse(body) };
}

async function contentOf(id: string): Promise<string> {
  const response = await api.fetch(`/v1/files/${id}/content`);
  return Buffer.from(await response.arrayBuffer()).toString("latin1");
}

/** The refusal of a request that must leave nothing behind. */
async function refusalOf(request: string) {
  const before = api.storedFiles();
  const { status, headers, body } = await rawRequest(api.url, request);
  await expect.poll(() => api.storedFiles()).toEqual(before);
  expect(headers["content-type"]).toBe("application/json");
  const { error } = JSON.parse(body);
  expect(Object.keys(error)).toEqual(["message", "type", "param", "code"]);
  expect(error.type).toBe("invalid_request_error");
  return { status, ...error } as { status: number; message: string; param: unknown; code: unknown };
}

const refusalOfParts = (parts: readonly Part[]) => refusalOf(uploadRequest(multipart(parts)));

describe("an upload", () => {
  test("takes a chunked body without a length, cut anywhere", async () => {
    const body = multipart([file(), purpose()]);
    using connection = await RawConnection.open(api.url);
    connection.send(
      `POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary=${BOUNDARY}\r\n\r\n`,
    );
    for (const byte of body) connection.send(`1\r\n${byte}\r\n`);
    connection.send("0\r\n\r\n");
    const answer = await connection.answer();
    expect(answer.status).toBe(200);
    expect(await contentOf(JSON.parse(answer.body).id)).toBe(LINE);
  });

  test("keeps every byte, also what looks like a boundary", async () => {
    const content = `${LINE}\r\n--${BOUNDARY.slice(0, -1)}\r\n${"x".repeat(100_000)}\r\n\r\n--`;
    const { body } = await upload([file(content), purpose()]);
    expect(await contentOf(body.id)).toBe(content);
    const stored = await api.store.findFile({ project: "default", id: body.id });
    expect(stored?.sha256).toBe(createHash("sha256").update(content, "latin1").digest("hex"));
  });

  test("takes names in UTF-8, without their folders, and does without a name", async () => {
    const named = async (filename: string) => {
      const bytes = Buffer.from(filename).toString("latin1");
      return (await upload([file(LINE, { filename: bytes }), purpose()])).body.filename;
    };
    expect(await named("größe €.jsonl")).toBe("größe €.jsonl");
    expect(await named("/home/me/in.jsonl")).toBe("in.jsonl");
    expect(await named("C:\\\\in.jsonl")).toBe("in.jsonl");
    expect(await named("in/..")).toBe("upload");
    expect(await named("")).toBe("upload");
    const { body } = await upload([{ name: "file", content: LINE }, purpose()]);
    expect(body.filename).toBe("upload");
  });

  test("reads quotation marks in names, as browsers and the SDKs send them", async () => {
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new File([LINE], 'the "new" 100%.jsonl'));
    const created = await api.fetch("/v1/files", { method: "POST", body: form });
    expect(await created.json()).toMatchObject({ filename: 'the "new" 100%.jsonl' });
  });

  test("takes names in words of RFC 2047, as clients of Java and .NET send them", async () => {
    const named = async (filename: string) =>
      (await upload([file(LINE, { filename }), purpose()])).body.filename;
    expect(await named("=?UTF-8?Q?gr=C3=B6=C3=9Fe_1.jsonl?=")).toBe("größe 1.jsonl");
    expect(await named("=?UTF-8?Q?gr=C3=B6?= =?UTF-8?Q?=C3=9Fe.jsonl?=")).toBe("größe.jsonl");
    expect(await named("=?utf-8?B?Pz8/w7wuanNvbmw=?=")).toBe("???ü.jsonl");
    expect(await named("=?utf-8?Q?=2E=2E=2Fin.jsonl?=")).toBe("in.jsonl");
    expect(await named("a=?b.jsonl")).toBe("a=?b.jsonl");
    expect(await named("=?utf-8?Q?a=00b.jsonl?=")).toBe("a\ufffdb.jsonl");
  });

  test("may have a first line that is longer than what is checked at once", async () => {
    const content = `{"custom_id":"${"x".repeat(MAX_BYTES - 200)}"}\nnot json`;
    expect((await upload([purpose(), file(content)])).status).toBe(200);
  });

  test("takes a form whose Content-Encoding names a charset or nothing, and no compression", async () => {
    for (const coding of ["utf-8", "identity", ""]) {
      const headers = {
        "content-type": `multipart/form-data; boundary=${BOUNDARY}`,
        "content-encoding": coding,
      };
      const init = { method: "POST", headers, body: multipart([purpose(), file()]) };
      expect((await api.fetch("/v1/files", init)).status, coding).toBe(200);
    }
  });

  test("may be exactly as large as allowed, and not a byte larger", async () => {
    const content = `{}\n${" ".repeat(MAX_BYTES - 3)}`;
    expect((await upload([purpose(), file(content)])).status).toBe(200);
    expect(await refusalOfParts([purpose(), file(`${content} `)])).toMatchObject({
      status: 400,
      message: expect.stringMatching(
        new RegExp(
          `^File is too large\\. It may have at most ${MAX_BYTES} bytes \\(.+ MiB\\); the request has \\d+\\.$`,
        ),
      ),
      param: null,
      code: null,
    });
  });
});

describe("an upload of another purpose", () => {
  const large = file("x".repeat(MAX_BYTES + 1));

  test("may be larger than batch input, which may not be if its purpose follows it, either", async () => {
    const { status, body } = await upload([purpose("user_data"), large]);
    expect([status, body.bytes]).toEqual([200, MAX_BYTES + 1]);
    expect((await upload([large, purpose("user_data")])).status).toBe(200);
    const { message } = await refusalOfParts([large, purpose()]);
    expect(message).toContain(`File is too large. It may have at most ${MAX_BYTES} bytes`);
  });
});

describe("an upload of batch input is refused", () => {
  const notJsonl = (hint: string) =>
    expect.stringContaining(`Invalid file format for Batch API. Must be .jsonl (HINT: ${hint}`);
  const NOT_UTF8 = "Invalid file for Batch API. Must be utf-8 encoded";

  test.each([
    ["with blank lines only", "\n\r\n \n", notJsonl("The file has only blank lines.")],
    [
      "that is a name in place of its file",
      "./data/in.jsonl",
      notJsonl("Line 1 is the name of a file"),
    ],
    ["that is CSV", "id,prompt\n1,Hi\n", notJsonl("Line 1 looks like CSV.")],
    ["that ends inside a character", `${LINE}{"a":"\xe2\x82`, NOT_UTF8],
  ])("%s", async (_case, content, message) => {
    for (const parts of [
      [purpose(), file(content)],
      [file(content), purpose()],
    ]) {
      const refusal = await refusalOfParts(parts);
      expect(refusal).toMatchObject({ status: 400, message, param: null, code: null });
    }
  });
});

describe("an upload is refused", () => {
  const anchor = (content: string): Part => ({ name: "expires_after[anchor]", content });
  const seconds = (content: string): Part => ({ name: "expires_after[seconds]", content });

  test.each<[string, Part[], string, string | null]>([
    ["without anything", [], "'purpose' is a required property", null],
    [
      "with an unknown field behind the file",
      [purpose(), file(), { name: "xyz", content: "1" }],
      "Additional properties are not allowed ('xyz' was unexpected)",
      null,
    ],
    [
      "with an expiry in one field",
      [purpose(), { name: "expires_after", content: '{"anchor":"created_at"}' }, file()],
      "Additional properties are not allowed ('expires_after' was unexpected) (HINT: Send a field for each member: expires_after[anchor], expires_after[seconds].)",
      null,
    ],
    [
      "with an expiry whose members have dots",
      [purpose(), { name: "expires_after.anchor", content: "created_at" }, file()],
      "Additional properties are not allowed ('expires_after.anchor' was unexpected) (HINT: Send a field for each member: expires_after[anchor], expires_after[seconds].)",
      null,
    ],
    [
      "with two files",
      [purpose(), file(), file()],
      "Only one 'file' can be uploaded in a request.",
      null,
    ],
    [
      "with a file under another name",
      [purpose(), file(LINE, { name: "data" })],
      "Additional properties are not allowed ('data' was unexpected)",
      null,
    ],
    [
      "with a field that came as a file",
      [{ ...purpose(), filename: "purpose" }, file()],
      "'purpose' came as a file. (HINT: Send it as a field, a part without a filename.)",
      null,
    ],
    [
      "with a field that is too long",
      [purpose("batch".padEnd(5_000)), file()],
      "The value of 'purpose' is too long.",
      null,
    ],
    [
      "with an expiry that is no number",
      [purpose(), anchor("created_at"), seconds("1h"), file()],
      "Invalid type for 'expires_after[seconds]': expected an integer, but got a string instead.",
      "expires_after[seconds]",
    ],
    [
      "with half an expiry",
      [purpose(), seconds("3600"), file()],
      "Missing required parameter: 'expires_after[anchor]'.",
      "expires_after[anchor]",
    ],
    [
      "with two purposes",
      [purpose(), purpose("vision"), file()],
      "Invalid 'purpose': it may be given once only.",
      "purpose",
    ],
  ])("%s", async (_case, parts, message, param) => {
    expect(await refusalOfParts(parts)).toMatchObject({ status: 400, message, param });
  });

  test("when it is not multipart, or names no boundary", async () => {
    const body = multipart([purpose(), file()]);
    for (const type of [
      "application/json",
      "application/x-www-form-urlencoded",
      "multipart/mixed; boundary=x",
      "multipart/form-data",
      "multipart/form-data; boundary=",
      "multipart/form-data; charset=utf-8",
    ]) {
      expect((await refusalOf(uploadRequest(body, { type }))).status, type).toBe(400);
    }
  });

  test("when it has a part without a name, and is told which there are", async () => {
    const body = multipart([purpose(), file()]);
    for (const name of [' name="file";', ' name="purpose"']) {
      expect(await refusalOf(uploadRequest(body.replace(name, "")))).toMatchObject({
        status: 400,
        message:
          "A part of the form has no name. (HINT: The names are 'file', 'purpose', 'expires_after[anchor]', 'expires_after[seconds]'.)",
      });
    }
  });

  test("when the name of its file has a line break, and is told so", async () => {
    const named = "filename*=UTF-8''a%0d%0ab.jsonl";
    const body = multipart([purpose(), file()]).replace('filename="input.jsonl"', named);
    expect((await refusalOf(uploadRequest(body))).message).toContain("has a line break in a name");
  });

  test("when a header written by hand has no boundary, and is told to leave it out", async () => {
    const body = multipart([purpose(), file()]);
    const { message } = await refusalOf(uploadRequest(body, { type: "multipart/form-data" }));
    expect(message).toMatch(/must name its boundary\. \(HINT: HTTP libraries make this header/);
  });

  test.each([
    ["a form", multipart([purpose(), file()])],
    ["a large form", multipart([purpose(), file(LINE.repeat(5_000))])],
    ["the file itself", LINE.repeat(2)],
    ["JSON for a form", JSON.stringify({ purpose: "batch", file: "a" })],
  ])("when it has the type of JSON, and is told so: %s", async (_case, body) => {
    const refusal = await refusalOf(uploadRequest(body, { type: "application/json" }));
    expect(refusal.status).toBe(400);
    expect(refusal.message).toMatch(
      /^A file is uploaded as multipart\/form-data, not as 'application\/json'\. \(HINT: /,
    );
  });

  test("when it has no type at all, and is told so", async () => {
    const answer = await api.fetch("/v1/files", { method: "POST", body: Buffer.from("a") });
    expect(answer.status).toBe(400);
    const { message } = (await wireOf(answer)).error;
    expect(message).toBe(
      "A file is uploaded as multipart/form-data, and this request has no Content-Type.",
    );
  });

  test("when the whole form came compressed, and is told so", async () => {
    const form = gzipSync(multipart([purpose(), file()]));
    for (const headers of [{ "content-encoding": "gzip" }, { "content-encoding": "br, gzip" }]) {
      const type = { "content-type": `multipart/form-data; boundary=${BOUNDARY}` };
      const init = { method: "POST", headers: { ...type, ...headers }, body: form };
      const answer = await api.fetch("/v1/files", init);
      expect(answer.status).toBe(400);
      const { error } = await wireOf(answer);
      expect(error.param).toBe("Content-Encoding");
      expect(error.message).toContain(headers["content-encoding"]);
    }
  });

  test("when the form ends before its end", async () => {
    const whole = multipart([purpose(), file()]);
    for (const body of ["", "no form at all", whole.slice(0, -4), whole.slice(0, 150)]) {
      expect((await refusalOf(uploadRequest(body))).status, body).toBe(400);
    }
  });

  test("when its lines end with line feeds alone, and is told so", async () => {
    const body = multipart([purpose(), file()]).replaceAll("\r\n", "\n");
    const { status, message } = await refusalOf(uploadRequest(body));
    expect([status, message]).toEqual([400, expect.stringContaining("must end with CRLF")]);
  });

  test("when it has ever more parts", async () => {
    const refusal = (length: number) => refusalOfParts(Array.from({ length }, () => purpose()));
    const fields = { status: 400, message: "The form has too many fields." };
    expect(await refusal(40)).toMatchObject(fields);
    expect(await refusal(100)).toMatchObject({
      ...fields,
      message: "The form has too many parts.",
    });
  });
});

describe("an upload never hangs", () => {
  test("wherever its form is cut off, and however it is damaged", async () => {
    const whole = multipart([
      purpose(),
      file(`${LINE}${LINE}`, { headers: ["Content-Type: text/plain"] }),
    ]);
    const broken = Array.from({ length: 300 }, (_, i) => {
      const at = Math.floor((i / 300) * whole.length);
      return i % 2 === 0 ? whole.slice(0, at) : `${whole.slice(0, at)}\r\n${whole.slice(at + 3)}`;
    });
    const statuses = new Set<number>();
    for (const body of broken) {
      const { status } = await rawRequest(api.url, uploadRequest(body));
      statuses.add(status);
    }
    expect([...statuses].filter((status) => status !== 200 && status !== 400)).toEqual([]);
    expect(statuses).toContain(400);
  });

  test("and its refusal is seen by a client that goes on sending", async () => {
    using connection = await RawConnection.open(api.url);
    connection.send(uploadRequest(multipart([purpose(), file("x".repeat(20_000_000))])));
    const answer = await connection.answer();
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.body).error.message).toContain("File is too large.");
    // What was left of the refused request is not taken for the next one.
    connection.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    expect((await connection.answer()).status).toBe(200);
  });

  test("and leaves nothing when the client goes away", async () => {
    const before = api.storedFiles();
    const connection = await RawConnection.open(api.url);
    const body = multipart([purpose(), file(LINE.repeat(1_000))], { isClosed: false });
    connection.send(uploadRequest(body, { length: 10_000_000 }));
    await expect.poll(() => api.storedFiles().length).toBe(before.length + 1);
    connection.socket.destroy();
    await expect.poll(() => api.storedFiles()).toEqual(before);
  });
});
