/** Administrators at the web page, in a real browser, and the people whom they give a key. */
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { axeFaults } from "../support/axe.ts";
import { hasChromium, openChromium } from "../support/browser.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { batchBody } from "../support/tenants.ts";
import { choose } from "../support/visit.ts";

const OPERATOR = "key-of-the-operator";
const STRANGER = "key-of-another-project";
const PLAIN_HOST = "batchd.example";

describe.skipIf(!hasChromium())("in a browser", () => {
  let browser: Browser;
  let service: TestService;

  beforeAll(async () => {
    // A page at another name than localhost, and without TLS, is no secure context.
    browser = await openChromium([`--host-resolver-rules=MAP ${PLAIN_HOST} 127.0.0.1`]);
    const keys = [
      { name: "operator", key: OPERATOR, scopes: ["admin", "read", "write"] },
      { name: "stranger", key: STRANGER, project: "other" },
    ];
    // Nothing listens there, so a batch waits.
    const upstreams = [{ name: "away", base_url: "http://127.0.0.1:9/v1", models: ["away"] }];
    service = await startTestService({ config: { auth: { keys }, upstreams } });
  });
  afterAll(async () => {
    await browser.close();
    await service[Symbol.asyncDispose]();
  });

  async function signedIn(key: string, path: string, url = service.url): Promise<Page> {
    const context = await browser.newContext();
    context.setDefaultTimeout(120_000);
    const page = await context.newPage();
    await page.goto(url + path);
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.waitForURL(url + path);
    return page;
  }

  test("a key is made, opens a page with nothing that it may not do, and ends that page when it is revoked", async () => {
    const admin = await signedIn(OPERATOR, "/keys");
    expect(await axeFaults(admin)).toEqual([]);
    await admin.getByLabel("Name").fill("guest");
    await admin.getByRole("textbox", { name: "Project" }).fill("search");
    for (const scope of ["write", "interactive"]) {
      await admin.getByRole("checkbox", { name: scope }).uncheck();
    }
    await admin.getByRole("button", { name: "Create key" }).click();
    await admin.getByText(/^sk-batchd-/).waitFor();
    const key = (await admin.locator("#made-key").textContent()) ?? "";
    await admin.getByRole("button", { name: "Done" }).click();
    // A dialog tells its page a moment after it has closed.
    await expect.poll(() => admin.content()).not.toContain(key);

    const guest = await signedIn(key, "/");
    await guest.getByText("No batches yet").waitFor();
    const entries = await guest
      .getByRole("navigation", { name: "Pages" })
      .getByRole("link")
      .allTextContents();
    expect(entries).toEqual(["Batches", "Files", "Usage"]);
    expect(await guest.getByRole("link", { name: "New batch" }).count()).toBe(0);
    for (const path of ["/keys", "/upstreams", "/new"]) {
      const answer = await guest.goto(service.url + path);
      expect([path, answer?.status()]).toEqual([path, 403]);
    }
    await guest.goto(service.url);
    await guest.getByText("Live").waitFor();

    const row = admin.locator("tr", { hasText: "guest" });
    await row.getByRole("button", { name: "Revoke" }).click();
    await admin.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await row.waitFor({ state: "detached" });
    await guest.getByRole("button", { name: "Sign in" }).waitFor();
  });

  test("the bar is one line on a tablet, however long the names in it are", async () => {
    const page = await signedIn(OPERATOR, "/files");
    for (const width of [721, 768, 1024]) {
      await page.setViewportSize({ width, height: 720 });
      for (const name of ["short", "a-long-name-of-a-key".repeat(2)]) {
        await page.evaluate(`document.querySelector(".who span").textContent = "${name}"`);
        const { height = 0 } = (await page.locator(".bar").boundingBox()) ?? {};
        expect(height).toBeLessThan(60);
        expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(width);
        const button = await page.getByRole("button", { name: "Sign out" }).boundingBox();
        expect((button?.x ?? 0) + (button?.width ?? 0)).toBeLessThanOrEqual(width);
        // Its two words stay together.
        expect(button?.height).toBeLessThan(36);
      }
    }
  });

  test("a key with every scope can be revoked on a phone", async () => {
    const page = await signedIn(OPERATOR, "/keys");
    const scopes = ["read", "write", "interactive", "admin"];
    const headers = { authorization: `Bearer ${OPERATOR}` };
    const body = JSON.stringify({ name: "everything", project: "search_evals", scopes });
    await fetch(`${service.url}/v1/admin/keys`, { method: "POST", headers, body });
    await page.setViewportSize({ width: 360, height: 720 });
    const row = page.locator("tr", { hasText: "everything" });
    const revoke = row.getByRole("button", { name: "Revoke" });
    await revoke.waitFor();
    const { x = 0, width = 0 } = (await revoke.boundingBox()) ?? {};
    expect(x + width).toBeLessThanOrEqual(360);
    // Within a column of its own, the name of a project would be broken after every five letters.
    const [project] = await row.getByText("search_evals").filter({ visible: true }).all();
    const { height = 0 } = (await project?.boundingBox()) ?? {};
    expect(height).toBeGreaterThan(0);
    expect(height).toBeLessThan(30);
  });

  /** Shows the page, or another tab. */
  const show = (page: Page, isShown: boolean) =>
    page.evaluate(`
      Object.defineProperty(document, "hidden", { value: ${!isShown}, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));`);

  /** Shows another tab and then this one again. Resolves once the page has taken its present state from the server. */
  const lookedAway = (page: Page) =>
    page.evaluate(`new Promise((resolve) => {
      document.addEventListener("batchd:parts", ({ detail }) => {
        if (detail.includes("heading")) resolve();
      });
      for (const value of [true, false]) {
        Object.defineProperty(document, "hidden", { value, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }
    })`);

  test("what a person has typed, and the key that is shown once, outlast a look at another tab", async () => {
    const page = await signedIn(OPERATOR, "/keys");
    await page.getByText("Live").waitFor();
    const project = page.getByRole("textbox", { name: "Project" });
    await project.fill("search");
    await page.getByRole("checkbox", { name: "admin" }).check();
    await page.getByLabel("Name").fill("kept");
    await lookedAway(page);
    expect(await page.getByRole("checkbox", { name: "admin" }).isChecked()).toBe(true);
    expect(await project.inputValue()).toBe("search");
    await page.getByRole("button", { name: "Create key" }).click();
    await page.locator("#made-key", { hasText: "sk-batchd-" }).waitFor();
    await lookedAway(page);
    expect(await page.locator("#made-key").textContent()).toMatch(/^sk-batchd-/);
  });

  test("a key is made once, however often its button is pressed", async () => {
    const page = await signedIn(OPERATOR, "/keys");
    await page.getByLabel("Name").fill("pressed-twice");
    await page.getByRole("button", { name: "Create key" }).dblclick();
    await page.locator("#made-key", { hasText: "sk-batchd-" }).waitFor();
    await page.getByRole("button", { name: "Done" }).click();
    await page.getByLabel("Name").fill("once");
    await page.getByRole("button", { name: "Create key" }).press("Enter");
    await page.locator("#made-key", { hasText: "sk-batchd-" }).waitFor();
    await page.keyboard.press("Escape");
    await expect.poll(() => page.evaluate("document.activeElement.textContent")).toBe("Create key");
    await page.locator("th", { hasText: /^once/ }).waitFor();
    expect(await page.locator("th", { hasText: "pressed-twice" }).count()).toBe(1);
  });

  test("the button of a key stays with its key when another one is made", async () => {
    const make = async (name: string) => {
      const headers = { authorization: `Bearer ${OPERATOR}` };
      const body = JSON.stringify({ name });
      await fetch(`${service.url}/v1/admin/keys`, { method: "POST", headers, body });
    };
    await make("older");
    const page = await signedIn(OPERATOR, "/keys");
    const row = (name: string) => page.locator("#keys tr", { hasText: new RegExp(`^\\s*${name}`) });
    await row("older").getByRole("button", { name: "Revoke" }).focus();
    await make("newer");
    await row("newer").waitFor();
    await page.keyboard.press("Enter");
    await page.locator("#ask-detail", { hasText: "who use older are refused" }).waitFor();
  });

  test("a key is copied on a page without TLS, too", async () => {
    const { port } = new URL(service.url);
    const page = await signedIn(OPERATOR, "/keys", `http://${PLAIN_HOST}:${port}`);
    expect(await page.evaluate("isSecureContext")).toBe(false);
    await page.getByLabel("Name").fill("copied");
    await page.getByRole("button", { name: "Create key" }).click();
    const made = page.locator("#made-key", { hasText: "sk-batchd-" });
    const key = await made.textContent();
    await page.getByRole("button", { name: "Copy" }).click();
    // Once more before the button has its name again.
    await page.getByRole("button", { name: "Copied" }).click();
    await page.getByRole("button", { name: "Copy", exact: true }).waitFor();
    await page.getByRole("button", { name: "Done" }).click();
    await page.getByLabel("Name").press("Control+V");
    expect(await page.getByLabel("Name").inputValue()).toBe(key?.slice(0, 64));
  });

  test("the series of a chart keep colours of their own where the system chooses all others", async () => {
    const page = await signedIn(OPERATOR, "/upstreams");
    await page.emulateMedia({ forcedColors: "active" });
    await page.reload();
    const markers = page.locator(".chart .u-marker");
    await markers.nth(1).waitFor();
    const colours = await page.evaluate<string[]>(MARKER_COLOURS);
    expect(colours).toHaveLength(2);
    expect(colours[0]).not.toBe(colours[1]);
  });

  test("a person who signs out is at the sign-in page, on every page", async () => {
    const page = await signedIn(OPERATOR, "/files");
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    await page.goBack();
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    expect(await page.getByText("Drop a file").count()).toBe(0);
    await page.goto(`${service.url}/usage`);
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    expect(await page.context().cookies()).toEqual([]);
    expect(await axeFaults(page)).toEqual([]);
  });

  test("a page that is looked at again after its person has signed out shows nothing of the project", async () => {
    const page = await signedIn(OPERATOR, "/files");
    await page.getByText("Live").waitFor();
    await show(page, false);
    const other = await signOutBeside(page);
    await other.getByRole("button", { name: "Sign in" }).waitFor();
    await show(page, true);
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    expect(await page.getByText("Drop a file").count()).toBe(0);
  });

  test("a page beside the one at which its person signs out shows nothing of the project any more", async () => {
    const page = await signedIn(OPERATOR, "/files");
    await page.getByText("Live").waitFor();
    await signOutBeside(page);
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    expect(await page.getByText("Drop a file").count()).toBe(0);
  });

  test.each(["stands still", "has come to its end"])(
    "a page that %s shows nothing of the project any more, either",
    async (kind) => {
      const page = await signedIn(OPERATOR, "/files");
      const id = await waitingBatch();
      await page.goto(`${service.url}/batches/${id}`);
      const live = page.locator("#live", { hasText: "Live" });
      await live.waitFor();
      await page.getByRole("button", { name: "Cancel" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
      await page.locator("#heading").getByText("cancelled").waitFor();
      await live.waitFor({ state: "detached" });
      if (kind === "stands still") await page.reload();
      await signOutBeside(page);
      await page.getByRole("button", { name: "Sign in" }).waitFor();
      expect(await page.getByText(id).count()).toBe(0);
    },
  );

  /** Signs out in another tab of the browser, and returns that tab. */
  async function signOutBeside(page: Page): Promise<Page> {
    const other = await page.context().newPage();
    await other.goto(`${service.url}/usage`);
    await other.getByRole("button", { name: "Sign out" }).click();
    return other;
  }

  async function waitingBatch(): Promise<string> {
    const ask = async (path: string, body: string | FormData) => {
      const headers = { authorization: `Bearer ${OPERATOR}` };
      const answer = await fetch(`${service.url}/v1/${path}`, { method: "POST", headers, body });
      return ((await answer.json()) as { id: string }).id;
    };
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new File([chatLine("a", "b", { model: "away" })], "a.jsonl"));
    const inputFileId = await ask("files", form);
    return ask("batches", batchBody(inputFileId));
  }

  test("a page that is looked at again after its person has signed in to another project is a page of that one", async () => {
    const page = await signedIn(OPERATOR, "/files");
    await page.getByText("Live").waitFor();
    await show(page, false);
    const other = await signOutBeside(page);
    await signInAt(other, STRANGER);
    await show(page, true);
    await page.locator(".who").getByText("stranger").waitFor();
    await choose(page, "strange.jsonl", chatLine("a", "b"));
    await page.locator("#files").getByText("strange.jsonl").waitFor();
  });

  /** Opens the form for a batch with a line in it, beside another tab in which its person has signed out. */
  async function filledIn(): Promise<{ page: Page; other: Page }> {
    const page = await signedIn(OPERATOR, "/new");
    await choose(page, "a.jsonl", chatLine("a", "b"));
    await page.getByText("1 line, no fault found.").waitFor();
    await page.getByLabel("Metadata").fill("team=search");
    const other = await page.context().newPage();
    await other.goto(`${service.url}/files`);
    await other.getByRole("button", { name: "Sign out" }).click();
    await other.getByLabel("API key").waitFor();
    return { page, other };
  }
  async function signInAt(page: Page, key: string): Promise<void> {
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("button", { name: "Sign out" }).waitFor();
  }
  const create = (page: Page) => page.getByRole("button", { name: "Create batch" }).click();

  test("a form that is filled in outlasts its session", async () => {
    const { page, other } = await filledIn();
    await create(page);
    await page.locator("#fault").getByText("Your session has ended.").waitFor();
    await signInAt(other, OPERATOR);
    await create(page);
    await page.waitForURL(/batches\/batch_/);
    const id = page.url().split("/").at(-1) ?? "";
    const answer = await fetch(`${service.url}/v1/batches/${id}`, {
      headers: { authorization: `Bearer ${OPERATOR}` },
    });
    expect(await answer.json()).toMatchObject({ metadata: { team: "search" } });
  });

  test("a form of one project makes no batch in another one", async () => {
    const { page, other } = await filledIn();
    await signInAt(other, STRANGER);
    await create(page);
    await page.locator("#fault").getByText("load it again").waitFor();
    expect(await page.getByLabel("Metadata").inputValue()).toBe("team=search");
  });
});

const MARKER_COLOURS = `[...document.querySelectorAll(".chart .u-marker")].slice(0, 2).map(
  (marker) => getComputedStyle(marker).borderColor,
)`;
