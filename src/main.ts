#!/usr/bin/env node
/**
 * The command itself. Checks the version of Node.js before it loads anything: an older one cannot even parse the rest,
 * and would answer with a stack. So this file imports nothing, and has no syntax that Node.js 14 does not know.
 */
const NEEDED_MAJOR = 24;

const found = process.versions.node;

if (Number(found.split(".")[0]) < NEEDED_MAJOR) {
  process.stderr.write(`batchd: needs Node.js ${NEEDED_MAJOR} or newer, and this is ${found}\n`);
  process.exit(1);
} else {
  void import("./cli.ts")
    .then(({ runCli }) => runCli(process.argv))
    .then((exitCode) => process.exit(exitCode));
}
