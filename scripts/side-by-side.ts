/**
 * Runs scripts of package.json side by side. Most of them keep one processor busy, so as many run at a time as there are
 * processors. The output of the first one, which should be the longest, appears as it comes, and the others' after it.
 * The last lines name those that have failed, and a run that is ended from outside has named those that had begun.
 *
 *     node scripts/side-by-side.ts check:types "conformance -- --check"
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { availableParallelism } from "node:os";
import { text } from "node:stream/consumers";

const [first, ...waiting] = process.argv.slice(2);
if (first === undefined) throw new Error("there is no script to run");
const failed: string[] = [];

async function runInSight(script: string): Promise<void> {
  process.stdout.write(`begins: npm run ${script}\n`);
  const child = spawn(`npm run ${script}`, {
    shell: true,
    stdio: ["ignore", "inherit", "inherit"],
  });
  const [code] = await once(child, "close");
  if (code !== 0) failed.push(script);
}

/** Holds the output back until `inSight` has ended. */
async function runBehind(script: string, inSight: Promise<void>): Promise<void> {
  process.stdout.write(`begins: npm run ${script}\n`);
  // Both streams go into one, so that the lines stay in their order.
  const child = spawn(`npm run ${script} 2>&1`, {
    shell: true,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, "close")]);
  if (code !== 0) failed.push(script);
  void inSight.then(() => process.stdout.write(output));
}

async function runWaiting(inSight: Promise<void>): Promise<void> {
  for (let script = waiting.shift(); script !== undefined; script = waiting.shift()) {
    await runBehind(script, inSight);
  }
}

const inSight = runInSight(first);
const others = Array.from({ length: Math.max(2, availableParallelism()) - 1 }, () =>
  runWaiting(inSight),
);
await Promise.all([inSight.then(() => runWaiting(inSight)), ...others]);
for (const script of failed) process.stderr.write(`FAILED: npm run ${script}\n`);
process.exitCode = failed.length > 0 ? 1 : 0;
