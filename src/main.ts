#!/usr/bin/env node
/**
 * The command. It checks the version of Node.js before it loads anything, because an older one cannot parse the rest
 * and would print a stack. So this file must import nothing and use only the syntax of Node.js 14.
 */
const NEEDED_MAJOR = 24;

const found = process.versions.node;

if (Number(found.split(".")[0]) < NEEDED_MAJOR) {
  process.stderr.write(`batchd: needs Node.js ${NEEDED_MAJOR} or newer, and this is ${found}\n`);
  process.exit(1);
} else {
  // It would end a server that has not read its configuration yet. A terminal ends other commands by it.
  if (process.argv[2] === "serve") process.on("SIGHUP", () => {});
  void import("./cli/cli.ts")
    .then(({ runProcess }) => runProcess(process.argv))
    .then((exitCode) => process.exit(exitCode));
}
