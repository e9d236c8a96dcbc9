/**
 * The cost of a batch with a budget, whose server is killed again and again and whose lines are tried several times: what it
 * says is the sum of usage times price over its rows, to the last digit. `BATCHD_TEST_COST_LINES=50000` makes it a long one.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { uploadLines } from "../support/batches.ts";
import { serve } from "../support/serve.ts";
import { chatLines, type ResultRow } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const LINES = Number(process.env["BATCHD_TEST_COST_LINES"] ?? 900);
/** Every third line fails for good, every seventh is tried again. */
const directive = (n: number) =>
  n % 3 === 0 ? "[[status 400]]" : n % 7 === 0 ? "[[status 500 x1]]" : "";
const WORDS = ["one", "two words", "three small words"];

const DIGITS = 18;
const PRICE = {
  input: "0.370000000011",
  cached_input: "0.110000000003",
  output: "1.930000000007",
  per_request: "0.010000000013",
};

/** Returns a decimal text as a whole number of 10^-18. */
function scaled(text: string): bigint {
  const [whole = "0", fraction = ""] = text.split(".");
  return BigInt(whole + fraction.padEnd(DIGITS, "0"));
}

interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

/** Token prices are for a million. */
function costOf(rows: readonly ResultRow[]): bigint {
  const sum = { input: 0, cached: 0, output: 0 };
  for (const row of rows) {
    const usage = row.response?.body["usage"] as Usage;
    const cached = usage.prompt_tokens_details.cached_tokens;
    sum.input += usage.prompt_tokens - cached;
    sum.cached += cached;
    sum.output += usage.completion_tokens;
  }
  const tokens =
    BigInt(sum.input) * scaled(PRICE.input) +
    BigInt(sum.cached) * scaled(PRICE.cached_input) +
    BigInt(sum.output) * scaled(PRICE.output);
  return tokens / 1_000_000n + BigInt(rows.length) * scaled(PRICE.per_request);
}

test("cost equals usage times price over all rows, with a budget, retries and kills", async () => {
  using folder = temporaryFolder("batchd-costs-");
  await using upstream = await startUpstream();
  const path = join(folder.path, "batchd.yaml");
  const upstreams = [{ name: "only", base_url: upstream.url, models: ["*"], max_concurrency: 64 }];
  const prices = [{ model: "*", ...PRICE, currency: "EUR" }];
  const dataDir = join(folder.path, "data");
  writeFileSync(
    path,
    JSON.stringify({ server: { port: 0 }, data_dir: dataDir, upstreams, prices }),
  );
  const start = async () => {
    const { server, url, openai } = await serve(["--config", path]);
    const send = async (to: string, body: object) => {
      const response = await fetch(`${url}/v1/batches${to}`, {
        method: "POST",
        body: JSON.stringify(body),
      });
      expect([to, response.status]).toEqual([to, 200]);
      return (await response.json()) as BatchObject;
    };
    const read = async (id: string) =>
      (await openai.batches.retrieve(id)) as unknown as BatchObject;
    return { server, url, openai, send, read };
  };
  let running = await start();
  const killAt = async (lineCount: number) => {
    await upstream.reachedLines(lineCount);
    await running.server.kill();
    running = await start();
  };
  const content = chatLines(LINES, (n) => `${WORDS[n % 3]} ${directive(n)}`).join("\n");
  const input_file_id = await uploadLines(running.openai, [content]);
  const budget = String(LINES / 250);
  const { id } = await running.send("", {
    input_file_id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    x_batchd: { budget },
  });
  await killAt(LINES / 20);
  await killAt(LINES / 5);
  const pausedFor = async () => (await running.read(id)).x_batchd.paused?.reason;
  await expect.poll(pausedFor, { interval: 100, timeout: 600_000 }).toBe("budget");
  await running.server.kill();
  running = await start();
  const paused = await running.read(id);
  const cost = (batch: BatchObject) => scaled(batch.x_batchd.cost?.so_far ?? "");
  expect(paused.x_batchd.paused?.reason).toBe("budget");
  expect(cost(paused)).toBeLessThanOrEqual(scaled(budget));
  // One line more would cost more than a hundredth.
  expect(cost(paused)).toBeGreaterThan(scaled(budget) - scaled("0.02"));

  await running.send(`/${id}`, { budget: String(LINES) });
  await running.send(`/${id}/resume`, {});
  await killAt(LINES * 0.75);
  await killAt(LINES * 0.9);
  await running.server.batchEnded(id);
  const ended = await running.read(id);
  const failedCount = Math.floor(LINES / 3);
  expect(ended.request_counts).toEqual({
    total: LINES,
    completed: LINES - failedCount,
    failed: failedCount,
  });
  const text = await (await running.openai.files.content(ended.output_file_id ?? "")).text();
  const rows = text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as ResultRow);
  expect(new Set(rows.map((row) => row.custom_id)).size).toBe(LINES - failedCount);
  expect(cost(ended)).toBe(costOf(rows));
  const report = await fetch(`${running.url}/v1/usage?group_by=model`);
  const { data } = (await report.json()) as { data: { cost: { amount: string } }[] };
  expect(data.map((row) => scaled(row.cost.amount))).toEqual([costOf(rows)]);
  await running.server.kill("SIGTERM");
});
