/**
 * Installs the programs that tests need beside npm packages, where they are missing: packages of Debian where this process may
 * install some. Elsewhere it downloads the Chromium of playwright-core, and names the rest. Beside a whole browser it installs
 * the package, too, as the tests take much less of the processor in it.
 */
import { spawnSync } from "node:child_process";
import { findChromium, SHELL } from "../test/support/browser.ts";
import { findProgram } from "../test/support/programs.ts";

/** Each has the name of its package. */
const PROGRAMS = ["fish", "pgbouncer", "python3", "strace", "zsh"];

function run(command: string, ...args: string[]): boolean {
  process.stdout.write(`$ ${[command, ...args].join(" ")}\n`);
  return spawnSync(command, args, { stdio: "inherit" }).status === 0;
}

function missingPrograms(): string[] {
  return PROGRAMS.filter((name) => findProgram(name) === null);
}

/** A browser that is named by `CHROMIUM_PATH` is taken as it is. */
function needsShell(): boolean {
  const isNamed = (process.env["CHROMIUM_PATH"] ?? "") !== "";
  return !isNamed && findChromium()?.endsWith(SHELL) !== true;
}

function installPackages(names: readonly string[]): boolean {
  if (process.getuid?.() !== 0 || findProgram("apt-get") === null) return false;
  const install = () => run("apt-get", "install", "-y", "--no-install-recommends", ...names);
  return install() || (run("apt-get", "update") && install());
}

const packages = [...missingPrograms(), ...(needsShell() ? [SHELL] : [])];
if (packages.length > 0) installPackages(packages);
if (findChromium() === null) run("npx", "playwright-core", "install", "chromium", "--only-shell");

const missing = [...missingPrograms(), ...(findChromium() === null ? ["Chromium"] : [])];
if (missing.length > 0) {
  const hint = "Install them, and set CHROMIUM_PATH for a Chromium that is not in PATH.";
  process.stderr.write(`Not installed: ${missing.join(", ")}. ${hint}\n`);
  process.exitCode = 1;
} else {
  process.stdout.write("All programs that tests need are there.\n");
}
