/** Every text that a client sends has a bound where it is stored, and where it is repeated; and so has a list. */
import { describe, expect, test } from "vitest";
import { FILE_PAGE } from "../../src/contract/file.ts";
import { PAGE_MAX_BYTES } from "../../src/http/list.ts";
import { presentFile } from "../../src/http/present.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { aBatch, aFile, at, insertFile } from "../support/store-builders.ts";
import { createBatchBody, startTestApi, wireOf } from "../support/test-http.ts";

/** It is as much as fits into the JSON of a request. */
const LONG = "x".repeat(100_000);
/** It is as much as fits into the headers of a request. */
const LONG_IN_HEADER = "x".repeat(8_000);
/** An error with several texts that are shown. */
const ERROR_MAX_BYTES = 4_096;

const api = forAllTests(await startTestApi());

const post = (path: string, body: string | FormData, headers?: Record<string, string>) =>
  api.fetch(path, { method: "POST", body, headers: headers ?? {} });

const uploadOf = (more: object) =>
  JSON.stringify({ filename: "a", purpose: "batch", bytes: 1, mime_type: "text/jsonl", ...more });

function formOf(fields: Record<string, string>, filename = "a.jsonl"): FormData {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.set(name, value);
  form.set("file", new Blob(["{}\n"]), filename);
  return form;
}

test("uploads with long file names store nothing, and lists stay small", async () => {
  await using fresh = await startTestApi();
  const body = uploadOf({ filename: "n".repeat(100_000) });
  const answers = await Promise.all(
    Array.from({ length: 22 }, () => fresh.fetch("/v1/uploads", { method: "POST", body })),
  );
  for (const answer of answers) {
    expect(answer.status).toBe(400);
    expect((await wireOf(answer)).error).toMatchObject({
      message:
        "Invalid 'filename': string too long. Expected a string with maximum length 512, but got a string with length 100000 instead.",
      param: "filename",
      code: "string_above_max_length",
    });
  }
  const megabyte = uploadOf({ filename: "n".repeat(1_000_000) });
  const refused = await fresh.fetch("/v1/uploads", { method: "POST", body: megabyte });
  expect(refused.status).toBe(413);
  const list = await fresh.fetch("/v1/files");
  expect([list.status, (await wireOf(list)).data]).toEqual([200, []]);
});

test("batches over a long id are refused, and the list stays small", async () => {
  for (let i = 0; i < 10; i++) {
    const answer = await post("/v1/batches", createBatchBody(`file-${LONG}`));
    expect((await wireOf(answer)).error).toMatchObject({
      param: "input_file_id",
      code: "string_above_max_length",
    });
  }
  expect((await (await api.fetch("/v1/batches")).text()).length).toBeLessThan(1_000);
});

describe("a text is stored up to its bound, counted in characters", () => {
  test.each([
    [
      "filename of an upload",
      512,
      (text: string) => post("/v1/uploads", uploadOf({ filename: text })),
    ],
    ["mime_type", 255, (text: string) => post("/v1/uploads", uploadOf({ mime_type: text }))],
    ["filename", 512, (text: string) => post("/v1/files", formOf({ purpose: "batch" }, text))],
    [
      "default_model",
      1_024,
      (text: string) =>
        post("/v1/batches", createBatchBody("file-x", { x_batchd: { default_model: text } })),
    ],
    [
      "input_file_id",
      64,
      (text: string) => post("/v1/batches", createBatchBody(`file-${text.slice("file-".length)}`)),
    ],
  ])("%s", async (_, max, send) => {
    for (const character of ["a", "ü"]) {
      expect((await send(character.repeat(max))).status).toBe(200);
      const refused = await send(character.repeat(max + 1));
      expect(refused.status).toBe(400);
      expect((await wireOf(refused)).error.code).toBe("string_above_max_length");
    }
  });

  test("and an emoji is one character", async () => {
    expect((await post("/v1/uploads", uploadOf({ filename: "😀".repeat(512) }))).status).toBe(200);
    const refused = await post("/v1/uploads", uploadOf({ filename: "😀".repeat(513) }));
    expect((await wireOf(refused)).error.message).toContain("with length 513 instead");
  });
});

