/** A button of a batch that is pressed before the scripts of its page are there, in a real browser. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { hasChromium } from "../support/browser.ts";
import { chatLine } from "../support/service.ts";
import { Visit } from "../support/visit.ts";

describe.skipIf(!hasChromium())(
  "before its scripts are there, a page keeps what is filled in",
  () => {
    let visit: Visit;

    beforeAll(async () => {
      visit = await Visit.start();
    });
    afterEach(async () => expect(await visit.leave()).toEqual([]));
    afterAll(() => visit[Symbol.asyncDispose]());

    /** Opens the page of a batch, whose scripts come once `arrive` is called. */
    async function openedEarly(id: string) {
      const page = await visit.openPage("/files");
      const arrived = Promise.withResolvers<void>();
      await page.route(/\.js$/, async (route) => {
        await arrived.promise;
        await route.continue();
      });
      const path = `/batches/${id}`;
      await page.goto(new URL(path, page.url()).href, { waitUntil: "commit" });
      return { page, arrive: arrived.resolve };
    }

    test("for a delivery", async () => {
      const { id } = await visit.service.run([chatLine("a", "Peru")]);
      const { page, arrive } = await openedEarly(id);
      await page.getByLabel("Location").fill("nowhere");
      await page.getByLabel("Folder").press("Enter");
      const deliver = page.getByRole("button", { name: "Deliver", exact: true });
      await deliver.click();
      arrive();
      await page.getByText("Lines 1 to 1").waitFor();
      await deliver.click();
      await page.getByText("there is no location 'nowhere' to write to").waitFor();
      expect(new URL(page.url()).search).toBe("");
      await visit.leave();
    });

    test("for another budget", async () => {
      const { service } = visit;
      const input = await service.upload([chatLine("a", "Peru")]);
      const { id } = await createBatch(service.openai, input, {
        x_batchd: { budget: "0.0000001" },
      });
      const shown = await visit.openPage(`/batches/${id}`);
      await shown.getByRole("button", { name: "Set and resume" }).waitFor();
      const { page, arrive } = await openedEarly(id);
      await page.getByRole("textbox", { name: "Budget" }).fill("5");
      const resume = page.getByRole("button", { name: "Set and resume" });
      await resume.click();
      arrive();
      await page.locator("#live").getByText("Live", { exact: true }).waitFor();
      await resume.click();
      await page.getByText("1 of 1 · 100%").waitFor();
      expect(new URL(page.url()).search).toBe("");
    });
  },
);
