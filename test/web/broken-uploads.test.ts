/** Uploads on the web page that do not arrive: what goes again by itself, and what is said of the others. */
import { mkdtemp, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { hasChromium, openChromium } from "../support/browser.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";

const MAX_FILES = 2;

describe.skipIf(!hasChromium())("an upload", () => {
  let browser: Browser;
  let service: TestService;
  let folder: string;
  let page: Page;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "batchd-uploads-"));
    browser = await openChromium();
    const projects = [{ name: "default", quotas: { files: MAX_FILES } }];
    service = await startTestService({ config: { projects } });
    page = await browser.newPage();
  });
  afterAll(async () => {
    await browser.close();
    await service.close();
    await rm(folder, { recursive: true, force: true });
  });

  async function written(name: string, text = chatLine("a", "b")): Promise<string> {
    const path = join(folder, name);
    await writeFile(path, text);
    return path;
  }

  const signIn = async (page: Page, key: string) => {
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
  };
  const choose = (path: string) => page.locator("input[type=file]").setInputFiles(path);
  const names = async () =>
    (await service.openai.files.list()).data.map(({ filename }) => filename);
  const clear = async () => {
    for (const { id } of (await service.openai.files.list()).data) {
      await service.openai.files.delete(id);
    }
  };
  const isUpload = (url: URL) => url.pathname.endsWith("/web/v1/files");

  test("goes again where the connection is lost, and is stored once", async () => {
    await page.goto(`${service.url}/files`);
    // The request does not arrive, and then its answer does not.
    await page.route(
      isUpload,
      async (route) => {
        await route.fetch();
        await route.abort();
      },
      { times: 1 },
    );
    await page.route(isUpload, (route) => route.abort(), { times: 1 });
    await choose(await written("small.jsonl"));
    await page.getByText("The connection was lost. Trying again …").waitFor();
    await page.getByText("small.jsonl is uploaded.").waitFor();
    expect(await names()).toEqual(["small.jsonl"]);
  });

  test("goes again where the network loses every packet", async () => {
    const proxy = await TcpProxy.before(service.url);
    await using context = await browser.newContext();
    const page = await context.newPage();
    await page.clock.install();
    await page.goto(`${proxy.urlOf(service.url)}files`);
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
    proxy.network = "silent";
    await page.locator("input[type=file]").setInputFiles(await written("silent.jsonl"));
    await page.clock.fastForward("03:01");
    await page.getByText("The connection was lost. Trying again …").waitFor();
    proxy.network = "well";
    await page.clock.fastForward("00:02");
    await page.getByText("silent.jsonl is uploaded.").waitFor();
    const { data } = await service.openai.files.list();
    const sent = data.filter(({ filename }) => filename === "silent.jsonl");
    expect(sent).toHaveLength(1);
    await service.openai.files.delete(sent[0]!.id);
  });

  test("that ends with the session of its page is told after the next sign-in, once", async () => {
    const keys = ["first", "second"].map((name) => ({ name, key: `key-of-${name}` }));
    const auth = (count: number) => ({ auth: { keys: keys.slice(-count) } });
    await using service = await startTestService({ config: auth(2) });
    await using context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`${service.url}/files`);
    await signIn(page, "key-of-first");
    await page.route(isUpload, () => {});
    const sent = page.waitForRequest((request) => isUpload(new URL(request.url())));
    await page.locator("input[type=file]").setInputFiles(await written("cut.jsonl"));
    await sent;
    service.reconfigure(auth(1));
    await signIn(page, "key-of-second");
    const told = page.getByText("The upload of cut.jsonl broke off. Choose the file again.");
    await told.waitFor();
    await page.reload();
    await page.locator("#live").getByText("Live", { exact: true }).waitFor();
    expect(await told.count()).toBe(0);
  });

  test("says each thing once to a screen reader", async () => {
    await page.goto(`${service.url}/files`);
    await page.evaluate(`{
      window.said = [];
      const text = document.querySelector(".upload-state [role=status]");
      const note = () => window.said.push(text.textContent);
      new MutationObserver(note).observe(text, { childList: true, characterData: true, subtree: true });
      // A slow network has many events.
      const { send } = XMLHttpRequest.prototype;
      XMLHttpRequest.prototype.send = function (body) {
        for (let loaded = 0; loaded < 20; loaded++)
          this.upload.dispatchEvent(new ProgressEvent("progress", { loaded, lengthComputable: true }));
        send.call(this, body);
      };
    }`);
    await choose(await written("said.jsonl"));
    await page.getByText("said.jsonl is uploaded.").waitFor();
    expect(await page.evaluate("window.said")).toEqual(["Sending the file."]);
    await clear();
  });

  test("of a file that changes meanwhile ends, and says so", async () => {
    await page.goto(`${service.url}/new`);
    await choose(await written("changing.jsonl"));
    await page.getByText("1 line, no fault found.").waitFor();
    // A browser notices a change by the second.
    await utimes(await written("changing.jsonl", chatLine("other", "line")), 0, 0);
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.locator("#fault").getByText("It has changed, or is gone.").waitFor();
    // It is said once.
    expect(await page.locator(".upload-state").isVisible()).toBe(false);
  });

  const drop = (...names: readonly string[]) =>
    page.evaluate(`{
      const dataTransfer = new DataTransfer();
      for (const name of ${JSON.stringify(names)}) dataTransfer.items.add(new File(['{"a":1}'], name));
      document.querySelector(".drop-zone").dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
    }`);

  test("of one file leaves out others, and says so", async () => {
    await page.goto(`${service.url}/files`);
    let pass = () => {};
    const arrived = new Promise<void>((resolve) => {
      void page.route(isUpload, (route) => {
        pass = () => void route.continue();
        resolve();
      });
    });
    await drop("first.jsonl", "second.jsonl");
    await page.getByText("One file at a time: only first.jsonl is taken.").waitFor();
    await arrived;
    await drop("third.jsonl");
    await page.getByText("Another file is being sent.").waitFor();
    pass();
    await page.getByText("first.jsonl is uploaded.").waitFor();
    await page.unrouteAll();
    expect(await names()).toContain("first.jsonl");
    expect(await names()).not.toContain("third.jsonl");
    await clear();
  });

  test("that a quota refuses is not tried again", async () => {
    await page.goto(`${service.url}/files`);
    for (let n = 0; n < MAX_FILES; n++) await service.upload([chatLine("a", "b")]);
    await choose(await written("refused.jsonl"));
    await page.locator(".note.bad").getByText("files").waitFor();
    const state = page.locator(".upload-state");
    const said = (await state.textContent()) ?? "";
    expect(said).toContain("files");
    expect(said).not.toContain("Trying again");
    // All bytes have gone out, and a full bar would look like success.
    expect(await state.locator("progress").isVisible()).toBe(false);
    expect(said).not.toContain("100%");
  });

  test("in parts that cannot arrive within its hour is told so while it goes on", async () => {
    await clear();
    await using context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`${service.url}/files`);
    const isPart = (url: URL) => url.pathname.endsWith("/parts");
    let count = 0;
    await page.route(isPart, async (route) => {
      // The second part stays on its way, and the page says of it what the first one took.
      if (++count > 1) return;
      await page.evaluate("{ const now = Date.now; Date.now = () => now() + 20 * 60_000; }");
      await route.continue();
    });
    const line = `${chatLine("a", "x".repeat(65_000))}\n`;
    await page
      .locator("input[type=file]")
      .setInputFiles(await written("slow.jsonl", line.repeat(1_050)));
    await page.getByText("does not arrive within the hour that an upload has").waitFor();
  });
});
