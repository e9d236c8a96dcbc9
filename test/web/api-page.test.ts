/** The page at `/docs`, where people read the API: everyone has to be able to. */
import { describe, expect, test } from "vitest";
import { axeFaults } from "../support/axe.ts";
import { hasChromium, openChromium } from "../support/browser.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestService } from "../support/service.ts";

describe.skipIf(!hasChromium())("the page of the API", async () => {
  const service = forAllTests(await startTestService({}));
  const browser = forAllTests(await openChromium());

  test("can be read by everyone, as a whole and with operations that are open", async () => {
    const page = await browser.newPage({ viewport: { width: 360, height: 900 } });
    await page.goto(`${service.url}/docs`);
    await page.waitForSelector(".opblock");
    expect(await axeFaults(page)).toEqual([]);
    await page.click("#operations-Files-listFiles .opblock-summary-control");
    await page.waitForSelector("#operations-Files-listFiles select");
    expect(await axeFaults(page)).toEqual([]);
    const address = page.url();
    await page.click("#operations-Files-createFile .opblock-summary-control");
    await page.getByRole("region", { name: "Answers of POST /v1/files", exact: true }).waitFor();
    expect(await axeFaults(page)).toEqual([]);
    expect(address).toContain("#/Files/listFiles");
    await page.goto("about:blank");
    await page.goto(address);
    await page.waitForSelector("#operations-Files-listFiles .opblock-body");
    await page.close();
  });

  test("asks the server that it comes from", async () => {
    const page = await browser.newPage();
    await page.goto(`${service.url}/docs#/Files/listFiles`);
    await page.click("#operations-Files-listFiles .try-out__btn");
    await page.click("#operations-Files-listFiles .execute");
    await page.waitForSelector("#operations-Files-listFiles .live-responses-table .microlight");
    const answer = await page.textContent("#operations-Files-listFiles .live-responses-table");
    expect(answer).toContain('"object": "list"');
    await page.close();
  });
});
