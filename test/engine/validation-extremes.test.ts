/** Input at its worst, by the front door: each has one defined answer, and none of them takes the memory of the server. */
import type OpenAI from "openai";
import { describe, expect, test } from "vitest";
import type { BatchEndpoint } from "../../src/contract/batch.ts";
import { createBatch } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));

type Endpoint = OpenAI.BatchCreateParams["endpoint"];

/** Uploads exactly these bytes. */
async function uploadBytes(content: string | Buffer, purpose = "batch") {
  const form = new FormData();
  form.set("purpose", purpose);
  form.set(
    "file",
    new Blob([typeof content === "string" ? content : new Uint8Array(content)]),
    "input.jsonl",
  );
  const response = await fetch(`${service.url}/v1/files`, { method: "POST", body: form });
  const body = (await response.json()) as { id: string; error: { message: string } };
  return { status: response.status, id: body.id, refusal: body.error?.message };
}

async function runBytes(content: string | Buffer, endpoint: Endpoint = "/v1/chat/completions") {
  const { id } = await uploadBytes(content);
  const batch = await createBatch(service.openai, id, { endpoint });
  return service.ended(batch.id);
}

const faultsOf = (batch: OpenAI.Batch) =>
  batch.errors?.data?.map(({ line, code, param }) => [line, code, param]);

const lineTo = (url: string, body: object, customId = "a") =>
  JSON.stringify({ custom_id: customId, method: "POST", url, body: { model: "m", ...body } });

/** The body of the latest request that the model server got for this line. */
const received = (line: string) => {
  const requests = upstream.seen.filter(({ body }) => body.includes(`"${line}"`));
  return requests.at(-1)?.body;
};

const TITLES: Readonly<Record<BatchEndpoint, string>> = {
  "/v1/chat/completions": "Chat Completions",
  "/v1/completions": "Completions",
  "/v1/embeddings": "Embeddings",
  "/v1/responses": "Responses",
  "/v1/moderations": "Moderations",
  "/v1/images/generations": "Images",
  "/v1/images/edits": "Images",
  "/v1/videos": "Videos",
};

describe("a streamed answer cannot be batched", () => {
  test.each(Object.entries(TITLES))("on %s", async (endpoint, title) => {
    const line = lineTo(endpoint, { messages: [], stream: true });

    const batch = await runBytes(line, endpoint as Endpoint);

    expect(batch.errors).toEqual({
      object: "list",
      data: [
        {
          code: "streaming_unsupported",
          message: `${title}: Streaming is not supported in the Batch API.`,
          param: "body.stream",
          line: 1,
        },
      ],
    });
  });

  test("but `stream` may be false or null, and goes to the model as it was written", async () => {
    const lines = ["false", "null"].map((stream) =>
      chatLine(`stream-${stream}`, "Hello").replace('"user":', `"stream": ${stream}, "user":`),
    );

    const batch = await service.run(lines);

    expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
    expect(received("stream-false")).toContain('"stream": false,');
    expect(received("stream-null")).toContain('"stream": null,');
  });
});

describe("inputs to embed are counted over all lines", () => {
  const embeddings = (inputs: readonly unknown[]) =>
    inputs.map((input, i) => lineTo("/v1/embeddings", { input }, `e-${i}`));

  test("of which 50,000 are allowed unless told otherwise", async () => {
    const lines = embeddings([Array.from({ length: 50_000 }, (_, i) => `t${i}`), "one more"]);
    const batch = await runBytes(lines.join("\n"), "/v1/embeddings");
    expect(faultsOf(batch)).toEqual([[null, "too_many_inputs", null]]);
  });
});

describe("bytes that are not text", () => {
  const line = chatLine("a", "Hello");

  test("a byte order mark is taken at upload and makes line 1 unreadable", async () => {
    const batch = await runBytes(`\ufeff${line}\n${chatLine("b", "Hello")}`);
    expect(faultsOf(batch)).toEqual([[1, "invalid_json_line", null]]);
    expect(batch.errors?.data?.[0]?.message).toContain("begins with a byte order mark");
  });

  test.each([
    ["a byte that begins nothing", Buffer.from([0xff])],
    ["half a character", Buffer.from([0xe2, 0x82])],
    ["a surrogate", Buffer.from([0xed, 0xa0, 0x80])],
    ["a spelling that is too long", Buffer.from([0xc0, 0x80])],
    ["Latin-1", Buffer.from("é", "latin1")],
  ])("%s is refused at upload, wherever it stands", async (_case, bytes) => {
    for (const content of [
      Buffer.concat([bytes, Buffer.from(line)]),
      Buffer.concat([Buffer.from(`${line}\n`), bytes]),
      Buffer.concat([Buffer.from(`${line}\n${"x".repeat(200_000)}`), bytes, Buffer.from("y\n")]),
    ]) {
      const { status, refusal } = await uploadBytes(content);
      expect([status, refusal]).toEqual([400, "Invalid file for Batch API. Must be utf-8 encoded"]);
    }
    expect((await uploadBytes(bytes, "user_data")).status).toBe(200);
  });

  test("NUL is no JSON: refused at upload in the first line, a bad line elsewhere", async () => {
    const torn = line.replace("Hello", "He\0llo");
    expect((await uploadBytes(torn)).refusal).toContain(
      "Invalid file format for Batch API. Must be .jsonl",
    );
    const batch = await runBytes(`${line}\n${torn}\n\0\0\0\n`);
    expect(faultsOf(batch)).toEqual([
      [2, "invalid_json_line", null],
      [3, "invalid_json_line", null],
    ]);
  });

  test.each([
    "\\u0000",
    "\\ud800",
    "\\udfff\\ud800",
    "\\ud83d\\ude00",
    "\u{1f600}",
    "\\/",
    "\u007f",
  ])("%j in a custom_id comes back as it was written", async (text) => {
    const batch = await runBytes(chatLine("ID", "Hello").replace('"ID"', `"${text}"`));
    expect(batch.request_counts?.completed).toBe(1);
    expect(await service.text(batch.output_file_id)).toContain(`"custom_id":"${text}"`);
  });
});

