/** The search for a line of a batch, in a real browser. */
import { expect, test } from "vitest";
import { hasChromium, openChromium } from "../support/browser.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test.skipIf(!hasChromium())("a line is found by an id that ends with a space", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  await using browser = await openChromium();
  const { id } = await service.run([chatLine("a", "Yes"), chatLine("b ", "No")]);
  const page = await browser.newPage();
  await page.goto(`${service.url}/batches/${id}`);
  const find = async (customId: string) => {
    await page.getByLabel("custom_id").fill(customId);
    await page.getByRole("button", { name: "Find" }).click();
  };
  await find("b ");
  await page.getByText("Lines 2 to 2").waitFor();
  expect(await page.locator("#lines-rows tr").count()).toBe(1);
  await find("a ");
  await page.getByText("No such line. The custom_id begins or ends with a space.").waitFor();
});
