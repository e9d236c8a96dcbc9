/**
 * A real Chromium without a window, for the tests of the web page and for its screenshots. It is found at `CHROMIUM_PATH`
 * or on the PATH, or where playwright-core puts its own; `npm run browser` installs one.
 */
import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";
import { type Browser, chromium } from "playwright-core";

/** The one without windows comes first: it takes a third of the processor time of a browser that only hides them. */
export const SHELL = "chromium-headless-shell";
const NAMES = [SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** Returns the path of a Chromium; null when there is none. */
export function findChromium(): string | null {
  const named = process.env["CHROMIUM_PATH"];
  if (named !== undefined && named !== "") return isExecutable(named) ? named : null;
  const folders = (process.env["PATH"] ?? "").split(delimiter);
  return (
    NAMES.flatMap((name) => folders.map((folder) => join(folder, name))).find(isExecutable) ?? null
  );
}

/** It is as long as `expect.poll(…)` waits. The default of half a minute is too short for a busy machine. */
const WAIT_LIMIT_MS = 120_000;

const MISSING = "no Chromium is at CHROMIUM_PATH or on the PATH: `npm run browser` installs one";

/** Whether there is a browser. CI must have one; elsewhere its tests are skipped, and this says so. */
export function hasChromium(): boolean {
  if (findChromium() !== null) return true;
  if (process.env["CI"] !== undefined) throw new Error(MISSING);
  process.stderr.write(`SKIPPED, the tests of the web page: ${MISSING}\n`);
  return false;
}

export async function openChromium(more: readonly string[] = []): Promise<Browser> {
  const executablePath = findChromium();
  if (executablePath === null) throw new Error(MISSING);
  // As root, as in most containers, Chromium has no sandbox. It only ever opens pages of this test.
  const args = ["--no-sandbox", "--disable-dev-shm-usage", ...more];
  const browser = await chromium.launch({ executablePath, args, timeout: WAIT_LIMIT_MS });
  const open = browser.newContext.bind(browser);
  browser.newContext = async (options) => {
    const context = await open(options);
    context.setDefaultTimeout(WAIT_LIMIT_MS);
    return context;
  };
  return browser;
}
