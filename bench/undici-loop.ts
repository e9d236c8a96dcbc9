/**
 * The floor of throughput, in a process of its own: several loops that each send a body, read the answer and send the
 * next one. They have no files, no journal, no order and no retries.
 *
 * Arguments: the upstream, the input file, the number of loops. Prints lines per second.
 */
import { readFileSync } from "node:fs";
import { Pool } from "undici";

const [url = "", inputPath = "", loopCount = "1"] = process.argv.slice(2);

const bodies = readFileSync(inputPath, "utf8")
  .split("\n")
  .filter((line) => line !== "")
  .map((line) => Buffer.from(JSON.stringify((JSON.parse(line) as { body: unknown }).body)));

const pool = new Pool(url, { connections: Number(loopCount), pipelining: 1 });
const headers = { "content-type": "application/json" };
let next = 0;

async function sendUntilNoneIsLeft(): Promise<void> {
  while (next < bodies.length) {
    const body = bodies[next++] ?? null;
    const answer = await pool.request({
      method: "POST",
      path: "/v1/chat/completions",
      headers,
      body,
    });
    await answer.body.text();
    if (answer.statusCode !== 200) throw new Error(`the upstream answered ${answer.statusCode}`);
  }
}

const startedAtMs = performance.now();
await Promise.all(Array.from({ length: Number(loopCount) }, sendUntilNoneIsLeft));
const tookMs = performance.now() - startedAtMs;
await pool.close();
process.stdout.write(JSON.stringify((bodies.length / tookMs) * 1000));