/** Whatever a client writes where: each gets a short error. */
const ECHOES: Record<string, () => Promise<Response>> = {
  "unknown field": () => post("/v1/batches", createBatchBody("file-x", { [LONG]: 1 })),
  "unknown field of an upload": () => post("/v1/uploads", uploadOf({ [LONG]: 1 })),
  "input file id": () => post("/v1/batches", createBatchBody(LONG)),
  endpoint: () => post("/v1/batches", createBatchBody("file-x", { endpoint: LONG })),
  window: () => post("/v1/batches", createBatchBody("file-x", { completion_window: LONG })),
  "metadata key": () =>
    post("/v1/batches", createBatchBody("file-x", { metadata: { [LONG]: "" } })),
  "metadata key of a wrong value": () =>
    post("/v1/batches", createBatchBody("file-x", { metadata: { [LONG]: 1 } })),
  "metadata value": () => post("/v1/batches", createBatchBody("file-x", { metadata: { k: LONG } })),
  anchor: () =>
    post("/v1/batches", createBatchBody("file-x", { output_expires_after: { anchor: LONG } })),
  "default model": () =>
    post("/v1/batches", createBatchBody("file-x", { x_batchd: { default_model: LONG } })),
  "unknown field of x_batchd": () =>
    post("/v1/batches", createBatchBody("file-x", { x_batchd: { [LONG]: 1 } })),
  "mime type": () => post("/v1/uploads", uploadOf({ mime_type: LONG })),
  "purpose of an upload": () => post("/v1/uploads", uploadOf({ purpose: LONG })),
  "part id": async () => post(`/v1/uploads/${await newUpload()}/complete`, parts([LONG])),
  "part id of the longest": async () =>
    post(`/v1/uploads/${await newUpload()}/complete`, parts(["p".repeat(64)])),
  md5: async () => post(`/v1/uploads/${await newUpload()}/complete`, parts([], { md5: LONG })),
  "purpose of a file": () => post("/v1/files", formOf({ purpose: LONG_IN_HEADER.slice(0, 1_000) })),
  "form field": () => post("/v1/files", formOf({ [LONG_IN_HEADER]: "x" })),
  "form value": () => post("/v1/files", formOf({ "expires_after[anchor]": LONG })),
  "file name": () => post("/v1/files", formOf({ purpose: "batch" }, LONG_IN_HEADER)),
  "content type": () => post("/v1/files", "x", { "content-type": `text/${LONG_IN_HEADER}` }),
  "JSON body": () => post("/v1/batches", `{"${LONG}`),
  model: () => post("/v1/chat/completions", JSON.stringify({ model: LONG, messages: [] })),
  deployment: () => post(`/openai/deployments/${LONG_IN_HEADER}/chat/completions`, "{}"),
  "idempotency key": () =>
    post("/v1/batches", createBatchBody("file-x"), { "idempotency-key": LONG_IN_HEADER }),
  "path of nothing": () => api.fetch(`/${LONG_IN_HEADER}`),
  "path of nothing under /v1": () => api.fetch(`/v1/${LONG_IN_HEADER}`),
  method: () => api.fetch(`/v1/files/${LONG_IN_HEADER}`, { method: "PUT" }),
  "file id": () => api.fetch(`/v1/files/file-${LONG_IN_HEADER}`),
  "file id of a content": () => api.fetch(`/v1/files/file-${LONG_IN_HEADER}/content`),
  "batch id": () => api.fetch(`/v1/batches/batch_${LONG_IN_HEADER}`),
  "id of no batch": () => api.fetch(`/v1/batches/${LONG_IN_HEADER}`),
  "upload id": () => post(`/v1/uploads/${LONG_IN_HEADER}/cancel`, ""),
  "model id": () => api.fetch(`/v1/models/${LONG_IN_HEADER}`),
  "cursor of files": () => api.fetch(`/v1/files?after=${LONG_IN_HEADER}`),
  "cursor of batches": () => api.fetch(`/v1/batches?after=${LONG_IN_HEADER}`),
  "purpose filter": () => api.fetch(`/v1/files?purpose=${LONG_IN_HEADER}`),
  order: () => api.fetch(`/v1/files?order=${LONG_IN_HEADER}`),
  limit: () => api.fetch(`/v1/files?limit=${"9".repeat(8_000)}`),
};

const pairs = (count: number, value: unknown) =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, value]));

describe("a body of many small members is refused before each is looked at", () => {
  test.each([
    [
      "metadata",
      "object_above_max_properties",
      () => post("/v1/batches", createBatchBody("file-x", { metadata: pairs(9_000, 1) })),
    ],
    [
      null,
      "object_above_max_properties",
      () => post("/v1/batches", JSON.stringify(pairs(9_000, 1))),
    ],
    [
      "part_ids",
      "array_above_max_length",
      async () => post(`/v1/uploads/${await newUpload()}/complete`, parts(Array(400_000).fill(1))),
    ],
  ])("%s", async (param, code, send) => {
    const answer = await send();
    const { error } = await wireOf(answer);
    expect([answer.status, error.param, error.code]).toEqual([400, param, code]);
    expect(error.message).toMatch(/too (?:many|long)/);
  });
});

