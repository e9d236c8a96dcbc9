/**
 * Runs scripts of package.json side by side. Most of them keep one processor busy, so as many run at a time as there are
 * processors. The output of the first one, which should be the longest, appears as it comes, and each other one as a
 * block when it ends: so the report of the longest is at the end, where one looks. The last lines name those that have
 * failed, and a run that is ended from outside has named those that had begun.
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

/** Shows the output as it comes, or returns it. */
async function run(script: string, { isHeld }: { readonly isHeld: boolean }): Promise<string> {
  process.stdout.write(`begins: npm run ${script}\n`);
  // Both streams go into one, so that the lines stay in their order.
  const child = spawn(`npm run ${script} 2>&1`, {
    shell: true,
    stdio: ["ignore", isHeld ? "pipe" : "inherit", "inherit"],
  });
  const output = child.stdout === null ? "" : text(child.stdout);
  const [held, [code]] = await Promise.all([output, once(child, "close")]);
  if (code !== 0) failed.push(script);
  return held;
}

const firstEnded = run(first, { isHeld: false });

async function runWaiting(): Promise<void> {
  for (let script = waiting.shift(); script !== undefined; script = waiting.shift()) {
    process.stdout.write(await run(script, { isHeld: true }));
  }
}

const otherCount = Math.max(2, availableParallelism()) - 1;
const others = Array.from({ length: otherCount }, runWaiting);
await Promise.all([firstEnded.then(runWaiting), ...others]);
for (const script of failed) process.stderr.write(`FAILED: npm run ${script}\n`);
process.exitCode = failed.length > 0 ? 1 : 0;