describe("JSON that is legal and strange runs, byte for byte", () => {
  const bodyWith = (id: string, extra: string) =>
    `{"model":"test-model","messages":[{"role":"user","content":"[[big 300]]"}],"user":"${id}",${extra}}`;
  const lineWith = (id: string, body: string) =>
    `{"custom_id":"${id}","method":"POST","url":"/v1/chat/completions","body":${body}}`;

  test.each([
    ["100,000 nested lists", "deep", `"x":${"[".repeat(60_000)}${"]".repeat(60_000)}`],
    ["100,000 nested objects", "deeper", `"x":${'{"a":'.repeat(100_000)}1${"}".repeat(100_000)}`],
    ["a number beyond all numbers", "huge", '"x":[1e999,-1E+999,0.1e-999]'],
    ["integers over 2^53", "exact", '"seed":9007199254740993'],
    ["names of prototypes", "proto", '"__proto__":{"a":1},"constructor":{"prototype":null}'],
    ["lone surrogates", "lone", '"x":"\\ud800 and \\udfff"'],
  ])("%s", async (_case, id, extra) => {
    const body = bodyWith(id, extra);

    const batch = await runBytes(lineWith(id, body));

    expect(batch.request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
    expect(received(id)).toBe(body);
  });

  test("but not with NaN, which Python takes for JSON: upload and batch say so", async () => {
    const torn = lineWith("b", bodyWith("b", '"temperature":NaN'));
    expect((await uploadBytes(torn)).refusal).toContain("(HINT: Line 1 is JSON but for NaN or");
    const batch = await runBytes(`${chatLine("a", "Hello")}\n${torn}\n[${torn}]\n[]\n`);
    expect(batch.errors?.data?.map(({ message }) => message)).toEqual([
      expect.stringContaining("valid JSON. (HINT: It is JSON but for NaN or Infinity, which"),
      expect.stringContaining("valid JSON. (HINT: It is JSON but for NaN or Infinity, which"),
      expect.stringContaining("valid JSON. (HINT: It is JSON, but not an object."),
    ]);
  });

  test("but not when its brackets do not close", async () => {
    const batch = await runBytes(
      `${chatLine("a", "Hello")}\n${lineWith("b", bodyWith("b", `"x":${"[".repeat(100_000)}`))}`,
    );
    expect(faultsOf(batch)).toEqual([[2, "invalid_json_line", null]]);
  });

  test("the last of several equal keys counts", async () => {
    const body = bodyWith("twice", '"stream":true,"stream":false');
    const line = `{"custom_id":"no","custom_id":"twice","__proto__":{"url":"no"},"method":"GET","method":"POST","url":"/v1/embeddings","url":"/v1/chat/completions","body":{"model":"no"},"body":${body}}`;

    const batch = await runBytes(`${line}\n${chatLine("no", "Hello")}`);

    expect(batch).toMatchObject({ model: "test-model", request_counts: { completed: 2 } });
    expect(received("twice")).toBe(body);
    const rows = await service.rows(batch.output_file_id);
    expect(rows.map((row) => row.custom_id)).toEqual(["twice", "no"]);
  });
});

describe("the JSON of a new batch", () => {
  const base = '"input_file_id":"file-x","endpoint":"/v1/embeddings","completion_window":"24h"';
  const create = async (more: string) => {
    const body = `{${base},${more}}`;
    const response = await fetch(`${service.url}/v1/batches`, { method: "POST", body });
    return { status: response.status, body: (await response.json()) as OpenAI.Batch };
  };

  test("may be deep, huge or about prototypes, and is answered all the same", async () => {
    const deep = `"metadata":{"a":${"[".repeat(60_000)}${"]".repeat(60_000)}}`;
    const expiry = (seconds: string) =>
      `"output_expires_after":{"anchor":"created_at","seconds":${seconds}}`;
    for (const more of [deep, expiry("1e999"), expiry("1e300"), '"__proto__":{"a":1}']) {
      expect((await create(more)).status, more.slice(0, 60)).toBe(400);
    }
    const { body } = await create(
      '"metadata":{"a":"1","a":"2","__proto__":"no","constructor":"b","c":"\\ud800"}',
    );
    expect(Object.entries(body.metadata ?? {}).sort()).toEqual([
      ["__proto__", "no"],
      ["a", "2"],
      ["c", "\ud800"],
      ["constructor", "b"],
    ]);
  });
});
