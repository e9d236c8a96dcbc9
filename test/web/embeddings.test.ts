/** What the table of lines shows of embeddings, which no person reads: as lists, and in base64. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { json } from "node:stream/consumers";
import { expect, test } from "vitest";
import { hasChromium, openChromium } from "../support/browser.ts";
import { listening } from "../support/listening.ts";
import { startTestService } from "../support/service.ts";

interface Asked {
  readonly input: string | readonly string[];
  readonly encoding_format?: string;
}

/** A model server whose vectors have four numbers. */
const modelServer = createServer((request, response) => void answer(request, response));

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { input, encoding_format: format } = (await json(request)) as Asked;
  const numbers = [0.5, -0.25, 0, 1];
  const base64 = Buffer.from(new Float32Array(numbers).buffer).toString("base64");
  const embedding = format === "base64" ? base64 : numbers;
  const data = [input].flat().map((_, index) => ({ object: "embedding", index, embedding }));
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify({ object: "list", model: "test-model", data }));
}

test.skipIf(!hasChromium())("the table says how many numbers, for how many inputs", async () => {
  const upstreamUrl = `http://127.0.0.1:${await listening(modelServer)}/v1`;
  await using service = await startTestService({ upstreamUrl });
  await using browser = await openChromium();
  const line = (custom_id: string, body: Asked) =>
    JSON.stringify({
      custom_id,
      method: "POST",
      url: "/v1/embeddings",
      body: { model: "test-model", ...body },
    });
  const lines = [
    line("one", { input: "a" }),
    line("list", { input: ["a", "b"] }),
    line("base64", { input: "a", encoding_format: "base64" }),
    line("base64 list", { input: ["a", "b", "c"], encoding_format: "base64" }),
  ];
  const { id } = await service.submit(lines, "/v1/embeddings");
  await service.ended(id);
  const page = await browser.newPage();
  await page.goto(`${service.url}/batches/${id}`);
  await page.getByText("Lines 1 to 4").waitFor();
  expect(await page.locator("#lines-rows td:nth-child(4)").allTextContents()).toEqual([
    "4 numbers",
    "2 × 4 numbers",
    "4 numbers",
    "3 × 4 numbers",
  ]);
});
