/** People who make a batch on the page, where something is wrong: what they typed, their network, or what is between. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Page, Route } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { hasChromium } from "../support/browser.ts";
import { chatTemplate, derive } from "../support/derived.ts";
import { chatLine, chatLines } from "../support/service.ts";
import { choose, Visit } from "../support/visit.ts";

describe.skipIf(!hasChromium())("a new batch", () => {
  let visit: Visit;

  beforeAll(async () => {
    visit = await Visit.start();
  });
  afterEach(() => visit.leave());
  afterAll(() => visit[Symbol.asyncDispose]());

  async function opened(name: string, text: string): Promise<Page> {
    const page = await visit.openPage("/new");
    await choose(page, name, text);
    await page.getByText(/^1 (?:row\.|line, no fault found\.)$/).waitFor();
    return page;
  }
  const create = (page: Page) => page.getByRole("button", { name: "Create batch" }).click();
  const fault = (page: Page, text: string) =>
    page.locator("#fault").filter({ hasText: text }).waitFor();
  const batchCount = async () => (await visit.service.openai.batches.list()).data.length;
  /** Carries a request out, and loses its answer. */
  const lose = async (route: Route) => {
    await route.fetch();
    await route.abort();
  };
  const isUpload = (url: URL) => url.pathname.endsWith("/web/v1/files");
  const isCreation = (url: URL) => url.pathname.endsWith("/web/v1/batches");

  test("is made once, of one file, although it was refused and its answer was lost", async () => {
    const before = await batchCount();
    const page = await opened("once.jsonl", chatLine("a", "Peru"));
    await page.getByLabel("Window").fill("a day");
    await create(page);
    await fault(page, "Window: Write hours or days, such as 24h or 7d.");
    await page.getByLabel("Window").fill("2d");
    await create(page);
    await fault(page, "Value must be '24h'.");
    await page.getByLabel("Window").fill("24h");
    await page.route(isCreation, lose, { times: 1 });
    await create(page);
    await fault(page, "The server does not answer.");
    await create(page);
    await page.waitForURL(/batches\/batch_/);
    expect(await batchCount()).toBe(before + 1);
    const { data } = await visit.service.openai.files.list();
    expect(data.filter(({ filename }) => filename === "once.jsonl")).toHaveLength(1);
  });

  test("shows beside its button how far its upload is, also below a long form", async () => {
    const page = await opened("below.csv", "city\nLima\n");
    await page.getByLabel("Model").fill("m");
    await page.route(isUpload, (route) => route.abort(), { times: 1 });
    await create(page);
    const said = page.getByText("The connection was lost. Trying again …");
    await said.waitFor();
    const [text, button] = [await said.boundingBox(), await page.locator("#create").boundingBox()];
    expect(button!.y - text!.y).toBeLessThan(100);
    await page.waitForURL(/batches\/batch_/);
  });

  test("keeps what is filled in before its scripts are there", async () => {
    const page = await visit.openPage("/files");
    const arrived = Promise.withResolvers<void>();
    await page.route(/new-batch\.js/, async (route) => {
      await arrived.promise;
      await route.continue();
    });
    await page.goto(new URL("/new", page.url()).href, { waitUntil: "commit" });
    await choose(page, "early.jsonl", chatLine("a", "Peru"));
    await page.getByLabel("Metadata").fill("team=early");
    await page.getByLabel("Window").press("Enter");
    expect(await page.locator("#create:disabled").count()).toBe(1);
    arrived.resolve();
    await page.getByText("1 line, no fault found.").waitFor();
    await create(page);
    await page.waitForURL(/batches\/batch_/);
    await page.getByText("early").first().waitFor();
  });

  test("says once that a column is missing, however much is typed", async () => {
    const page = await opened("said.csv", "id,country\na,Peru\n");
    await page.evaluate(`{
      window.said = [];
      const note = () => window.said.push(fault.textContent);
      new MutationObserver(note).observe(fault, { childList: true, subtree: true });
    }`);
    await page.getByLabel("Prompt for each row").pressSequentially(" {{city}} and more");
    await fault(page, "There is no column {{city}}.");
    expect(await page.evaluate("window.said")).toEqual(["There is no column {{city}}."]);
  });

  test("of a file that is there begins with the endpoint of its lines", async () => {
    const url = "/v1/embeddings";
    // A question about requests, and a picture, have addresses of their own.
    const body = { input: JSON.stringify({ url: "/v1/responses" }), image: { url: "https://a/b" } };
    const line = JSON.stringify({ custom_id: "a", method: "POST", body, url: url.slice(3) });
    const file = new File([`\n${line}\n`], "embeddings.jsonl");
    await visit.service.openai.files.create({ file, purpose: "batch" });
    const page = await visit.openPage("/files");
    const row = page.locator("tr", { hasText: "embeddings.jsonl" });
    await row.getByRole("link", { name: "New batch" }).click();
    await expect.poll(() => page.getByLabel("Endpoint").inputValue()).toBe(url);
  });

  test("that runs failed lines again is made once, although its answer was lost", async () => {
    const { id } = await visit.service.run([chatLine("bad", "[[status 400]]")]);
    const before = await batchCount();
    const page = await visit.openPage(`/batches/${id}`);
    // The page would take the button away once it hears of the new batch.
    await page.route("**/web/live/**", (route) => route.abort());
    await page.reload();
    await page.route(isCreation, lose, { times: 1 });
    const again = page.getByRole("button", { name: "Run failed lines again" });
    await again.click();
    await page.getByText("The server does not answer.").waitFor();
    await again.click();
    await page.waitForURL((url) => /batch_/.test(url.pathname) && !url.pathname.endsWith(id));
    expect(await batchCount()).toBe(before + 1);
  });

  test("that runs failed lines again is made once, although two people press", async () => {
    const { id } = await visit.service.run([chatLine("bad", "[[status 400]]")]);
    const before = await batchCount();
    const pages = [await visit.openPage(`/batches/${id}`), await visit.openPage(`/batches/${id}`)];
    for (const page of pages) {
      await page.getByRole("button", { name: "Run failed lines again" }).click();
      await page.waitForURL((url) => /batch_/.test(url.pathname) && !url.pathname.endsWith(id));
    }
    expect(await batchCount()).toBe(before + 1);
    expect(pages[1]?.url()).toBe(pages[0]?.url());
  });

  test("that runs failed lines again is not made where it is not known whether another one does", async () => {
    const { id } = await visit.service.run([chatLine("bad", "[[status 400]]")]);
    const before = await batchCount();
    const page = await visit.openPage(`/batches/${id}`);
    const isLook = (url: URL) => url.pathname.endsWith(`/web/v1/batches/${id}`);
    await page.route(isLook, (route) => route.fulfill({ status: 503 }), { times: 1 });
    const again = page.getByRole("button", { name: "Run failed lines again" });
    await again.click();
    await page.getByText("The server answered 503. Try again later.").waitFor({ timeout: 20_000 });
    expect(await batchCount()).toBe(before);
    await again.click();
    await page.waitForURL((url) => /batch_/.test(url.pathname) && !url.pathname.endsWith(id));
    expect(await batchCount()).toBe(before + 1);
  });

  test("that runs failed lines again can be made beside batches that leave them as they are", async () => {
    const { service, upstream } = visit;
    upstream.hold();
    const before = upstream.total;
    const source = await service.submit([
      chatLine("good", "Hi"),
      chatLine("bad", "[[status 400]]"),
    ]);
    await upstream.reached(before + 2);
    const { batch } = await derive(service, { batch: source.id, lines: "failed", merge: true });
    await service.openai.batches.cancel(batch.id);
    await service.ended(batch.id);
    upstream.release();
    await service.ended(source.id);
    // What asks about its answers leaves its failed lines as they are, too.
    const judged = await derive(service, {
      batch: source.id,
      lines: "succeeded",
      template: chatTemplate("Is {{output.model}} right?"),
    });
    await service.ended(judged.batch.id);
    const page = await visit.openPage(`/batches/${source.id}`);
    for (const { id } of [batch, judged.batch]) {
      await page.getByRole("link", { name: id }).waitFor();
    }
    await page.getByRole("button", { name: "Run failed lines again" }).click();
    await page.waitForURL((url) => !url.pathname.endsWith(source.id));
    for (const { id } of [batch, judged.batch]) expect(page.url()).not.toContain(id);
    expect(await service.ended(page.url().split("/").at(-1)!)).toMatchObject({
      x_batchd: { from: { batch: source.id } },
    });
  });

  test("that runs failed lines again is asked about where a batch that is not listed may run them", async () => {
    const { service } = visit;
    const source = await service.submit([
      chatLine("good", "Hi"),
      chatLine("bad", "[[status 400]]"),
    ]);
    await service.ended(source.id);
    await derive(service, { batch: source.id, lines: "failed", merge: true });
    const template = chatTemplate("Is {{output.model}} right?");
    for (let listed = 0; listed < 20; listed++) {
      await derive(service, { batch: source.id, lines: "succeeded", template });
    }
    const before = await batchCount();
    const page = await visit.openPage(`/batches/${source.id}`);
    await page.getByRole("button", { name: "Run failed lines again" }).click();
    await page.getByText("An older one may run them already.").waitFor();
    await page.getByRole("button", { name: "Keep" }).click();
    expect(await batchCount()).toBe(before);
  });

  test("that runs failed lines again keeps what its owner has set for the old one", async () => {
    const { service } = visit;
    const metadata = { name: 'nightly "run" מספר 🌙', '"><b>': "'&amp;" };
    const set = { metadata, x_batchd: { priority: -3, budget: "12.5" } };
    const { id } = await submitLines(service.openai, [chatLine("bad", "[[status 400]]")], set);
    await service.ended(id);
    const page = await visit.openPage(`/batches/${id}`);
    const again = page.getByRole("button", { name: "Run failed lines again" });
    const description =
      "The new batch keeps metadata and priority, and has a budget of its own: 12.50 USD.";
    await again.and(page.locator("[aria-describedby=act-rerun-note]")).waitFor();
    await page.getByText(description).waitFor();
    await page.emulateMedia({ media: "print" });
    await page.getByText(description).waitFor({ state: "hidden" });
    await page.emulateMedia({ media: "screen" });
    await again.click();
    await page.waitForURL((url) => /batch_/.test(url.pathname) && !url.pathname.endsWith(id));
    expect(await service.ended(page.url().split("/").at(-1)!)).toMatchObject(set);
  });

  test("takes no other rows for an input that is sent already", async () => {
    const page = await opened("rows.csv", "country\nPeru\n");
    await page.getByLabel("Model").fill("test-model");
    await page.getByLabel("Window").fill("2d");
    await create(page);
    await fault(page, "Value must be '24h'.");
    await page.getByLabel("Window").fill("24h");
    await page.getByLabel("Prompt for each row").fill("Capital of {{country}}?");
    await create(page);
    await page.waitForURL(/batches\/batch_/);
    const { input_file_id: input } = await visit.service.ended(page.url().split("/").at(-1)!);
    const text = await (await visit.service.openai.files.content(input)).text();
    expect(text).toContain("Capital of Peru?");
  });

  test("is made of the file that is chosen, although another one was under way", async () => {
    const page = await opened("first.jsonl", chatLine("first", "Hi"));
    await page.getByLabel("Window").fill("2d");
    let pass = () => {};
    const arrived = new Promise<void>((resolve) => {
      void page.route(
        (url) => url.pathname.endsWith("/web/v1/files"),
        async (route) => {
          resolve();
          await new Promise<void>((go) => {
            pass = go;
          });
          await route.continue();
        },
        { times: 1 },
      );
    });
    await create(page);
    await arrived;
    await choose(page, "second.jsonl", chatLine("second", "Hi"));
    await page.getByText("1 line, no fault found.").waitFor();
    pass();
    await fault(page, "Value must be '24h'.");
    await page.getByLabel("Window").fill("24h");
    await create(page);
    await page.waitForURL(/batches\/batch_/);
    const { output_file_id: output } = await visit.service.ended(page.url().split("/").at(-1)!);
    expect(await visit.service.rows(output)).toMatchObject([{ custom_id: "second" }]);
  });

  test("runs without no number that the browser cannot read", async () => {
    const before = await batchCount();
    const page = await opened("sample.jsonl", chatLines(1)[0]!);
    await page.getByLabel("Sample").pressSequentially("2e");
    await create(page);
    await fault(page, "Sample: ");
    expect(await batchCount()).toBe(before);
    await page.getByLabel("Sample").fill("");
    await page.getByLabel("Budget").fill("5 euros");
    await create(page);
    await fault(page, "Budget: Write an amount such as 5.00.");
    expect(await batchCount()).toBe(before);
  });

  test("has each value of its metadata that is written", async () => {
    const page = await opened("twice.jsonl", chatLine("a", "Peru"));
    await page.getByLabel("Metadata").fill("team=search\nrun=7\nteam = news");
    await create(page);
    await fault(page, "Metadata has one value for a key, and team has two.");
    await page.getByLabel("Metadata").fill("team=search\nrun=7");
    await create(page);
    await page.waitForURL(/batches\/batch_/);
  });

  test("has no gap where its system prompt names a column that is not there", async () => {
    const page = await opened("system.csv", "country\nPeru\n");
    await page.getByLabel("Model").fill("test-model");
    await page.getByLabel("System prompt").fill("You know {{contry}}.");
    await fault(page, "There is no column {{contry}}.");
    await create(page);
    await fault(page, "There is no column {{contry}}.");
    await page.getByLabel("System prompt").fill("You know {{country}}.");
    await create(page);
    await page.waitForURL(/batches\/batch_/);
  });

  test.each(["files", "batches"])(
    "can be tried again where a proxy answers for %s with a page to sign in",
    async (path) => {
      const page = await opened("proxy.jsonl", chatLine("a", "Peru"));
      const body = "<html>Sign in</html>";
      const answer = { status: 200, contentType: "text/html", body };
      const isPath = (url: URL) => url.pathname.endsWith(`/web/v1/${path}`);
      await page.route(isPath, (route) => route.fulfill(answer), { times: 1 });
      await create(page);
      await fault(page, "Something between this page and the server has answered.");
      await create(page);
      await page.waitForURL(/batches\/batch_/);
    },
  );

  test("is made of a file in parts in a browser that keeps nothing for pages", async () => {
    const path = join(visit.folder, "large.jsonl");
    await writeFile(path, `${chatLine("a", "x".repeat(68_000_000))}\n`);
    const page = await visit.openPage("/new");
    await page.evaluate(`Object.defineProperty(window, "localStorage", {
      get: () => { throw new DOMException("denied", "SecurityError"); },
    })`);
    await page.locator("input[type=file]").setInputFiles(path);
    await page.getByText("1 line, no fault found.").waitFor();
    await create(page);
    await page.waitForURL(/batches\/batch_/);
  });

  test("shows its lines, although one of them has a form that no table knows", async () => {
    const deep = `${"[".repeat(20_000)}${"]".repeat(20_000)}`;
    const odd = (id: string, messages: string) =>
      `{"custom_id":"${id}","method":"POST","url":"/v1/chat/completions","body":{"model":"test-model","messages":${messages}}}`;
    const lines = [odd("deep", deep), odd("no-list", '{"at":1}'), chatLine("plain", "Peru")];
    const { id } = await visit.service.run(lines);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("Lines 1 to 3").waitFor();
    expect(await page.locator("#lines-rows tr").count()).toBe(3);
    await page.getByRole("button", { name: "JSON of line 1" }).click();
    await page.getByRole("dialog").getByText("nested too deeply").waitFor();
  });
});
