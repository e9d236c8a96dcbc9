/** Azure's ways of speaking the same API: its paths, its key, its version parameter and its endpoints without `/v1`. */
import OpenAI, { AzureOpenAI } from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const KEY = "sk-of-azure-0001";
const API_VERSION = "2025-04-01-preview";

let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  upstream = await startUpstream();
  service = await startTestService({
    upstreamUrl: upstream.url,
    config: { auth: { keys: [{ name: "azure", key: KEY }] } },
  });
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
});

const azureLine = (id: string) => chatLine(id, "Hello").replace("/v1/chat", "/chat");

const clients: [name: string, client: () => OpenAI][] = [
  [
    "AzureOpenAI with an endpoint",
    () =>
      new AzureOpenAI({
        endpoint: service.url,
        apiKey: KEY,
        apiVersion: API_VERSION,
        maxRetries: 0,
      }),
  ],
  [
    "AzureOpenAI with a deployment",
    () =>
      new AzureOpenAI({
        endpoint: service.url,
        apiKey: KEY,
        apiVersion: API_VERSION,
        deployment: "gpt-4o-batch",
        maxRetries: 0,
      }),
  ],
  [
    "AzureOpenAI at /openai/v1",
    () =>
      new AzureOpenAI({
        baseURL: `${service.url}/openai/v1/`,
        apiKey: KEY,
        apiVersion: "preview",
        maxRetries: 0,
      }),
  ],
  [
    "OpenAI at /openai/v1",
    () => new OpenAI({ baseURL: `${service.url}/openai/v1/`, apiKey: KEY, maxRetries: 0 }),
  ],
];

describe.each(clients)("%s", (_name, open) => {
  test("uploads, runs, lists, reads and deletes", async () => {
    const client = open();
    const lines = [azureLine("a"), chatLine("b", "Hello")];
    const input = await client.files.create({
      file: new File([`${lines.join("\n")}\n`], "input.jsonl"),
      purpose: "batch",
    });

    const created = await client.batches.create({
      input_file_id: input.id,
      endpoint: "/chat/completions" as "/v1/chat/completions",
      completion_window: "24h",
    });

    expect(created.endpoint).toBe("/v1/chat/completions");
    await service.events.reached("batch.completed", { batch: created.id });
    const batch = await client.batches.retrieve(created.id);
    expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
    const output = await client.files.content(batch.output_file_id ?? "");
    expect((await output.text()).match(/"custom_id":"[ab]"/g)).toHaveLength(2);
    expect((await client.batches.list({ limit: 1 })).data[0]?.id).toBe(created.id);
    await expect(client.batches.cancel(created.id)).rejects.toBeInstanceOf(OpenAI.ConflictError);
    expect((await client.files.delete(input.id)).deleted).toBe(true);
    expect(upstream.seen.at(-1)?.path).toBe("/v1/chat/completions");
  });
});

describe("a path of Azure", () => {
  test.each([
    "/openai/files",
    `/openai/files?api-version=${API_VERSION}`,
    "/openai/v1/files",
    "/openai/batches/",
    "//openai//batches",
    "/openai/deployments/any/batches",
    "/openai/deployments/with%2Fslash/batches",
    "/openai/models",
  ])("is one of ours, and asks for a key: %s", async (path) => {
    const ask = (headers: Record<string, string>) => fetch(service.url + path, { headers });
    expect((await ask({ "api-key": KEY })).status).toBe(200);
    expect((await ask({ authorization: `Bearer ${KEY}` })).status).toBe(200);
    expect((await ask({ "api-key": "wrong" })).status).toBe(401);
    expect((await ask({})).status).toBe(401);
  });

  test.each(["/openai/deployments", "/openai/deployments/any/nothing", "/openaiv1/files"])(
    "that is none of ours is told as it was asked for: %s",
    async (path) => {
      const answer = await fetch(service.url + path, { headers: { "api-key": KEY } });
      expect(answer.status).toBe(404);
      expect(await answer.text()).toContain(`Invalid URL (GET ${path})`);
    },
  );
});
