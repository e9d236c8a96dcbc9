/**
 * A real Chromium without a window, for the tests of the web page and for its screenshots. It is found at `CHROMIUM_PATH`
 * or on the PATH, or where playwright-core puts its own; `npm run programs` installs one.
 */
import { type Browser, chromium } from "playwright-core";
import { findProgram, isExecutable, leaveOut } from "./programs.ts";

/** The one without windows comes first: it takes a third of the processor time of a browser that only hides them. */
export const SHELL = "chromium-headless-shell";
const NAMES = [SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/** Returns the path of a Chromium; null when there is none. */
export function findChromium(): string | null {
  const named = process.env["CHROMIUM_PATH"];
  if (named !== undefined && named !== "") return isExecutable(named) ? named : null;
  return NAMES.map(findProgram).find((path) => path !== null) ?? null;
}

/** It is as long as `expect.poll(…)` waits. The default of half a minute is too short for a busy machine. */
const WAIT_LIMIT_MS = 120_000;

const MISSING = "a Chromium at CHROMIUM_PATH or on the PATH: `npm run programs` installs one";

/** Whether there is a browser. */
export const hasChromium = () =>
  findChromium() !== null || leaveOut("the tests of the web page", MISSING);

export async function openChromium(more: readonly string[] = []): Promise<Browser> {
  const executablePath = findChromium();
  if (executablePath === null) throw new Error(`there must be ${MISSING}`);
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
