/** What axe finds on a page: what keeps people who use a keyboard or a screen reader out. */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** The faults that axe finds, as sentences. */
export async function axeFaults(page: Page): Promise<string[]> {
  // The policy of the page lets no script of a test in, so it runs in the world of the test.
  const session = await page.context().newCDPSession(page);
  const { result } = await session.send("Runtime.evaluate", {
    expression: `${AXE}; axe.run({ resultTypes: ["violations"] }).then(({ violations }) => JSON.stringify(violations.map(({ id, nodes }) => id + ": " + nodes.map(({ target }) => target).join(" "))))`,
    awaitPromise: true,
  });
  return JSON.parse(String(result.value)) as string[];
}
