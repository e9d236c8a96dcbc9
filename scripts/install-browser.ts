/**
 * Installs the Chromium in which the tests of the web page run, if there is none: the package of Debian where this process
 * may install packages, else the build that playwright-core downloads. Beside a whole browser it installs the package, too,
 * as the tests take much less of the processor in it.
 */
import { spawnSync } from "node:child_process";
import { findChromium, SHELL } from "../test/support/browser.ts";

function run(command: string, ...args: string[]): boolean {
  process.stdout.write(`$ ${[command, ...args].join(" ")}\n`);
  return spawnSync(command, args, { stdio: "inherit" }).status === 0;
}

const mayInstallPackages = () =>
  process.getuid?.() === 0 && spawnSync("apt-get", ["--version"]).status === 0;

function installPackage(): boolean {
  if (!mayInstallPackages()) return false;
  const install = () => run("apt-get", "install", "-y", "--no-install-recommends", SHELL);
  return install() || (run("apt-get", "update") && install());
}

const found = findChromium();
const isNamed = (process.env["CHROMIUM_PATH"] ?? "") !== "";
const isEnough = found !== null && (isNamed || found.endsWith(SHELL));
if (!isEnough && !installPackage() && found === null) {
  run("npx", "playwright-core", "install", "chromium", "--only-shell");
}
const path = findChromium();
if (path === null) {
  process.stderr.write("No Chromium could be installed. Install one, or set CHROMIUM_PATH.\n");
  process.exitCode = 1;
} else {
  process.stdout.write(`Chromium is at ${path}\n`);
}
