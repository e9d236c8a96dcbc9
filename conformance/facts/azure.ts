/** Section 11: the same API in the spellings of Azure. */
import assert from "node:assert/strict";
import OpenAI, { AzureOpenAI } from "openai";
import { KEYS } from "../context.ts";
import { accepted, idsOn } from "../expect.ts";
import { type Section, strong } from "../fact.ts";
import { line } from "../lines.ts";
import type { Server } from "../server.ts";

const AZURE_LINE = line("azure", "Hello", { url: "/chat/completions" });

async function flows(client: OpenAI, keyed: Server): Promise<void> {
  const file = await client.files.create({
    file: new File([`${AZURE_LINE}\n`], "a.jsonl"),
    purpose: "batch",
  });
  const { id } = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/chat/completions" as "/v1/chat/completions",
    completion_window: "24h",
  });
  assert.equal((await keyed.ended(id)).status, "completed");
  assert.equal((await client.batches.list({ limit: 1 })).data[0]?.id, id);
}

export const azure: Section = {
  number: "11",
  title: "Azure",
  facts: [
    strong.http(
      "11-paths",
      "`/openai/files` and `/openai/batches`, with `api-version`, are the same routes",
      async ({ main }) => {
        const { id } = accepted(await main.create("file-x"));
        for (const path of [
          "/openai/batches?limit=1&api-version=2024-10-21",
          "/openai/v1/batches?limit=1",
        ]) {
          assert.deepEqual(idsOn(accepted(await main.get(path))), [id]);
        }
        const { text } = await main.sendFile(`${AZURE_LINE}\n`);
        const file = JSON.parse(text) as { id: string };
        assert.equal(
          accepted(await main.get(`/openai/files/${file.id}?api-version=x`))["id"],
          file.id,
        );
      },
    ),
    strong.http(
      "11-deployments",
      "`/openai/deployments/{name}/batches` too, whatever the name",
      async ({ main }) => {
        accepted(await main.get("/openai/deployments/gpt-4o-batch/batches"));
      },
    ),
    strong.http(
      "11-key",
      "A key in the header `api-key` is as good as a bearer token",
      async ({ keyed }) => {
        const ask = (key: string) =>
          fetch(`${keyed.url}/openai/batches`, { headers: { "api-key": key } });
        assert.equal((await ask(KEYS.red)).status, 200);
        assert.equal((await ask("wrong")).status, 401);
      },
    ),
    strong.http(
      "11-endpoint",
      "`endpoint` without `/v1` is taken, and shown with it",
      async ({ main }) => {
        const { json } = await main.create("file-x", { endpoint: "/chat/completions" });
        assert.equal(json["endpoint"], "/v1/chat/completions");
      },
    ),
    strong.http(
      "11-url",
      "`url` without `/v1` is taken, and sent with it",
      async ({ main, upstream }) => {
        const prompt = "azure asks";
        const batch = await main.run([line("a", prompt, { url: "/chat/completions" })]);
        assert.equal(batch.status, "completed");
        assert.equal(
          upstream.seen.find(({ body }) => body.includes(prompt))?.path,
          "/v1/chat/completions",
        );
      },
    ),
    strong.node(
      "11-node-endpoint",
      "`AzureOpenAI` with an endpoint uploads, runs and lists",
      ({ keyed }) =>
        flows(
          new AzureOpenAI({ endpoint: keyed.url, apiKey: KEYS.red, apiVersion: "2024-10-21" }),
          keyed,
        ),
    ),
    strong.node("11-node-deployment", "`AzureOpenAI` with a deployment does", ({ keyed }) =>
      flows(
        new AzureOpenAI({
          endpoint: keyed.url,
          apiKey: KEYS.red,
          apiVersion: "2024-10-21",
          deployment: "gpt-4o-batch",
        }),
        keyed,
      ),
    ),
    strong.node(
      "11-node-v1",
      "`OpenAI` and `AzureOpenAI` with a base URL that ends in `/openai/v1/` do",
      async ({ keyed }) => {
        const settings = { baseURL: `${keyed.url}/openai/v1/`, apiKey: KEYS.red };
        await flows(new OpenAI(settings), keyed);
        await flows(new AzureOpenAI({ ...settings, apiVersion: "preview" }), keyed);
      },
    ),
    strong.python(
      "11-python",
      "The Python clients do, with an Azure endpoint and with that base URL",
      "azure",
    ),
    strong.http(
      "11-differences",
      "Where Azure differs from OpenAI, OpenAI is followed: `processed` at once, undashed ids, no empty error file",
      async ({ main }) => {
        assert.equal(accepted(await main.sendFile(`${AZURE_LINE}\n`))["status"], "processed");
        const batch = await main.run([AZURE_LINE]);
        assert.match(batch.id, /^batch_[0-9a-f]{32}$/);
        assert.equal(batch.error_file_id, null);
      },
    ),
  ],
};
