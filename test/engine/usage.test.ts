/** Tokens and the model of a batch, from the answers of each endpoint, by the front door. */
import type OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));

type Endpoint = OpenAI.BatchCreateParams["endpoint"];

const lines = (endpoint: string, bodies: readonly object[]) =>
  bodies.map((body, i) =>
    JSON.stringify({
      custom_id: `line-${i}`,
      method: "POST",
      url: endpoint,
      body: { model: "test-model", ...body },
    }),
  );

async function run(endpoint: Endpoint, bodies: readonly object[]) {
  const { id } = await service.submit(lines(endpoint, bodies), endpoint);
  return service.ended(id);
}

const usage = (input: number, cached: number, output: number, reasoning: number) => ({
  input_tokens: input,
  input_tokens_details: { cached_tokens: cached },
  output_tokens: output,
  output_tokens_details: { reasoning_tokens: reasoning },
  total_tokens: input + output,
});

const chat = (content: string) => ({ messages: [{ role: "user", content }] });

// The test upstream counts a token a word and one more, answers two more than that, and has 1 cached and 2 reasoned.
describe("a batch sums up the tokens of its answers", () => {
  test.each<[Endpoint, object[], ReturnType<typeof usage>]>([
    ["/v1/chat/completions", [chat("one two"), chat("three")], usage(5, 2, 9, 4)],
    ["/v1/completions", [{ prompt: "one two" }, { prompt: "three" }], usage(5, 2, 9, 4)],
    ["/v1/responses", [{ input: "one two" }, { input: "three" }], usage(5, 2, 9, 4)],
    ["/v1/embeddings", [{ input: "one two" }, { input: "three" }], usage(5, 0, 0, 0)],
    ["/v1/moderations", [{ input: "one two" }, { input: "three" }], usage(0, 0, 0, 0)],
  ])("on %s", async (endpoint, bodies, expected) => {
    const batch = await run(endpoint, bodies);
    expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 });
    expect(batch.usage).toEqual(expected);
  });

  test("but not of those that failed", async () => {
    const batch = await run("/v1/chat/completions", [chat("one two"), chat("[[status 400]]")]);
    expect(batch.request_counts).toEqual({ total: 2, completed: 1, failed: 1 });
    expect(batch.usage).toEqual(usage(3, 1, 5, 2));
  });
});
