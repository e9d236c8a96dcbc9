/**
 * Runs scripts of package.json side by side. Most of them keep one processor busy, so as many run at a time as there are
 * processors. Each shows its output when it ends. The last lines name those that have failed, and a run that is ended from
 * outside has named those that had begun.
 *
 *     node scripts/side-by-side.ts check:types "conformance -- --check"
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { availableParallelism } from "node:os";
import { text } from "node:stream/consumers";

const waiting = process.argv.slice(2);
const failed: string[] = [];

async function run(script: string): Promise<void> {
  process.stdout.write(`begins: npm run ${script}\n`);
  // Both streams go into one, so that the lines stay in their order.
  const child = spawn(`npm run ${script} 2>&1`, {
    shell: true,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, "close")]);
  process.stdout.write(output);
  if (code !== 0) failed.push(script);
}

async function runWaiting(): Promise<void> {
  for (let script = waiting.shift(); script !== undefined; script = waiting.shift()) {
    await run(script);
  }
}

await Promise.all(Array.from({ length: Math.max(2, availableParallelism()) }, runWaiting));
for (const script of failed) process.stderr.write(`FAILED: npm run ${script}\n`);
process.exitCode = failed.length > 0 ? 1 : 0;
