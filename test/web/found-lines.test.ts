/** The lines of a batch on its page, in a real browser: the search for one, and what is shown once some cannot be had. */
import type { Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { hasChromium } from "../support/browser.ts";
import { chatLine, chatLines } from "../support/service.ts";
import { Visit } from "../support/visit.ts";

describe.skipIf(!hasChromium())("a line", () => {
  let visit: Visit;
  beforeAll(async () => {
    visit = await Visit.start();
  });
  afterAll(() => visit[Symbol.asyncDispose]());

  /** Lets no lines through before the function that it returns is called. */
  const refuseLines = async (page: Page): Promise<() => Promise<void>> => {
    const json = { error: { message: "Not now." } };
    await page.route("**/lines?*", (route) => route.fulfill({ status: 503, json }));
    return () => page.unroute("**/lines?*");
  };

  test("is found by an id that ends with a space", async () => {
    const { id } = await visit.service.run([chatLine("a", "Yes"), chatLine("b ", "No")]);
    const page = await visit.openPage(`/batches/${id}`);
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

  test("has its answer also where the server was busy at the end of its batch", async () => {
    const { id } = await visit.held(1);
    const page = await visit.openPage(`/batches/${id}`);
    const answer = page.locator("#lines-rows td:nth-child(4)");
    await answer.getByText("…").waitFor();
    const allow = await refuseLines(page);
    const over = page.waitForEvent("requestfinished", (each) => each.url().includes("/web/live/"));
    visit.upstream.release();
    await over;
    await page.getByText("Not now.").waitFor();
    await allow();
    await answer.getByText("echo: question 0").waitFor();
    await page.getByText("Lines 1 to 1").waitFor();
  });

  test("is found before the page of lines at which the server was busy", async () => {
    const failing = (n: number) => (n === 1 ? "[[status 400]]" : `question ${n}`);
    const { id } = await visit.service.run(chatLines(25, failing));
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByRole("button", { name: "Next lines" }).click();
    await page.getByText("Lines 21 to 25").waitFor();
    const allow = await refuseLines(page);
    await page.getByLabel("Show").selectOption("failed");
    await page.getByRole("button", { name: "Find" }).click();
    await page.getByText("Not now.").waitFor();
    await allow();
    await page.getByText("Lines 1 to 1").waitFor();
  });

  test("is shown as JSON as far as a browser can lay it out at once", async () => {
    const { id } = await visit.service.run([chatLine("a", "\u202e".repeat(150_000))]);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByRole("button", { name: "JSON of line 1" }).click();
    await page.getByRole("dialog").getByText("The rest is not shown.").waitFor();
    const text = (await page.locator("#raw-text").textContent()) ?? "";
    expect(text).toContain('"custom_id": "a"');
    expect(text.length).toBeLessThan(101_000);
  });
});
