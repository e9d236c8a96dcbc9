/** The list of batches takes filters of its own. Without them it is OpenAI's. */
import { describe, expect, test } from "vitest";
import type { Batch } from "../../src/batch/batch.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { aBatch, NOW_MS } from "../support/store-builders.ts";
import { startTestApi, wireOf } from "../support/test-http.ts";

const stored: Batch[] = [];
const api = forAllTests(await startTestApi());
for (let i = 0; i < 30; i++) {
  const batch = aBatch({
    createdAtMs: NOW_MS + i * 1_000,
    endpoint: i % 2 === 0 ? "/v1/embeddings" : "/v1/chat/completions",
    model: i % 3 === 0 ? "llama" : null,
    metadata: i % 5 === 0 ? { team: "search", "a b": "1" } : null,
  });
  stored.push(batch);
  await api.store.insertBatch(batch);
}

async function list(query: string) {
  const response = await api.fetch(`/v1/batches${query}`);
  return { status: response.status, body: await wireOf(response) };
}

const idsWhere = (matches: (i: number) => boolean) =>
  stored
    .filter((_, i) => matches(i))
    .map(({ id }) => id)
    .toReversed();

async function listedIds(query: string): Promise<string[]> {
  const { body } = await list(query);
  return (body.data as readonly { id: string }[]).map(({ id }) => id);
}

describe("a filter leaves the batches that match", () => {
  test.each<[string, (i: number) => boolean]>([
    ["status=validating", () => true],
    ["status=completed", () => false],
    ["endpoint=/v1/embeddings", (i) => i % 2 === 0],
    ["endpoint=/embeddings", (i) => i % 2 === 0],
    ["model=llama", (i) => i % 3 === 0],
    [`created_after=${NOW_MS / 1000 + 20}`, (i) => i > 20],
    ["metadata[team]=search", (i) => i % 5 === 0],
    ["metadata%5Bteam%5D=search&metadata[a+b]=1&model=llama", (i) => i % 15 === 0],
    ["metadata[team]=Search", () => false],
    ["metadata[team]=%00", () => false],
    ["search=SeaRCH", (i) => i % 5 === 0],
    ["search=%25", () => false],
    ["search=%00", () => false],
    ["search=batch_", () => true],
    ["search=", () => true],
  ])("%s", async (query, matches) => {
    expect(await listedIds(`?limit=100&${query}`)).toEqual(idsWhere(matches));
  });

  test("and cursors lead through them, from the SDK too", async () => {
    const found: string[] = [];
    const query = { "metadata[team]": "search" };
    const page = await api.client.batches.list({ limit: 2 }, { query: { limit: 2, ...query } });
    for await (const batch of page) found.push(batch.id);
    expect(found).toEqual(idsWhere((i) => i % 5 === 0));
    const first = await list("?model=llama&limit=4");
    expect(first.body).toMatchObject({ has_more: true, last_id: idsWhere((i) => i % 3 === 0)[3] });
  });
});

test("parameters that are no filter are ignored, as before", async () => {
  expect(await listedIds("?limit=100&metadata=team&state=failed&status=")).toEqual(
    idsWhere(() => true),
  );
});

describe("an absurd filter is refused", () => {
  test.each<[string, string, string]>([
    ["status=done", "status", "invalid_value"],
    ["endpoint=/v2", "endpoint", "invalid_value"],
    ["created_after=yesterday", "created_after", "invalid_type"],
    ["created_after=-1", "created_after", "integer_below_min_value"],
    ["created_after=999999999999999", "created_after", "integer_above_max_value"],
    [`model=${"m".repeat(1_025)}`, "model", "string_above_max_length"],
    [`metadata[${"k".repeat(65)}]=1`, "metadata", "string_above_max_length"],
    ["status=failed&status=expired", "status", "invalid_value"],
    ["metadata[k]=1&metadata[k]=2", "metadata[k]", "invalid_value"],
    [`search=${"ü".repeat(513)}`, "search", "string_above_max_length"],
    [`metadata[k]=${"v".repeat(513)}`, "metadata[k]", "string_above_max_length"],
    [
      Array.from({ length: 17 }, (_, i) => `metadata[k${i}]=1`).join("&"),
      "metadata",
      "object_above_max_properties",
    ],
  ])("%s", async (query, param, code) => {
    const { status, body } = await list(`?${query}`);
    expect([status, body.error.param, body.error.code]).toEqual([400, param, code]);
  });
});
