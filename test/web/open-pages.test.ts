/** What an open page says while its server is away, without scripts, and where the clock of its machine is wrong. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { hasChromium, openChromium } from "../support/browser.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLine } from "../support/service.ts";
import { startStepProxy } from "../support/step-proxy.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";

const HOUR_MS = 3_600_000;

describe.skipIf(!hasChromium())("an open page", () => {
  let browser: Browser;
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "batchd-open-"));
    browser = await openChromium();
  });
  afterAll(async () => {
    await browser.close();
    await rm(folder, { recursive: true, force: true });
  });

  /** Nothing listens at the upstream, so a batch waits. */
  const serve = (port: string) =>
    new BatchdProcess([
      "serve",
      "--port",
      port,
      "--data-dir",
      folder,
      "--upstream",
      "http://127.0.0.1:9/v1",
    ]);

  test("says that it is not live while its server is away, and goes on with the next start", async () => {
    await using first = serve("0");
    const url = await first.listening();
    const page = await (await browser.newContext()).newPage();
    await page.goto(url);
    const sign = page.locator("#live");
    await sign.getByText("Live", { exact: true }).waitFor();
    const color = () => page.evaluate('getComputedStyle(live, "::before").backgroundColor');
    const live = await color();
    await first.kill();
    await sign.getByText("Not live").waitFor();
    expect(await color()).not.toBe(live);
    await using second = serve(new URL(url).port);
    await second.listening();
    await sign.getByText("Live", { exact: true }).waitFor();
    const { id } = await submit(url);
    await page.locator(`a[href$="${id}"]`).first().waitFor();
    // A proxy holds all events back, and then lets the head of the answer through.
    await page.route(/\/web\/live/, () => {});
    await page.goto(url);
    await sign.getByText("Not live").waitFor();
    await page.unrouteAll();
    await page.route(/\/web\/live/, (route) =>
      route.fulfill({ contentType: "text/event-stream", body: ":\n\n" }),
    );
    await page.goto(url);
    await sign.getByText("Not live").waitFor();
  });

  test("says that it is not live where its network loses every packet, and goes on when it comes back", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const proxy = await TcpProxy.before(url);
    const page = await (await browser.newContext()).newPage();
    await page.clock.install();
    await page.goto(proxy.urlOf(url));
    const sign = page.locator("#live");
    await sign.getByText("Live", { exact: true }).waitFor();
    proxy.network = "silent";
    // A minute without an event, and the time that another connection has.
    for (const passed of ["01:00", "00:05"]) await page.clock.fastForward(passed);
    await sign.getByText("Not live").waitFor();
    const { id } = await submit(url);
    proxy.network = "well";
    await page.locator(`a[href$="${id}"]`).first().waitFor();
    await sign.getByText("Live", { exact: true }).waitFor();
  });

  test("draws no figures for the time in which none come", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const proxy = await TcpProxy.before(url);
    const page = await (await browser.newContext()).newPage();
    // The chart reads these lists each time that it is drawn.
    await page.addInitScript(`{
      let library;
      const construct = (of, args) => new of(...args, (window.drawn = args[1], undefined));
      const set = (value) => { library = new Proxy(value, { construct }); };
      Object.defineProperty(window, "uPlot", { get: () => library, set });
    }`);
    await page.goto(`${proxy.urlOf(url)}upstreams`);
    const latest = () => page.evaluate("window.drawn?.slice(1).map((values) => values.at(-1))");
    const sign = page.locator("#live");
    await sign.getByText("Live", { exact: true }).waitFor();
    const known = [0, expect.any(Number)];
    await expect.poll(latest).toEqual(known);
    proxy.network = "cut";
    await sign.getByText("Not live").waitFor();
    await expect.poll(latest).toEqual([null, null]);
    proxy.network = "well";
    await sign.getByText("Live", { exact: true }).waitFor();
    await expect.poll(latest).toEqual(known);
  });

  test("gives a button back where an answer stops in the middle", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const { id } = await submit(url);
    await using proxy = await startStepProxy(url);
    const page = await (await browser.newContext()).newPage();
    await page.clock.install();
    await page.goto(`${proxy.url}/batches/${id}`);
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
    const stopped = proxy.stopAt({ method: "POST", path: /pause$/, at: { answeredBytes: 10 } });
    await page.getByRole("button", { name: "Pause" }).click();
    await stopped;
    await page.clock.fastForward("02:01");
    await page.locator("#act-pause:enabled").waitFor();
    await page.locator("#notes").getByText("The server does not answer.").waitFor();
  });

  test("gives a button back where the network loses every packet", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const { id } = await submit(url);
    const proxy = await TcpProxy.before(url);
    const page = await (await browser.newContext()).newPage();
    await page.clock.install();
    await page.goto(`${proxy.urlOf(url)}batches/${id}`);
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
    proxy.network = "silent";
    await page.getByRole("button", { name: "Pause" }).click();
    expect(await page.locator("#act-pause:disabled").count()).toBe(1);
    await page.clock.fastForward("02:01");
    await page.locator("#act-pause:enabled").waitFor();
    await page.locator("#notes").getByText("The server does not answer.").waitFor();
  });

  test("does not grow while upstreams come and go", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const page = await (await browser.newContext()).newPage();
    await page.goto(`${url}/upstreams`);
    const charts = String(await page.evaluate("charts.outerHTML")).replace(
      / data-drawn=.*?<\/div><\/div>/,
      "></div></div>",
    );
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable");
    /** The listeners of a page whose upstream has come and gone so many times. */
    const listenersAfter = async (count: number) => {
      const parts = [...Array(count)].flatMap(() => ['<div id="charts"></div>', charts]);
      const events = parts.map(
        (text) => `event: parts\ndata: ${JSON.stringify({ charts: text })}\n\n`,
      );
      const body = `${events.join("")}event: over\ndata: {}\n\n`;
      await page.route(/\/web\/live/, (route) =>
        route.fulfill({ contentType: "text/event-stream", body }),
      );
      await page.goto(`${url}/upstreams`);
      await page.locator('#live[data-state=""]').waitFor({ state: "attached" });
      expect(await page.locator(".chart canvas").count()).toBe(1);
      await session.send("HeapProfiler.collectGarbage");
      const { metrics } = await session.send("Performance.getMetrics");
      return metrics.find(({ name }) => name === "JSEventListeners")?.value ?? 0;
    };
    // A browser may keep those of the latest chart for a while.
    expect(await listenersAfter(50)).toBeLessThan(2 * (await listenersAfter(1)));
  });

  test("is printed without what can only be pressed", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const page = await (await browser.newContext()).newPage();
    await submit(url);
    for (const path of ["", "files", "usage"]) {
      await page.goto(`${url}/${path}`);
      const pressed = page.locator("button:visible, .button:visible");
      expect(await pressed.count()).toBeGreaterThan(0);
      await page.emulateMedia({ media: "print" });
      expect(await pressed.allTextContents()).toEqual([]);
      await page.emulateMedia({ media: "screen" });
    }
  });

  test("is loaded anew for the scripts of another version, and only once while both versions answer", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const page = await (await browser.newContext()).newPage();
    let loadCount = 0;
    await page.route(url, async (route) => {
      loadCount++;
      const response = await route.fetch();
      const body = await response.text();
      await route.fulfill({
        response,
        body: body.replace(/data-version="\w+"/, 'data-version="older"'),
      });
    });
    await page.goto(url);
    await expect.poll(() => loadCount).toBe(2);
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
    const { id } = await submit(url);
    await page.locator(`a[href$="${id}"]`).first().waitFor();
    expect(loadCount).toBe(2);
  });

  test("is loaded anew only once a choice that the load would lose is taken back", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const page = await (await browser.newContext()).newPage();
    let loadCount = 0;
    page.on("load", () => loadCount++);
    const chosen = Promise.withResolvers<void>();
    await page.route(/\/web\/live/, async (route) => {
      await chosen.promise;
      const body = "retry: 500\nevent: version\ndata: newer\n\n";
      await route.fulfill({ contentType: "text/event-stream", body });
    });
    await page.goto(url);
    const status = page.getByLabel("Status");
    await status.selectOption("failed");
    chosen.resolve();
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
    expect([loadCount, await status.inputValue()]).toEqual([1, "failed"]);
    await status.selectOption("");
    await expect.poll(() => loadCount).toBe(2);
  });

  test("is loaded anew also behind a question that was ticked and answered", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const { id } = await submit(url);
    const page = await (await browser.newContext()).newPage();
    let loadCount = 0;
    page.on("load", () => loadCount++);
    const answered = Promise.withResolvers<void>();
    await page.route(/\/web\/live/, async (route) => {
      await answered.promise;
      const body = "event: version\ndata: newer\n\n";
      await route.fulfill({ contentType: "text/event-stream", body });
    });
    await page.goto(`${url}/batches/${id}`);
    await page.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("checkbox", { name: "Delete its input file, too" }).check();
    await page.getByRole("button", { name: "Keep" }).click();
    answered.resolve();
    await expect.poll(() => loadCount).toBe(2);
  });

  test("asks without a tick, also after the way back to it from another page", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const { id } = await submit(url);
    const page = await (await browser.newContext()).newPage();
    const box = page.getByRole("checkbox", { name: "Delete its input file, too" });
    await page.goto(`${url}/batches/${id}`);
    await page.getByRole("button", { name: "Delete" }).click();
    await box.check();
    await page.goto(`${url}/files`);
    await page.goBack();
    await page.getByRole("button", { name: "Delete" }).click();
    expect(await box.isChecked()).toBe(false);
  });

  test("says what it cannot do without scripts, and shows the batches", async () => {
    await using server = serve("0");
    const url = await server.listening();
    const { id } = await submit(url);
    const page = await (await browser.newContext({ javaScriptEnabled: false })).newPage();
    await page.goto(url);
    await page.locator("noscript .notice").waitFor();
    await page.locator(`a[href$="${id}"]`).first().click();
    await page.locator("#lines noscript p").waitFor();
  });

  test.each([-HOUR_MS, HOUR_MS])(
    "tells the time until something by the clock of the server (%i ms)",
    async (aheadMs) => {
      await using server = serve("0");
      const url = await server.listening();
      const { id } = await submit(url);
      const page = await (await browser.newContext()).newPage();
      await page.clock.setFixedTime(Date.now() + aheadMs);
      await page.goto(`${url}/batches/${id}`);
      const ends = page.locator("#progress dt", { hasText: "Window ends" }).locator("+ dd");
      await ends.getByText("in 23 hours").waitFor();
      expect(await page.locator("#notices time").first().textContent()).toMatch(/second|now/);
    },
  );

  async function submit(url: string) {
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
    return submitLines(openai, [chatLine("a", "Hi")]);
  }
});