const parts = (part_ids: readonly unknown[], more: object = {}) =>
  JSON.stringify({ part_ids, ...more });

const newUpload = async () => (await wireOf(await post("/v1/uploads", uploadOf({})))).id;

test.each(Object.entries(ECHOES))("an error does not repeat a long text: %s", async (_, send) => {
  const answer = await send();
  expect(answer.status).toBeGreaterThanOrEqual(400);
  expect(answer.status).toBeLessThan(500);
  const text = await answer.text();
  expect(text.length).toBeLessThan(ERROR_MAX_BYTES);
  expect(JSON.parse(text).error.message).not.toBe("");
});

test("an error never cuts a character in two: strict clients could not read it", async () => {
  for (const prefix of ["", "x"]) {
    const answer = await api.fetch(`/v1/files/${prefix}${encodeURIComponent("😀".repeat(300))}`);
    expect((await wireOf(answer)).error.message.isWellFormed()).toBe(true);
  }
});

describe("a page is bounded in bytes", () => {
  /** It has 60 kB on the wire. It is longer than any name that is accepted, so that few of them are needed. */
  const NAME = "😀".repeat(5_000);

  test("clients that follow the cursor get every file, in order", async () => {
    await using full = await startTestApi();
    const files = Array.from({ length: 150 }, () => aFile({ filename: NAME }));
    for (const file of files) await insertFile(full.store, file);
    for (const order of ["asc", "desc"] as const) {
      const first = await (await full.fetch(`/v1/files?order=${order}`)).text();
      expect(first.length).toBeLessThan(PAGE_MAX_BYTES + 1_000);
      expect(JSON.parse(first).has_more).toBe(true);
      const seen: string[] = [];
      for await (const file of full.client.files.list({ order })) seen.push(file.id);
      const ids = files.map(({ id }) => id);
      expect(seen).toEqual(order === "asc" ? ids : ids.toReversed());
    }
  });

  test("clients that follow the cursor get every batch", async () => {
    await using full = await startTestApi();
    const key = (i: number) => "😀".repeat(60) + String(i).padStart(4, "0");
    const metadata = Object.fromEntries(
      Array.from({ length: 16 }, (_, i) => [key(i), "😀".repeat(512)]),
    );
    const batches = Array.from({ length: 100 }, () => aBatch({ metadata }));
    for (const batch of batches) await full.store.insertBatch(batch);
    const first = await (await full.fetch("/v1/batches?limit=100")).text();
    expect(first.length).toBeLessThan(PAGE_MAX_BYTES + 1_000);
    const seen: string[] = [];
    for await (const batch of full.client.batches.list({ limit: 100 })) seen.push(batch.id);
    expect(seen).toEqual(batches.map(({ id }) => id).toReversed());
  });

  test("a file that is removed while its page is read ends nothing", async () => {
    await using full = await startTestApi();
    const files = Array.from({ length: 50 }, () => aFile());
    for (const file of files) await insertFile(full.store, file);
    const { store } = full;
    const removed: string[] = [];
    const listFiles = store.listFiles.bind(store);
    store.listFiles = async (query) => {
      const page = await listFiles(query);
      const last = page?.data.at(-1);
      if (last !== undefined && removed.length < 2) {
        await at(store, 0).deleteFileIfPresent(last);
        await store.forgetFiles([last.id]);
        removed.push(last.id);
      }
      return page;
    };
    const { data, has_more } = await wireOf(await full.fetch("/v1/files"));
    expect(removed).toHaveLength(2);
    expect([data.map(({ id }) => id), has_more]).toEqual([
      files.map(({ id }) => id).toReversed(),
      false,
    ]);
  });

  test("and one that is larger than a page still comes, by itself", async () => {
    await using full = await startTestApi();
    const files = Array.from({ length: 3 }, () => aFile({ filename: "n".repeat(5_000_000) }));
    for (const file of files) await insertFile(full.store, file);
    const seen: string[] = [];
    for await (const file of full.client.files.list()) seen.push(file.id);
    expect(seen).toEqual(files.map(({ id }) => id).toReversed());
  });

  test("a page of files with ordinary names holds as many as were asked for", () => {
    const file = presentFile(aFile({ filename: "an-ordinary-name-of-a-file-of-some-batch.jsonl" }));
    expect(JSON.stringify(file).length * FILE_PAGE.max).toBeLessThan(PAGE_MAX_BYTES);
  });
});
