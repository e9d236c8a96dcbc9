/**
 * Runs scripts of package.json side by side. Most of them keep one processor busy, so as many run at a time as there are
 * processors. Each shows its output when it ends, and one that has failed does so last, where people look first.
 *
 *     node scripts/side-by-side.ts check:types "conformance -- --check"
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { availableParallelism } from "node:os";
import { text } from "node:stream/consumers";

const waiting = process.argv.slice(2);
/** The outputs of those that have failed. */
const failures: string[] = [];

async function run(script: string): Promise<void> {
  // Both streams go into one, so that the lines stay in their order.
  const child = spawn(`npm run ${script} 2>&1`, {
    shell: true,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, "close")]);
  if (code === 0) process.stdout.write(output);
  else failures.push(`${output}\nFAILED: npm run ${script}\n`);
}

async function runWaiting(): Promise<void> {
  for (let script = waiting.shift(); script !== undefined; script = waiting.shift()) {
    await run(script);
  }
}

await Promise.all(Array.from({ length: Math.max(2, availableParallelism()) }, runWaiting));
for (const failure of failures) process.stderr.write(failure);
process.exitCode = failures.length > 0 ? 1 : 0;
