import { createReadStream, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI, { toFile } from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { chatLine, startTestApi, type TestApi } from "../support/test-http.ts";

let api: TestApi;
let client: OpenAI;
const folder = mkdtempSync(join(tmpdir(), "batchd-sdk-"));
const inputPath = join(folder, "requests.jsonl");
const CONTENT = `${chatLine("a")}${chatLine("b")}`;

beforeAll(async () => {
  writeFileSync(inputPath, CONTENT);
  api = await startTestApi({ models: [{ id: "meta/llama", ownedBy: "gpu" }] });
  client = api.client;
});
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

const uploadStream = () =>
  client.files.create({ file: createReadStream(inputPath), purpose: "batch" });

describe("the official SDK", () => {
  test("uploads a stream, which has no length and comes before its purpose", async () => {
    const file = await uploadStream();
    expect(file).toMatchObject({
      object: "file",
      filename: "requests.jsonl",
      bytes: CONTENT.length,
      purpose: "batch",
      status: "processed",
    });
    expect(file._request_id).toMatch(/^req_[0-9a-f]{32}$/);
    expect(await (await client.files.content(file.id)).text()).toBe(CONTENT);
  });

  test("uploads bytes with an expiry", async () => {
    const file = await client.files.create({
      file: await toFile(Buffer.from(CONTENT), "in.jsonl"),
      purpose: "batch",
      expires_after: { anchor: "created_at", seconds: 3_600 },
    });
    expect(file.expires_at).toBe(file.created_at + 3_600);
  });

  test("waits for the processing of a file, which is over at once", async () => {
    const { id } = await uploadStream();
    expect((await client.files.waitForProcessing(id, { maxWait: 1_000 })).status).toBe("processed");
  });

  test("finds, lists page by page, and deletes files", async () => {
    await using fresh = await startTestApi();
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) {
      const file = await toFile(Buffer.from(CONTENT), `${i}.jsonl`);
      ids.push((await fresh.client.files.create({ file, purpose: "batch" })).id);
    }
    const listed: string[] = [];
    for await (const each of fresh.client.files.list({ limit: 2, order: "asc" })) {
      listed.push(each.id);
    }
    expect(listed).toEqual(ids);
    const [first = ""] = ids;
    expect((await fresh.client.files.retrieve(first)).id).toBe(first);
    expect(await fresh.client.files.delete(first)).toMatchObject({ id: first, deleted: true });
    await expect(fresh.client.files.retrieve(first)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  });

  test("creates, finds, lists and cancels batches", async () => {
    await using fresh = await startTestApi();
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) {
      const batch = await fresh.client.batches.create({
        input_file_id: "file-x",
        endpoint: "/v1/chat/completions",
        completion_window: "24h",
        metadata: { i: String(i) },
      });
      ids.unshift(batch.id);
    }
    const listed: string[] = [];
    for await (const each of fresh.client.batches.list({ limit: 2 })) listed.push(each.id);
    expect(listed).toEqual(ids);
    const [newest = ""] = ids;
    expect((await fresh.client.batches.retrieve(newest)).metadata).toEqual({ i: "4" });
    expect((await fresh.client.batches.cancel(newest)).status).toBe("cancelling");
  });

  test("finds a model whose name has a slash", async () => {
    expect((await client.models.retrieve("meta/llama")).owned_by).toBe("gpu");
    const names: string[] = [];
    for await (const model of client.models.list()) names.push(model.id);
    expect(names).toEqual(["meta/llama"]);
  });

  test("understands every refusal", async () => {
    const refusal = await client.batches
      .create({
        input_file_id: "file-x",
        endpoint: "/v1/invalid" as "/v1/embeddings",
        completion_window: "24h",
      })
      .catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(OpenAI.BadRequestError);
    expect(refusal).toMatchObject({
      status: 400,
      code: "invalid_value",
      param: "endpoint",
      type: "invalid_request_error",
      requestID: expect.stringMatching(/^req_/),
    });
    await expect(
      client.files.create({ file: await toFile(Buffer.from("no"), "a.txt"), purpose: "batch" }),
    ).rejects.toThrow("400 Invalid file format for Batch API. Must be .jsonl");
  });

  test("asks once, not three times, whether a finished batch may be cancelled", async () => {
    const { id } = await client.batches.create({
      input_file_id: "file-x",
      endpoint: "/v1/embeddings",
      completion_window: "24h",
    });
    const claimed = await api.store.claimBatchToValidate({
      owner: "test",
      nowMs: Date.now(),
      ttlMs: 60_000,
    });
    expect(claimed?.batch.id).toBe(id);
    const failure = { faults: [], announcements: [] };
    await api.store.failBatchIfLeased(claimed!.lease, failure, Date.now());
    const patient = client.withOptions({ maxRetries: 2 });
    await expect(patient.batches.cancel(id)).rejects.toBeInstanceOf(OpenAI.ConflictError);
    expect(api.log.filter((line) => line.includes(`${id}/cancel`))).toHaveLength(1);
  });

  test("speaks to the paths of Azure with a key in their header", async () => {
    await using keyed = await startTestApi({
      keys: [{ name: "a", key: "sk-azure", project: "default" }],
    });
    const azure = new OpenAI({
      baseURL: `${keyed.url}/openai/v1/`,
      apiKey: "unused",
      defaultHeaders: { authorization: null, "api-key": "sk-azure" },
      maxRetries: 0,
    });
    const file = await azure.files.create({ file: createReadStream(inputPath), purpose: "batch" });
    expect((await azure.files.retrieve(file.id)).bytes).toBe(CONTENT.length);
  });
});
