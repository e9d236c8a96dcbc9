/** The first batch of README.md, as its reader makes it: two commands, then the browser, and no JSON. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { hasChromium, openChromium } from "../support/browser.ts";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));

/** Starts a command of the page, with some of its words replaced. Resolves to the address that it prints. */
async function start(command: string, changes: Readonly<Record<string, string>>) {
  const line = Object.entries(changes).reduce((text, [from, to]) => {
    if (!text.includes(from)) throw new Error(`the page no longer has ${from}: ${text}`);
    return text.replace(from, to);
  }, command);
  const child = spawn("bash", ["-c", `exec ${line}`], { cwd: ROOT, detached: true });
  const closed = once(child, "close");
  const end = async () => {
    if (child.pid !== undefined) process.kill(-child.pid, "SIGTERM");
    await closed;
  };
  for await (const printed of createInterface(child.stdout)) {
    const url = /http:\/\/[\d.]+:\d+/.exec(printed)?.[0];
    if (url !== undefined) return { url, [Symbol.asyncDispose]: end };
  }
  throw new Error(`${line} printed no address`);
}

test.skipIf(!hasChromium())(
  "who reads only README.md gets to a finished batch on the page",
  async () => {
    const page = await readFile(join(ROOT, "README.md"), "utf8");
    const section = /## A first batch, in the browser\n([\s\S]*?)\n## /.exec(page)?.[1] ?? "";
    const [model = "", serve = ""] = [...section.matchAll(/```bash\n(.*)\n```/g)].map(
      ([, command = ""]) => command,
    );
    const [file = "", prompt = "", name = ""] = [
      .../Choose `(.+?)`[\s\S]*?write `(.+?)`[\s\S]*?and `(.+?)` as the model/.exec(section)!,
    ].slice(1);
    const dataDir = await mkdtemp(join(tmpdir(), "batchd-first-"));
    try {
      await using demo = await start(model, { "--port 9000": "--port 0" });
      await using server = await start(serve, {
        "http://127.0.0.1:9000": `${demo.url}`,
        "npm start --": `npm start --silent -- --port 0 --data-dir ${dataDir}`,
      });
      await using browser = await openChromium();
      const tab = await (await browser.newContext()).newPage();
      await tab.goto(server.url);
      await tab.getByRole("link", { name: "New batch" }).click();
      await tab.locator("input[type=file]").setInputFiles(join(ROOT, file));
      await tab.getByText("4 rows.").waitFor();
      await tab.getByLabel("Prompt for each row").fill(prompt);
      await tab.getByLabel("Model").fill(name);
      await tab.getByRole("button", { name: "Create batch" }).click();
      await tab.getByText("4 of 4 · 100%").waitFor();
      await tab.locator(".head").getByText("completed").waitFor();
      await tab.locator("#lines-rows").getByText("What is the capital of Peru?").waitFor();
      await tab.locator("#lines-rows").getByText("Lima is the capital of Peru.").waitFor();
      await expect.poll(() => tab.locator("#lines-rows tr").count()).toBe(4);
    } finally {
      await rm(dataDir, { recursive: true, force: true });
    }
  },
);
