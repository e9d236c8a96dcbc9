/** The deliveries of a batch on its page, in a real browser. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Page, Route } from "playwright-core";
import { expect, test } from "vitest";
import { axeFaults } from "../support/axe.ts";
import { hasChromium, openChromium } from "../support/browser.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startShare } from "../support/share.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

/** The name of a folder, which a page must not take for markup. */
const HOSTILE = "<img src=x onerror=alert(1)>";

const deliver = async (page: Page, location: string, folder: string) => {
  await page.getByLabel("Location").fill(location);
  await page.getByLabel("Folder").fill(folder);
  await page.getByRole("button", { name: "Deliver", exact: true }).click();
};

test.skipIf(!hasChromium())(
  "results are delivered from the page of their batch, which shows what became of each delivery",
  async () => {
    using share = temporaryFolder("batchd-share-");
    await using upstream = await startUpstream();
    await using service = await startTestService({
      config: {
        upstreams: [{ name: "gpu", base_url: upstream.url, models: ["*"] }],
        locations: [
          { name: "share", kind: "folder", path: share.path, access: "write" },
          // Nothing listens at this port.
          {
            ...{ name: "lake", kind: "s3", bucket: "results", region: "us-east-1" },
            ...{ endpoint: "http://127.0.0.1:9", access: "write" },
            ...{ access_key_id: "id", secret_access_key: "secret" },
          },
        ],
      },
    });
    const { id } = await service.run(chatLines(2));
    await using browser = await openChromium();
    const page = await browser.newPage({ viewport: { width: 360, height: 800 } });
    await page.goto(`${service.url}/batches/${id}`);

    await deliver(page, "nowhere", "");
    await page.getByText("there is no location 'nowhere' to write to").waitFor();
    const asked: string[] = [];
    page.on("request", (request) => asked.push(`${request.method()} ${request.url()}`));
    // A second press, while the page is loaded again, is for no second delivery.
    await page.evaluate(
      "addEventListener('beforeunload', () => document.querySelector('#deliver button').click())",
    );
    await deliver(page, "share", HOSTILE);
    const deliveries = page.getByRole("region", { name: "Deliveries" });
    const item = deliveries.getByRole("listitem");
    await item.getByText("delivered", { exact: true }).waitFor();
    expect(asked.filter((each) => /^POST .*\/deliveries$/.test(each))).toHaveLength(1);
    await item.getByText(join(share.path, HOSTILE, id), { exact: true }).waitFor();
    expect(existsSync(join(share.path, HOSTILE, id, "run.json"))).toBe(true);

    await deliver(page, "lake", "");
    const failing = item.filter({ hasText: "lake" });
    await failing.getByText("ECONNREFUSED").waitFor();
    expect(await axeFaults(page)).toEqual([]);
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(360);
    await failing.getByRole("button", { name: "Cancel delivery" }).click();
    await failing.getByText("failed", { exact: true }).waitFor();
  },
);

test.skipIf(!hasChromium())(
  "a delivery whose answer was lost is made once, although its button is pressed again",
  async () => {
    await using share = await startShare();
    const { service } = share;
    const { id } = await service.run(chatLines(2));
    await using browser = await openChromium();
    const page = await browser.newPage();
    await page.goto(`${service.url}/batches/${id}`);
    const lose = async (route: Route) => {
      await route.fetch();
      await route.abort("connectionreset");
    };
    await page.route("**/deliveries", lose, { times: 1 });
    await deliver(page, "share", "");
    await page.getByText("The server does not answer.").waitFor();
    const loaded = page.waitForEvent("load");
    await page.getByRole("button", { name: "Deliver", exact: true }).click();
    await loaded;
    const made = await service.openai.get<{ data: unknown[] }>(`/batches/${id}/deliveries`);
    expect(made).toMatchObject({ data: [{ location: "share" }] });
  },
);
