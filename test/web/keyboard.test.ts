/** The page with the keyboard alone: where the focus is, and what a key that is pressed next does. */
import type { Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { hasChromium } from "../support/browser.ts";
import { chatLine } from "../support/service.ts";
import { choose, Visit } from "../support/visit.ts";

describe.skipIf(!hasChromium())("with the keyboard", () => {
  let visit: Visit;
  beforeAll(async () => {
    visit = await Visit.start();
  });
  afterEach(async () => expect(await visit.leave()).toEqual([]));
  afterAll(() => visit[Symbol.asyncDispose]());

  const focused = (page: Page) =>
    page.evaluate(
      "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent",
    );

  const button = (page: Page, name: string) => page.getByRole("button", { name, exact: true });

  test("a batch is paused and resumed with the same key", async () => {
    const { id } = await visit.held(2);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("Live").waitFor();
    await button(page, "Pause").focus();
    for (const next of ["Resume", "Pause"]) {
      await page.keyboard.press("Enter");
      await button(page, next).waitFor();
      await expect.poll(() => focused(page)).toBe(next);
    }
    await button(page, "Cancel").focus();
    await page.keyboard.press("Enter");
    await expect.poll(() => focused(page)).toBe("Keep");
    await page.keyboard.press("Escape");
    await expect.poll(() => focused(page)).toBe("Cancel");
  });

  test("a button never becomes another one before it is pressed", async () => {
    visit.upstream.hold();
    const before = visit.upstream.total;
    const lines = [chatLine("good", "Hello"), chatLine("bad", "[[status 400]]")];
    const { id } = await visit.service.submit(lines);
    await visit.upstream.reached(before + 2);
    const page = await visit.openPage(`/batches/${id}`);
    await button(page, "Pause").focus();
    visit.upstream.release();
    await button(page, "Run failed lines again").waitFor();
    expect(await focused(page)).toBe("Actions");
  });

  test("a screen reader reads out that the batch has paused after its sample, and that it has ended", async () => {
    const input = await visit.service.upload([chatLine("a", "Hello"), chatLine("b", "Hi")]);
    const own = { x_batchd: { sample: 1 } };
    visit.upstream.hold();
    const { id } = await createBatch(visit.service.openai, input, own);
    const page = await visit.openPage(`/batches/${id}`);
    const news = page.getByRole("status").and(page.locator("#news"));
    await news.waitFor({ state: "attached" });
    expect(await news.textContent()).toBe("");
    // Only what changes in an element that stays is read out.
    await news.evaluate("document.getElementById('news').mark = true");
    visit.upstream.release();
    await expect.poll(() => news.textContent()).toBe("The batch is paused.");
    await button(page, "Resume").click();
    await expect.poll(() => news.textContent()).toBe("The batch is completed.");
    expect(await page.evaluate("document.getElementById('news').mark")).toBe(true);
  });

  test("a line keeps the focus while its answer comes", async () => {
    const { id } = await visit.held(2);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByRole("button", { name: "JSON of line 2" }).focus();
    visit.upstream.release();
    await page.locator("#lines-rows tr", { hasText: "echo: question 1" }).waitFor();
    expect(await focused(page)).toBe("JSON of line 2");
  });

  test("the lines of a batch that runs stay while another filter is typed", async () => {
    const { id } = await visit.held(2);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("Lines 1 to 2").waitFor();
    await page.getByLabel("custom_id").fill("not yet compl");
    visit.upstream.release();
    await page.locator("#lines-rows tr", { hasText: "echo: question 1" }).waitFor();
  });

  test("lines that have ended are not asked for again while their batch runs", async () => {
    // So many are not under way at once, so the first ones are among those that are answered.
    visit.upstream.holdAfter(visit.upstream.total + 150);
    const lines = Array.from({ length: 200 }, (_, n) => chatLine(`line-${n}`, `question ${n}`));
    const { id } = await visit.service.submit(lines);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("150 of 200").waitFor();
    await page.clock.install();
    await page.reload();
    await page.getByText("Lines 1 to 20").waitFor();
    await page.getByText("Live").waitFor();
    const asked: string[] = [];
    page.on("request", (request) => asked.push(new URL(request.url()).search));
    visit.upstream.release();
    await page.getByText("200 of 200").waitFor();
    await page.clock.fastForward("00:10");
    await page.getByRole("button", { name: "Next lines" }).click();
    await page.getByText("Lines 21 to 40").waitFor();
    expect(asked).toEqual(["?limit=20&after_line=20"]);
  });

  test("the lines of a batch that runs come over a slow network, too", async () => {
    visit.upstream.holdAfter(visit.upstream.total + 150);
    const lines = Array.from({ length: 200 }, (_, n) => chatLine(`slow-${n}`, `question ${n}`));
    const { id } = await visit.service.submit(lines);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("150 of 200").waitFor();
    await page.clock.install();
    const came = Promise.withResolvers<void>();
    const asked: string[] = [];
    await page.route("**/lines?*", async (route) => {
      asked.push(route.request().url());
      if (asked.length > 1) return;
      await came.promise;
      await route.continue();
    });
    await page.reload();
    await page.getByText("Live").waitFor();
    visit.upstream.release();
    await page.getByText("200 of 200").waitFor();
    await page.clock.fastForward("00:10");
    came.resolve();
    await page.getByText("Lines 1 to 20").waitFor();
    await page.unrouteAll();
  });

  test("the way back through filters shows those of each list", async () => {
    const page = await visit.openPage("/");
    const status = page.getByRole("combobox", { name: "Status" });
    for (const value of ["completed", "failed"]) {
      await status.selectOption(value);
      await button(page, "Filter").press("Enter");
      await page.waitForURL((url) => url.searchParams.get("status") === value);
    }
    for (const value of ["completed", ""]) {
      await page.goBack();
      expect(new URL(page.url()).searchParams.get("status") ?? "").toBe(value);
      await expect.poll(() => status.inputValue()).toBe(value);
    }
  });

  test("a second press before the next page is there does nothing", async () => {
    const { openai } = visit.service;
    const { id } = await visit.service.run([chatLine("bad", "[[status 400]]")]);
    const page = await visit.openPage(`/batches/${id}`);
    const asked = Promise.withResolvers<void>();
    const slow = Promise.withResolvers<void>();
    await page.route("**/batches/*", async (route) => {
      asked.resolve();
      await slow.promise;
      await route.continue();
    });
    const count = (await openai.batches.list()).data.length;
    await button(page, "Run failed lines again").focus();
    await page.keyboard.press("Enter");
    await asked.promise;
    await page.keyboard.press("Enter");
    slow.resolve();
    await page.waitForURL((url) => !url.pathname.endsWith(id));
    expect((await openai.batches.list()).data.length).toBe(count + 1);
  });

  test("a button whose answer breaks off can be pressed again", async () => {
    const { id } = await visit.held(1);
    const page = await visit.openPage(`/batches/${id}`);
    await page.evaluate(
      "Response.prototype.text = () => Promise.reject(new TypeError('network error'))",
    );
    await button(page, "Pause").press("Enter");
    await page.getByText("The server does not answer.").first().waitFor();
    await expect.poll(() => page.locator(".actions button:disabled").count()).toBe(0);
  });

  /** Presses a button as a person with a keyboard does, and waits for what it brings. */
  async function press(page: Page, name: string, brings: string): Promise<void> {
    await page.getByRole("button", { name, exact: true }).focus();
    await page.keyboard.press("Enter");
    await page.getByText(brings).first().waitFor();
  }

  test("the focus stays beside a button that is gone or off once it is pressed", async () => {
    const lines = Array.from({ length: 25 }, (_, n) => chatLine(`line-${n}`, "[[status 400]]"));
    const { id } = await visit.service.run(lines);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("Lines 1 to 20").waitFor();
    await press(page, "Next lines", "Lines 21 to 25");
    await expect.poll(() => focused(page)).toBe("First lines");
    await press(page, "First lines", "Lines 1 to 20");
    await expect.poll(() => focused(page)).toBe("Next lines");
    await press(page, "Show examples", "400 · line 1 · line-0");
    await expect.poll(() => focused(page)).toBe("Show examples");
  });

  test("the focus stays on a field or button through an upload and a refusal", async () => {
    const page = await visit.openPage("/files");
    await page.locator("input[type=file]").focus();
    await choose(page, "in.jsonl", chatLine("a", "b"));
    await page.getByText("in.jsonl is uploaded.").waitFor();
    await expect.poll(() => page.evaluate("document.activeElement.type")).toBe("file");
    await page.goto(new URL("/new", page.url()).href);
    await choose(page, "in.jsonl", chatLine("a", "b"));
    await page.getByText("1 line, no fault found.").waitFor();
    // A proxy answers for the server. The console would have the status of a refusal.
    await page.route("**/v1/batches", (route) => route.fulfill({ body: "<p>Sign in</p>" }));
    await press(page, "Create batch", "Something between this page and the server has answered.");
    await expect.poll(() => focused(page)).toBe("Create batch");
  });

  test("the focus stays at the actions when a batch ends behind the question about it", async () => {
    const { id } = await visit.held(2);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("Live").waitFor();
    await press(page, "Cancel", "Cancel this batch?");
    visit.upstream.release();
    await page.locator("#act-cancel").waitFor({ state: "detached" });
    await page.keyboard.press("Escape");
    await expect.poll(() => focused(page)).toBe("Actions");
  });

  test("the focus stays at the actions when what a button did is seen before its answer", async () => {
    const { id } = await visit.held(2);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("Live").waitFor();
    const seen = Promise.withResolvers<void>();
    await page.route("**/cancel", async (route) => {
      const response = await route.fetch();
      await seen.promise;
      await route.fulfill({ response });
    });
    await press(page, "Cancel", "Cancel this batch?");
    for (const key of ["Tab", "Enter"]) await page.keyboard.press(key);
    await page.locator("#act-cancel").waitFor({ state: "detached" });
    seen.resolve();
    await page.getByText("Cancel: done.").waitFor();
    await expect.poll(() => focused(page)).toBe("Actions");
  });

  test.each([320, 640, 1280])(
    "what gets the focus is not hidden by the bar, %i pixels wide",
    async (width) => {
      for (let n = 0; n < 4; n++) await visit.held(1);
      const page = await visit.openPage("/", { viewport: { width, height: 300 } });
      const links = page.locator("tbody a");
      await links.nth(3).waitFor();
      await links.last().focus();
      const tops: number[] = [];
      const top = () => page.evaluate<number>(FREE_TOP);
      for (const key of [...Array<string>(8).fill("Shift+Tab"), "Tab"]) {
        await page.keyboard.press(key);
        tops.push(await top());
      }
      expect(Math.min(...tops)).toBeGreaterThanOrEqual(0);
    },
  );
});

/** The pixels between the bar and what has the focus. */
const FREE_TOP = `document.activeElement.getBoundingClientRect().top -
  document.querySelector(".bar").getBoundingClientRect().bottom`;
