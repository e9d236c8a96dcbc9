/** People who send files on the web page, in a real browser, with a real server. */
import { truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { hasChromium } from "../support/browser.ts";
import { chatLine, type TestService } from "../support/service.ts";
import { choose, Visit } from "../support/visit.ts";

describe.skipIf(!hasChromium())("in a browser", () => {
  let visit: Visit;
  let service: TestService;
  let folder: string;

  beforeAll(async () => {
    visit = await Visit.start();
    ({ service, folder } = visit);
  });
  afterEach(async () => expect(await visit.leave()).toEqual([]));
  afterAll(() => visit[Symbol.asyncDispose]());

  test("a CSV file becomes a batch through a template, with a preview of three lines", async () => {
    const page = await visit.openPage("/new");
    await choose(page, "c.csv", 'id,country\na,Peru\nb,"Chad, the"\nc,Laos\nd,Mali\n');
    await page.getByText("4 rows.").waitFor();
    await page.getByLabel("Prompt for each row").fill("Capital of {{country}} {{city}}?");
    await page.getByText("There is no column {{city}}.").waitFor();
    await page.getByLabel("Prompt for each row").fill("Capital of {{country}}?");
    await page.getByLabel("Model").fill("test-model");
    const lines = await page.locator("#first-lines pre").allTextContents();
    expect(lines.map((line) => JSON.parse(line))).toEqual(
      [
        ["a", "Peru"],
        ["b", "Chad, the"],
        ["c", "Laos"],
      ].map(([custom_id, country]) => ({
        custom_id,
        method: "POST",
        url: "/v1/chat/completions",
        body: {
          model: "test-model",
          messages: [{ role: "user", content: `Capital of ${country}?` }],
        },
      })),
    );
    await page.getByLabel("Metadata").fill("team=search\nrun=7");
    await page.getByLabel("Budget").fill("12.50");
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.waitForURL(/batches\/batch_/);
    const id = page.url().split("/").at(-1)!;
    const ended = await service.ended(id);
    const { output_file_id: output, metadata } = ended;
    expect(metadata).toEqual({ team: "search", run: "7" });
    expect(ended).toMatchObject({ x_batchd: { budget: "12.50" } });
    expect((await service.rows(output)).map(({ custom_id }) => custom_id)).toEqual([
      "a",
      "b",
      "c",
      "d",
    ]);
  });

  test("a JSONL file with faults is not sent, and the faults have line numbers", async () => {
    const page = await visit.openPage("/new");
    const good = chatLine("a", "b");
    const { data } = await service.openai.files.list();
    const faulty = [good, "{", good, JSON.stringify({ custom_id: "c" })];
    await choose(page, "in.jsonl", faulty.join("\n"));
    await page.getByText("Line 4: method must be POST.").waitFor();
    expect(await page.locator(".faults li").allTextContents()).toEqual([
      "Line 2: The line is not a JSON object.",
      "Line 3: custom_id is the same as on a line before.",
      "Line 4: method must be POST.",
    ]);
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.getByText("Choose a file first.").waitFor();
    expect((await service.openai.files.list()).data).toEqual(data);
    await choose(page, "in.jsonl", good);
    await page.getByText("1 line, no fault found.").waitFor();
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.waitForURL(/batches\/batch_/);
    await service.ended(page.url().split("/").at(-1)!);
  });

  test("a file above 64 MB goes in parts, and what is lost goes again", async () => {
    const page = await visit.openPage("/files");
    const path = join(folder, "large.jsonl");
    const line = `${chatLine("a", "x".repeat(65_000))}\n`;
    await writeFile(path, line.repeat(1_050));
    await page.evaluate(`
      const { send } = XMLHttpRequest.prototype;
      window.sent = 0;
      XMLHttpRequest.prototype.send = function (body) {
        send.call(this, body);
        if (window.sent++ === 2) this.abort();
      };`);
    // The first call has completed the upload, and its server died: the key is free again after a minute.
    const inUse = Array.from({ length: 8 }, () => 409);
    const statuses = [502, ...inUse];
    await page.route("**/complete", async (route) => {
      const status = statuses.shift();
      if (status === undefined) return route.continue();
      if (status === 502) await route.fetch();
      await route.fulfill({ status });
    });
    // Only the pauses are shorter, not the time after which a network counts as silent.
    await page.evaluate(
      "const wait = setTimeout; window.setTimeout = (act, ms) => wait(act, ms > 10_000 ? ms : ms / 1000)",
    );
    await page.locator("input[type=file]").setInputFiles(path);
    const row = page.locator("tr", { hasText: "large.jsonl" });
    await row.waitFor();
    const [file] = (await service.openai.files.list({ limit: 1 })).data;
    expect([file?.filename, file?.bytes]).toEqual(["large.jsonl", line.length * 1_050]);
    await expect.poll(() => page.evaluate("window.sent")).toBe(9 + inUse.length);
    await page.locator(".upload-state").waitFor({ state: "hidden" });
    await row.getByRole("button", { name: "First lines" }).click();
    await page.getByRole("dialog").getByText('"custom_id":"a"').waitFor();
    await page.keyboard.press("Escape");
    await row.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await row.waitFor({ state: "detached" });
    // The browser tells of these answers.
    const told = [502, ...inUse].map((status) => expect.stringContaining(String(status)));
    expect(await visit.leave()).toEqual(told);
  });

  test("the size of a file that is sent has the unit of the list of files", async () => {
    const page = await visit.openPage("/files");
    const path = join(folder, "huge.jsonl");
    await writeFile(path, "");
    await truncate(path, 2.3e9);
    await page.route("**/web/v1/uploads", (route) => route.abort());
    await page.locator("input[type=file]").setInputFiles(path);
    await page.getByText("0% of 2.3 GB").waitFor();
    expect(await visit.leave()).toContainEqual(expect.stringContaining("ERR_FAILED"));
  });

  test("a file that is dropped beside the place does not take the page away", async () => {
    const page = await visit.openPage("/new");
    const isTaken = (what: string) =>
      page.evaluate(`(() => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(${what});
        const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
        return !document.querySelector("h1").dispatchEvent(drop);
      })()`);
    expect(await isTaken('new File(["x"], "a.jsonl")')).toBe(true);
    expect(await isTaken('"a text", "text/plain"')).toBe(false);
  });

  test("what the browser cannot read, such as a folder, is said", async () => {
    const page = await visit.openPage("/new");
    // A folder that is dropped is a file whose bytes cannot be had.
    await page.evaluate(
      "Blob.prototype.arrayBuffer = () => Promise.reject(new DOMException('', 'NotFoundError'))",
    );
    await choose(page, "data.csv", "id,country\n1,Peru\n");
    await page.getByText("The browser cannot read data.csv.").waitFor();
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.getByText("Choose a file first.").waitFor();
  });

  test("the first lines that cannot be had are said to be missing", async () => {
    const id = await service.upload([chatLine("a", "Hi")]);
    const page = await visit.openPage("/files");
    const row = page.locator(`#row-${id}`);
    await page.route("**/content", (route) => route.abort(), { times: 1 });
    await row.getByRole("button", { name: "First lines" }).click();
    await page.getByText("The server does not answer.").waitFor();
    await row.getByRole("button", { name: "First lines" }).click();
    await page.getByRole("dialog").getByText('"custom_id":"a"').waitFor();
    expect(await visit.leave()).toEqual([expect.stringContaining("ERR_FAILED")]);
  });

  test("the first lines are those of the file that was asked for last", async () => {
    const early = await service.upload([chatLine("early", "Hi")]);
    const late = await service.upload([chatLine("late", "Hi")]);
    const page = await visit.openPage("/files");
    const press = (id: string) =>
      page.locator(`#row-${id}`).getByRole("button", { name: "First lines" }).click();
    const slow = Promise.withResolvers<void>();
    await page.route(`**/${early}/content`, async (route) => {
      await slow.promise;
      await route.continue();
    });
    await press(early);
    await press(late);
    await page.getByRole("dialog").getByText('"custom_id":"late"').waitFor();
    const answered = page.waitForResponse(`**/${early}/content`);
    slow.resolve();
    await (await answered).finished();
    await page.evaluate("new Promise((resolve) => setTimeout(resolve))");
    expect(await page.locator("#preview-title").textContent()).toBe(late);
    await page.keyboard.press("Escape");
    expect(await page.getByRole("dialog").count()).toBe(0);
  });

  test("two files are deleted at once from a page whose session has become another one", async () => {
    const ids = [
      await service.upload([chatLine("a", "Hi")]),
      await service.upload([chatLine("b", "Hi")]),
    ];
    const page = await visit.openPage("/files");
    await page.evaluate("document.documentElement.dataset.token = 'of the former session'");
    const bothAsk = Promise.withResolvers<void>();
    let count = 0;
    await page.route(`${service.url}/files`, async (route) => {
      if (++count === ids.length) bothAsk.resolve();
      await bothAsk.promise;
      await route.continue();
    });
    for (const id of ids) {
      await page.locator(`#row-${id}`).getByRole("button", { name: "Delete" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    }
    for (const id of ids) await page.locator(`#row-${id}`).waitFor({ state: "detached" });
    const refused = expect.stringContaining("403");
    expect(await visit.leave()).toEqual([refused, refused]);
  });

  test("a file whose upload was left can be chosen again on the way back, and early", async () => {
    const page = await visit.openPage("/files");
    const path = join(folder, "left.jsonl");
    await writeFile(path, chatLine("left", "Peru"));
    await page.route(/web\/v1\/files/, () => {});
    const left = page.waitForRequest(/web\/v1\/files/);
    await page.locator("input[type=file]").setInputFiles(path);
    await left;
    await page.goto(`${service.url}/usage`);
    await page.unrouteAll();
    const { promise: isChosen, resolve: go } = Promise.withResolvers<void>();
    await page.route(/files\.js/, (route) => isChosen.then(() => route.continue()));
    await page.goBack({ waitUntil: "commit" });
    // A person sees no file that nothing will be done with.
    expect(await page.locator("input[type=file]").inputValue()).toBe("");
    await page.locator("input[type=file]").setInputFiles(path);
    go();
    await page.locator("tr", { hasText: "left.jsonl" }).waitFor();
    await page.unrouteAll();
    const [file] = (await service.openai.files.list({ limit: 1 })).data;
    await service.openai.files.delete(file?.id ?? "");
  });

  test("an upload goes on where it was after a reload", async () => {
    const page = await visit.openPage("/files");
    const path = join(folder, "resumed.jsonl");
    const line = `${chatLine("a", "x".repeat(65_000))}\n`;
    await writeFile(path, line.repeat(1_050));
    const parts: string[] = [];
    page.on("request", (request) => {
      const { pathname } = new URL(request.url());
      if (request.method() === "POST" && /\/uploads\/?/.test(pathname)) parts.push(pathname);
    });
    const isPart = (url: URL) => url.pathname.endsWith("/parts");
    // The second part never arrives.
    let count = 0;
    await page.route(isPart, (route) => (++count === 2 ? undefined : route.continue()));
    await page.locator("input[type=file]").setInputFiles(path);
    await expect.poll(() => count).toBe(2);
    await page.unrouteAll();
    await page.reload();
    const sentBefore = parts.filter((each) => each.endsWith("/parts")).length;
    await page.locator("input[type=file]").setInputFiles(path);
    await page.locator("tr", { hasText: "resumed.jsonl" }).waitFor();
    const [file] = (await service.openai.files.list({ limit: 1 })).data;
    expect([file?.filename, file?.bytes]).toEqual(["resumed.jsonl", line.length * 1_050]);
    // One upload, whose first part went once: five parts in all, and the one that was lost.
    expect(parts.filter((each) => each.endsWith("/v1/uploads"))).toHaveLength(1);
    expect(new Set(parts.filter((each) => each.endsWith("/parts")))).toHaveProperty("size", 1);
    expect([sentBefore, parts.filter((each) => each.endsWith("/parts")).length]).toEqual([2, 6]);
    await service.openai.files.delete(file?.id ?? "");
  });
});
