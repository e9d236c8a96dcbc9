/** People at the web page, in a real browser, with a real server and running batches. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { axeFaults } from "../support/axe.ts";
import { createBatch } from "../support/batches.ts";
import { hasChromium } from "../support/browser.ts";
import { chatLine, type TestService } from "../support/service.ts";
import type { TestUpstream } from "../support/upstream.ts";
import { choose, Visit } from "../support/visit.ts";

/** Text that would do something if it were taken for more than text. */
const HOSTILE = [
  "<script>window.hacked = 1</script>",
  '<img src=x onerror="window.hacked = 1">',
  '<svg onload="window.hacked = 1"><a href="https://evil.example">',
  "[click](javascript:alert(1)) ![x](https://evil.example/x.png)",
  '"><iframe srcdoc="<script>top.hacked = 1</script>"></iframe>',
  "\u001b]8;;https://evil.example\u0007link\u001b]8;;\u0007 \u001b[2J",
  "user\u202etxt.exe \u2066hidden\u2069 \u200bzero \u0085next",
];

describe.skipIf(!hasChromium())("in a browser", () => {
  let visit: Visit;
  let upstream: TestUpstream;
  let service: TestService;
  let folder: string;

  beforeAll(async () => {
    visit = await Visit.start();
    ({ upstream, service, folder } = visit);
  });
  afterEach(async () => expect(await visit.leave()).toEqual([]));
  afterAll(() => visit[Symbol.asyncDispose]());

  test("a batch can be watched, paused, resumed and cancelled without a reload", async () => {
    const { id } = await visit.held(3);
    const list = await visit.openPage("/");
    await list.locator(`#row-${id}`).getByText("in progress").waitFor();
    const page = await visit.openPage(`/batches/${id}`);
    await page.evaluate("window.mark = 1");
    await page.getByText("0 of 3 · 0%").waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.locator(".notice", { hasText: "It paused" }).waitFor();
    await list.locator(`#row-${id}`).getByText("paused").waitFor();
    await page.getByRole("button", { name: "Resume" }).click();
    await page.locator(".notice").waitFor({ state: "detached" });

    const cancel = page.getByRole("button", { name: "Cancel" });
    await cancel.click();
    await page.getByRole("dialog", { name: "Cancel this batch?" }).waitFor();
    await page.keyboard.press("Escape");
    expect((await service.openai.batches.retrieve(id)).status).toBe("in_progress");
    await cancel.click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
    upstream.release();
    await page.getByText("cancelled", { exact: true }).first().waitFor();
    expect((await service.ended(id)).status).toBe("cancelled");
    expect(await page.evaluate("window.mark === 1")).toBe(true);
  });

  test("lines count up while they end, and the answers can be downloaded", async () => {
    const { id } = await visit.held(2);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("0 of 2 · 0%").waitFor();
    upstream.release();
    await page.getByText("2 of 2 · 100%").waitFor();
    await page.locator(".head").getByText("completed").waitFor();
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("link", { name: "Answers" }).click(),
    ]);
    const path = join(folder, "download.jsonl");
    await download.saveAs(path);
    const batch = await service.ended(id);
    expect(readFileSync(path, "utf8")).toBe(await service.text(batch.output_file_id));
    expect(download.suggestedFilename()).toBe(`${id}_output.jsonl`);
  });

  test("a batch is deleted only after a question, with the keyboard alone, and its input with it", async () => {
    const { id, input_file_id: input } = await service.run([chatLine("a", "b")]);
    const page = await visit.openPage(`/batches/${id}`);
    const remove = page.getByRole("button", { name: "Delete" });
    await remove.focus();
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog", { name: "Delete this batch?" });
    await dialog.waitFor();
    // The answer that loses nothing has the focus.
    expect(await page.evaluate("document.activeElement.textContent")).toBe("Keep");
    await page.keyboard.press("Enter");
    await dialog.waitFor({ state: "hidden" });
    await page.keyboard.press("Enter");
    await dialog.getByRole("checkbox", { name: "Delete its input file, too" }).check();
    await dialog.getByRole("button", { name: "Delete" }).focus();
    await page.keyboard.press("Enter");
    await page.waitForURL(`${service.url}/`);
    await expect(service.openai.batches.retrieve(id)).rejects.toThrow("404");
    await expect(service.openai.files.retrieve(input)).rejects.toThrow("404");
  });

  test("a deleted batch gives way to the list, also where that comes after the end of its events", async () => {
    const { id } = await visit.held(1);
    const page = await visit.openPage(`/batches/${id}`);
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
    const end = page.waitForEvent("requestfinished", (each) => each.url().includes("/web/live/"));
    await page.route(`${service.url}/`, async (route) => {
      await end;
      await route.continue();
    });
    await page.getByRole("button", { name: "Delete" }).click();
    await page.locator("#ask-yes").click();
    await page.waitForURL(`${service.url}/`, { timeout: 20_000 });
  });

  test("a question that follows another at once has an answer of its own", async () => {
    const { id } = await service.run([chatLine("a", "b")]);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByRole("button", { name: "Delete" }).click();
    const dialog = page.getByRole("dialog", { name: "Delete this batch?" });
    await dialog.waitFor();
    // The second press comes before the page has the event of the end of the first question.
    await page.evaluate(`
      document.getElementById("ask").close("no");
      document.querySelector("button[data-ask='Delete this batch?']").click();
    `);
    await dialog.getByRole("button", { name: "Delete" }).click();
    await page.waitForURL(`${service.url}/`);
  });

  test("the list keeps to its filters", async () => {
    const { id } = await service.run([chatLine("a", "b")]);
    const page = await visit.openPage("/");
    await page.locator(`#row-${id}`).waitFor();
    await page.getByLabel("Status").selectOption("failed");
    await page.getByRole("button", { name: "Filter" }).click();
    await page.waitForURL(/status=failed/);
    expect(await page.locator(`#row-${id}`).count()).toBe(0);
    await page.goto(
      `${service.url}/?status=completed&age=24h&model=test-model&endpoint=/v1/chat/completions`,
    );
    await page.locator(`#row-${id}`).waitFor();
    await page.goto(`${service.url}/?metadata=team%3Dnone`);
    await page.getByText("No batch matches").waitFor();
    const refused = await fetch(`${service.url}/?status=wrong`, {
      headers: { accept: "text/html" },
    });
    expect([refused.status, await refused.text()]).toEqual([
      400,
      expect.stringContaining('<a href="./">Show all</a>'),
    ]);
  });

  test("the list asks for the value of a pair of metadata that has none, in place of an empty list", async () => {
    const { id } = await service.run([chatLine("a", "b")]);
    const page = await visit.openPage("/");
    await page.locator(`#row-${id}`).waitFor();
    const pair = page.getByLabel("Metadata");
    const isTaken = async () => (await page.locator("[name=metadata]:valid").count()) === 1;
    for (const text of ["team", "=search", " = search"]) {
      await pair.fill(text);
      expect(await isTaken(), text).toBe(false);
    }
    await pair.press("Enter");
    expect(await page.locator(`#row-${id}`).count()).toBe(1);
    expect(page.url()).not.toContain("metadata=");
    await pair.fill(" team = a=b ");
    expect(await isTaken()).toBe(true);
    await pair.press("Enter");
    await page.getByText("No batch matches").waitFor();
  });

  test("a sample pauses its batch, and failed lines are run again in a batch with all results", async () => {
    const page = await visit.openPage("/new");
    const lines = [chatLine("good", "b"), chatLine("bad", "[[status 400]]")];
    await choose(page, "in.jsonl", lines.join("\n"));
    await page.getByText("2 lines, no fault found.").waitFor();
    await page.getByLabel("Sample").fill("1");
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.locator(".notice", { hasText: "The lines of its sample have ended" }).waitFor();
    const old = page.url();
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByRole("button", { name: "Run failed lines again" }).click();
    await page.waitForURL((url) => url.href !== old);
    await page.getByText("0 of 1").or(page.getByText("1 of 1")).waitFor();
    expect((await service.ended(page.url().split("/").at(-1)!)).request_counts?.total).toBe(1);
    await page.getByRole("link", { name: old.split("/").at(-1)! }).click();
    await page.getByText("Run again by").waitFor();
    expect(await page.getByRole("button", { name: "Run failed lines again" }).count()).toBe(0);
  });

  test("a batch at its budget gets another one, and goes on", async () => {
    const input_file_id = await service.upload([chatLine("a", "Hello")]);
    const own = { x_batchd: { budget: "0.0000001" } };
    const { id } = await createBatch(service.openai, input_file_id, own);
    const page = await visit.openPage(`/batches/${id}`);
    const field = page.getByRole("textbox", { name: "Budget" });
    await field.waitFor();
    expect(await page.locator("button.primary").allTextContents()).toEqual(["Set and resume"]);
    // Another person changes it meanwhile.
    await service.openai.post(`/batches/${id}`, { body: { budget: "0.0000002" } });
    await expect.poll(() => field.inputValue()).toBe("0.0000002");
    await field.fill("5");
    await field.press("Enter");
    await page.getByText("1 of 1 · 100%").waitFor();
    await page.getByText("5.00 USD").waitFor();
    await field.waitFor({ state: "detached" });
  });

  test("lines are shown with question and answer while a batch runs, as text, and as JSON at a click", async () => {
    upstream.hold();
    const texts = [...HOSTILE, "What is [[status 400]]"];
    const { id } = await service.submit(texts.map((text, n) => chatLine(`line-${n}`, text)));
    const page = await visit.openPage(`/batches/${id}`);
    const rows = page.locator("#lines-rows tr");
    await rows.filter({ hasText: "window.hacked" }).first().waitFor();
    await expect.poll(() => rows.count()).toBe(texts.length);
    await expect.poll(() => rows.filter({ hasText: "…" }).count()).toBe(texts.length);
    upstream.release();
    await page.locator(".head").getByText("completed").waitFor();
    await rows.filter({ hasText: "line-7" }).locator(".fault").waitFor();
    await page.locator("#lines-form select").selectOption("failed");
    await page.getByRole("button", { name: "Find" }).click();
    await page.getByText("Lines 8 to 8").waitFor();
    await page.locator("#lines-form select").selectOption("");
    await page.getByLabel("custom_id").fill("line-0");
    await page.getByRole("button", { name: "Find" }).click();
    await page.getByText("Lines 1 to 1").waitFor();
    await page.getByRole("button", { name: "JSON of line 1" }).click();
    const raw = JSON.parse((await page.locator("#raw-text").textContent()) ?? "");
    // A preview on the page for a new batch is lower.
    expect((await page.locator("#raw-text").boundingBox())?.height).toBeGreaterThan(300);
    expect([raw.custom_id, raw.status]).toEqual(["line-0", "succeeded"]);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Show examples" }).click();
    await page.locator("#examples").getByText("line 8 · line-7").waitFor();
    expect(await page.evaluate("'hacked' in window")).toBe(false);
    expect(await page.locator("main").locator("script, img, iframe, [href*='evil']").count()).toBe(
      0,
    );
  });

  test("the answers are there with the end of their batch, also once a line was read meanwhile", async () => {
    upstream.hold();
    const { id } = await service.submit([chatLine("a", "Yes")]);
    const page = await visit.openPage(`/batches/${id}`);
    const answer = page.locator("#lines-rows td:nth-child(4)");
    await answer.getByText("…").waitFor();
    await page.clock.install();
    await page.clock.pauseAt(Date.now() + 60_000);
    upstream.release();
    await page.locator(".head").getByText("completed").waitFor();
    await answer.getByText("Yes").waitFor();
    await page.clock.resume();

    upstream.hold();
    const later = await service.submit([chatLine("a", "No")]);
    const reading = await visit.openPage(`/batches/${later.id}`);
    await reading.getByRole("button", { name: "JSON of line 1" }).click();
    upstream.release();
    await reading.locator(".head").getByText("completed").waitFor();
    await reading.keyboard.press("Escape");
    await reading.locator("#lines-rows td:nth-child(4)").getByText("No").waitFor();
  });

  test("a batch without lines has no empty table of them", async () => {
    const { id } = await service.run([chatLine("a", "b"), "{"]);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("No lines.").waitFor();
    expect(await page.getByRole("columnheader", { name: "Question" }).count()).toBe(0);
  });

  test("the upstreams are shown as available or not asked, and a chart that follows them", async () => {
    const page = await visit.openPage("/upstreams");
    await page.locator("tr", { hasText: "down" }).getByText("available").waitFor();
    const { id } = await service.submit([chatLine("a", "b", { model: "unreachable" })]);
    await page.locator("tr", { hasText: "down" }).getByText("not asked").waitFor();
    await page
      .locator(".card", { hasText: "unreachable" })
      .getByText("It does not answer")
      .waitFor();
    await expect.poll(() => page.locator(".chart canvas").count()).toBe(2);
    const tops = await page
      .locator(".chart")
      .evaluateAll((charts) => charts.map((each) => each.getBoundingClientRect().top));
    expect(tops[0]).toBe(tops[1]);
    await page.goto(`${service.url}/batches/${id}`);
    await page.locator(".notice", { hasText: "None of its upstreams answers." }).waitFor();
    await service.openai.batches.cancel(id);
    await service.ended(id);
  });

  test("the course of a batch is drawn while it runs, with its figures as a table that stays open", async () => {
    const { id } = await visit.held(3);
    const page = await visit.openPage(`/batches/${id}`);
    const chart = page.getByRole("img", { name: /^Lines per second/ });
    await chart.locator("canvas").waitFor();
    const course = page.locator("section", { hasText: "Lines per second" });
    await course.getByText("As a table").click();
    await course.getByRole("cell", { name: "0", exact: true }).first().waitFor();
    expect(await page.getByRole("img", { name: /^Lines by the time/ }).count()).toBe(0);
    const before = await page.locator("#lines-rate").getAttribute("data-points");
    upstream.release();
    await course.getByRole("cell", { name: "3", exact: true }).waitFor();
    await page
      .getByRole("img", { name: /^Lines by the time/ })
      .locator("canvas")
      .waitFor();
    await page.getByText("99% within").waitFor();
    expect(await page.locator("#lines-rate").getAttribute("data-points")).not.toBe(before);
    await expect.poll(() => page.locator(".chart canvas").count()).toBe(3);
    await chart.hover();
    await chart.getByText(/^\d{4}-\d\d-\d\d \d\d:\d\d$/).waitFor();
  });

  test.each(["/batches", "/batches/"])("the address %s leads to the list", async (path) => {
    const page = await visit.openPage(path);
    await page.getByRole("heading", { name: "Batches", exact: true }).waitFor();
    expect(page.url()).toBe(`${service.url}/`);
  });

  test("a batch whose input was refused waits for no model and no price", async () => {
    const { id } = await service.submit([chatLine("a", "b", { model: "unknown" })]);
    await service.ended(id);
    const page = await visit.openPage(`/batches/${id}`);
    await page.getByText("The input was refused").waitFor();
    const facts = await page.locator("#facts dl > div").allInnerTexts();
    expect(facts).toEqual(expect.arrayContaining(["Model\nnone", "Cost\nnone"]));
  });

  test("the usage is a chart, a table and a CSV", async () => {
    await service.run([chatLine("a", "b")]);
    const page = await visit.openPage("/usage");
    await page.locator(".chart canvas").waitFor();
    await page.getByRole("checkbox", { name: "project" }).check();
    await page.getByRole("button", { name: "Show" }).click();
    await page.getByRole("columnheader", { name: "Project" }).waitFor();
    await page.getByRole("cell", { name: "test-model" }).first().waitFor();
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("link", { name: "CSV" }).click(),
    ]);
    const path = join(folder, "usage.csv");
    await download.saveAs(path);
    expect(readFileSync(path, "utf8")).toMatch(
      /"project","model","day".*\r\n"default","test-model"/,
    );
  });

  test.each([
    ["light", 1280],
    ["light", 768],
    ["dark", 360],
  ] as const)(
    "axe finds nothing in %s at %i px, and no page is wider",
    async (colorScheme, width) => {
      const { id } = await visit.held(2);
      const model = "a-very-long-name/of-a-model-".repeat(4);
      const { id: long } = await service.submit([chatLine("long", "Hi", { model })]);
      await createBatch(service.openai, "file-none", { endpoint: "/v1/embeddings" });
      const page = await visit.openPage("/", { colorScheme, viewport: { width, height: 800 } });
      const batches = [`/batches/${id}`, `/batches/${long}`];
      for (const path of ["/", ...batches, "/new", "/files", "/upstreams", "/usage"]) {
        await page.goto(service.url + path);
        expect([path, await axeFaults(page)]).toEqual([path, []]);
        expect([path, await page.evaluate("document.documentElement.scrollWidth")]).toEqual([
          path,
          width,
        ]);
        const hidden = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)";
        const cut = await page.evaluate(
          `${hidden}(document.querySelector(".scroll") ?? document.body)`,
        );
        // A long name must push no column out of sight.
        expect([path, cut]).toEqual([path, 0]);
      }
    },
  );

  // It is the last one, because it changes the configuration.
  test("a chart stays with its upstream when a reload puts another one before it", async () => {
    const page = await visit.openPage("/upstreams");
    const card = (name: string) => page.locator("section.card", { hasText: name });
    await card("gpu").locator("canvas").waitFor();
    await card("gpu")
      .locator(".chart")
      .evaluate((chart) => chart.setAttribute("data-mark", "gpu"));
    const names = ["an-early-one", "gpu", "down"];
    const upstreams = names.map((name) => ({ name, base_url: upstream.url, models: [name] }));
    service.reconfigure({ upstreams });
    await card("an-early-one").locator("canvas").waitFor();
    expect(await card("gpu").locator("[data-mark=gpu]").count()).toBe(1);
    expect(await page.locator("[data-mark]").count()).toBe(1);
  });
});
