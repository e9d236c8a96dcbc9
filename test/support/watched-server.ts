/** A real server, of which a test knows the longest turn of its event loop (`turn-watch.ts`). */
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";
import { BatchdProcess } from "./process.ts";

/** A turn may take 50 ms. It may take twice as long on the slowest machine that this is developed on. */
export const MAX_TURN_MS = 100;
/** The processor time that `referenceWork` takes there. A slower machine has longer turns by as much. */
const REFERENCE_MS = 30;
const REFERENCE_JSON = JSON.stringify(
  Array.from({ length: 20_000 }, (_, n) => ({ id: `batch_${n}`, n, at: n * 1_000 })),
);
/** What code does too long is long each time. What a strained machine adds to a turn is there once. */
export const AGAIN = { retry: 2 };
const TURN_WATCH = fileURLToPath(new URL("turn-watch.ts", import.meta.url));

export interface WatchedServer extends AsyncDisposable {
  readonly server: BatchdProcess;
  readonly url: string;
  readonly openai: OpenAI;
  /** The longest turn since it accepts requests, as long as it would be on a machine that is not slower than the reference. */
  longestTurnMs(): Promise<number>;
  /** Forgets the turns so far. Resolves to the longest turn from now on. */
  watch(): Promise<() => Promise<number>>;
}

export async function startWatched(
  dataDir: string,
  upstreams: readonly object[],
  settings: object = {},
): Promise<WatchedServer> {
  const file = `${dataDir}.turns`;
  await writeFile(file, "");
  const config = `${dataDir}.yaml`;
  const limits = { max_requests_per_batch: 1_000_000, allow_mixed_models: true };
  // JSON is YAML too.
  await writeFile(config, JSON.stringify({ limits, upstreams, ...settings }));
  const args = ["serve", "--port", "0", "--config", config, "--data-dir", dataDir];
  const env = { TURN_WATCH_FILE: file, NODE_OPTIONS: `--import ${TURN_WATCH}` };
  const server = new BatchdProcess(args, env);
  const url = await server.listening();
  // What is loaded with the first request is no attack.
  await fetch(`${url}/v1/files`);
  const watch = async () => {
    const begun = (await readFile(file)).length;
    return async () => {
      const turns = (await readFile(file, "utf8")).slice(begun).split("\n").map(Number);
      const longestMs = Math.max(0, ...turns);
      return longestMs < MAX_TURN_MS / 2 ? longestMs : longestMs / slowness();
    };
  };
  return {
    server,
    url,
    openai: new OpenAI({ baseURL: `${url}/v1`, apiKey: "test", maxRetries: 0 }),
    watch,
    longestTurnMs: await watch(),
    [Symbol.asyncDispose]: async () => void (await server.kill()),
  };
}

/** How much longer work takes on this machine, or at this moment, than on the reference; at least 1. */
function slowness(): number {
  const triesMs = Array.from({ length: 5 }, () => referenceWorkMs()).toSorted((a, b) => a - b);
  return Math.max(1, (triesMs[2] ?? 0) / REFERENCE_MS);
}

function referenceWorkMs(): number {
  const before = process.threadCpuUsage();
  for (const entry of JSON.parse(REFERENCE_JSON)) JSON.stringify(entry);
  const { user, system } = process.threadCpuUsage(before);
  return (user + system) / 1000;
}
