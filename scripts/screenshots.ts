/**
 * Takes the pictures of `docs/dashboard.md`: every page, light and dark, of a real server with batches in every state.
 * `npm run screenshots` writes them to `docs/images`.
 */
import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Browser, Page } from "playwright-core";
import { openChromium } from "../test/support/browser.ts";
import {
  chatLine,
  chatLines,
  startTestService,
  type TestService,
} from "../test/support/service.ts";
import { startUpstream } from "../test/support/upstream.ts";

const FOLDER = fileURLToPath(new URL("../docs/images/", import.meta.url));
const KEY = "key-of-the-operator";
const LARGE_LINES = 50_000;
/** The lines that are answered before the pictures. */
const ANSWERED_LINES = 3_000;
const CSV = "id,country,text\n1,Peru,Ceviche\n2,Chad,Daraba\n3,Laos,Larb\n4,Mali,Tiguadèguèna\n";

const upstream = await startUpstream();
const config = {
  auth: {
    keys: [{ name: "operator", key: KEY, scopes: ["read", "write", "interactive", "admin"] }],
  },
  prices: [{ model: "*", currency: "USD", input: "0.50", output: "1.50" }],
  upstreams: [
    { name: "gpu-1", base_url: upstream.url, models: ["test-model"], max_concurrency: 64 },
    // Nothing listens at this port.
    {
      name: "gpu-2-down",
      base_url: "http://127.0.0.1:9/v1",
      models: ["llama-3-70b"],
      max_concurrency: 32,
    },
  ],
};
const service = await startTestService({ config });
service.openai.apiKey = KEY;
const browser = await openChromium();
const large = await prepare(service);
mkdirSync(FOLDER, { recursive: true });
for (const colorScheme of ["light", "dark"] as const) await takeAll(browser, colorScheme);
upstream.release();
await browser.close();
await service[Symbol.asyncDispose]();
await upstream[Symbol.asyncDispose]();

/** Makes batches in every state, and returns the id of a large one that runs. */
async function prepare({ openai, upload, ended }: TestService): Promise<string> {
  const submit = async (lines: readonly string[], name: string) => {
    const input_file_id = await upload.call(service, lines);
    const endpoint = "/v1/chat/completions" as const;
    const metadata = { name };
    return (
      await openai.batches.create({ input_file_id, endpoint, completion_window: "24h", metadata })
    ).id;
  };
  const end = (id: string) => ended.call(service, id);
  await end(await submit(chatLines(500), "nightly summaries"));
  const failing = (n: number) => (n % 7 === 0 ? "[[status 400]]" : `Label ${n}`);
  await end(
    await submit(
      chatLines(300, failing),
      "labels with a very long name that somebody once found quite natural to give",
    ),
  );
  await end(await submit([chatLine("a", "b"), "{"], "a file with faults"));
  await submit(
    chatLines(40).map((line) => line.replace("test-model", "llama-3-70b")),
    "waits for gpu-2",
  );
  const paused = await submit(
    chatLines(40).map((line) => line.replace("test-model", "llama-3-70b")),
    "paused",
  );
  await openai.post(`/batches/${paused}/pause`);
  const id = await submit(chatLines(LARGE_LINES), "evaluation of release 14");
  await upstream.reached(upstream.total + ANSWERED_LINES);
  upstream.hold();
  return id;
}

async function takeAll(of: Browser, colorScheme: "light" | "dark"): Promise<void> {
  const context = await of.newContext({
    colorScheme,
    viewport: { width: 1200, height: 760 },
    locale: "en-GB",
  });
  const page = await context.newPage();
  const take = (name: string) => page.screenshot({ path: `${FOLDER}${name}-${colorScheme}.png` });
  await page.goto(service.url);
  await take("sign-in");
  await page.getByLabel("API key").fill(KEY);
  await page.keyboard.press("Enter");
  await page.getByText("Live").waitFor();
  await take("batches");
  await page.goto(`${service.url}/batches/${large}`);
  await page.setViewportSize({ width: 1200, height: 1500 });
  await page.getByText("Live").waitFor();
  await take("batch");
  await page.setViewportSize({ width: 1200, height: 760 });
  await takeOthers(page, take);
  await page.setViewportSize({ width: 360, height: 720 });
  await page.goto(service.url);
  await page.getByText("Live").waitFor();
  await take("phone");
  await context.close();
}

async function takeOthers(page: Page, take: (name: string) => Promise<unknown>): Promise<void> {
  await page.goto(`${service.url}/new`);
  const buffer = Buffer.from(CSV);
  await page
    .locator("input[type=file]")
    .setInputFiles({ name: "food.csv", mimeType: "text/csv", buffer });
  await page
    .getByLabel("Prompt for each row")
    .fill("Which ingredients has {{text}} in {{country}}?");
  await page.setViewportSize({ width: 1200, height: 1040 });
  await take("new");
  await page.setViewportSize({ width: 1200, height: 760 });
  for (const name of ["files", "usage", "keys"]) {
    await page.goto(`${service.url}/${name}`);
    if (name === "usage") await page.locator("canvas").waitFor();
    await take(name);
  }
  await page.goto(`${service.url}/upstreams`);
  // The charts begin with the page.
  await page.waitForTimeout(12_000);
  await take("upstreams");
}
