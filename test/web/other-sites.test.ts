/** What the pages of other sites can do, and where their links lead, in the browser of a person. */
import { createServer } from "node:http";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { hasChromium, openChromium } from "../support/browser.ts";
import { listening } from "../support/listening.ts";
import { startTestService, type TestService } from "../support/service.ts";
import { choose } from "../support/visit.ts";

describe.skipIf(!hasChromium())("in a browser", () => {
  let browser: Browser;
  let service: TestService;

  beforeAll(async () => {
    // What a name server of an attacker answers.
    browser = await openChromium(["--host-resolver-rules=MAP evil.example 127.0.0.1"]);
    service = await startTestService();
  });
  afterAll(async () => {
    await browser.close();
    await service[Symbol.asyncDispose]();
  });

  test("a link of another site leads a person with a session to the page, and others to the form for a key", async () => {
    const keys = [{ name: "someone", key: "key-of-someone" }];
    await using closed = await startTestService({ config: { auth: { keys } } });
    const site = createServer((_, response) => {
      response.setHeader("content-type", "text/html");
      response.end(`<a href="${closed.url}/files">files</a>`);
    });
    const other = `http://localhost:${await listening(site)}`;
    const page = await (await browser.newContext()).newPage();
    await page.goto(other);
    await page.getByText("files").click();
    await page.getByLabel("API key").fill("key-of-someone");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("heading", { name: "Files", exact: true }).waitFor();
    await page.goto(other);
    await page.getByText("files").click();
    await page.getByRole("heading", { name: "Files", exact: true }).waitFor({ timeout: 20_000 });
    site.close();
    site.closeAllConnections();
  });

  test("a site whose name resolves to the server sees nothing of it", async () => {
    const { port } = new URL(service.url);
    const page = await browser.newPage();
    for (const path of ["", "v1/batches", "v1/files", "web/v1/batches", "metrics"]) {
      const answer = await page.goto(`http://evil.example:${port}/${path}`);
      expect([path, answer?.status()]).toEqual([path, 421]);
    }
    await page.close();
  });

  test("a form of another site changes nothing, and the page of the server does", async () => {
    const site = createServer((_, response) => {
      response.setHeader("content-type", "text/html");
      response.end(
        `<form id="f" method="post" enctype="multipart/form-data" action="${service.url}/v1/files">
<input name="purpose" value="batch"><input name="file" type="file"></form>
<form id="b" method="post" enctype="text/plain" action="${service.url}/v1/batches">
<input name='{"input_file_id":"file-a","endpoint":"/v1/embeddings","a":"' value='"}'></form>`,
      );
    });
    const port = await listening(site);
    for (const form of ["f", "b"]) {
      // A page of its own for each: the navigation to the answer may not be over yet.
      const page = await browser.newPage();
      await page.goto(`http://localhost:${port}`);
      const [answer] = await Promise.all([
        page.waitForResponse((each) => each.request().method() === "POST"),
        page
          .locator(`#${form}`)
          .evaluate((element) => (element as unknown as { submit(): void }).submit()),
      ]);
      expect([form, answer.status()]).toEqual([form, 403]);
      await page.close();
    }
    site.close();
    site.closeAllConnections();
    const { data } = (await (await fetch(`${service.url}/v1/files`)).json()) as { data: unknown[] };
    expect(data).toEqual([]);

    const own = await browser.newPage();
    await own.goto(`${service.url}/files`);
    await choose(own, "own.jsonl", '{"custom_id": "a"}\n');
    await own.locator("tr", { hasText: "own.jsonl" }).waitFor();
    await own.close();
  });
});
