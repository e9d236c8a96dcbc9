/**
 * Installs the Chromium in which the tests of the web page run, if there is none: the package of Debian where this process
 * may install packages, else the build that playwright-core downloads.
 */
import { spawnSync } from "node:child_process";
import { findChromium } from "../test/support/browser.ts";

function run(command: string, ...args: string[]): boolean {
  process.stdout.write(`$ ${[command, ...args].join(" ")}\n`);
  return spawnSync(command, args, { stdio: "inherit" }).status === 0;
}

const mayInstallPackages = () =>
  process.getuid?.() === 0 && spawnSync("apt-get", ["--version"]).status === 0;

function installPackage(): boolean {
  if (!mayInstallPackages()) return false;
  const install = () => run("apt-get", "install", "-y", "--no-install-recommends", "chromium");
  return install() || (run("apt-get", "update") && install());
}

const found = findChromium();
if (found === null && !installPackage()) {
  run("npx", "playwright-core", "install", "chromium", "--only-shell");
}
const path = findChromium();
if (path === null) {
  process.stderr.write("No Chromium could be installed. Install one, or set CHROMIUM_PATH.\n");
  process.exitCode = 1;
} else {
  process.stdout.write(`Chromium is at ${path}\n`);
}
