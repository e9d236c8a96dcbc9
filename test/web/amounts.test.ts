/** Amounts of money and sizes on the pages. */
import { expect, test } from "vitest";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test.each([
  ["0.002", "0.00000000600 USD"],
  ["0.3", "0.000000900 USD"],
  ["1000000", "3.00 USD"],
])("at a price of %s for a million tokens are plain decimals", async (input, amount) => {
  await using upstream = await startUpstream();
  const prices = [{ model: "*", currency: "USD", input, output: "0" }];
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { upstreams: [{ name: "u", base_url: upstream.url, models: ["*"] }], prices },
  });
  const { id, usage } = await service.run(chatLines(1));
  expect(usage?.input_tokens).toBe(3);
  const page = await fetch(`${service.url}/batches/${id}`, { headers: { accept: "text/html" } });
  expect(await page.text()).toContain(`<dd>${amount}</dd>`);
});

test.each([
  [999, "999 B"],
  [99_949, "99.9 kB"],
  [99_950, "100 kB"],
  [999_499, "999 kB"],
  [999_500, "1.0 MB"],
])(
  "a file of %s bytes has the size '%s', with at most three digits before its point",
  async (length, size) => {
    await using service = await startTestService();
    const file = new File([new Uint8Array(length)], "some.bin");
    await service.openai.files.create({ file, purpose: "user_data" });
    const page = await fetch(`${service.url}/files`, { headers: { accept: "text/html" } });
    expect(await page.text()).toContain(`<td class="number">${size}</td>`);
  },
);
