/** Replaces the servers of an older version one by one, while batches run on both. */
import { spawnSync } from "node:child_process";
import { readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { temporaryFolder } from "../support/store-builders.ts";
import type { ModelServer } from "./model-server.ts";
import type { Command, Supervised } from "./supervised.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
/** The lines that go out before the next server is replaced. Every mixture of versions has work. */
const REQUESTS_BETWEEN = 150;

interface UpgradeOptions {
  readonly processes: readonly Supervised[];
  /** What takes the place of each of the processes. */
  readonly commands: readonly Command[];
  readonly model: ModelServer;
  readonly say: (text: string) => void;
}

/** Begins with an API server, as batches that only the newer version knows need one. Ends with a worker. */
export async function replaceEach(
  { processes, commands, model, say }: UpgradeOptions,
  onProgress: (part: number) => void,
): Promise<void> {
  const [first, ...others] = processes.keys();
  const order = [first, ...others.toReversed()].filter((i) => i !== undefined);
  const last = order.findLast((i) => commands[i]?.name.startsWith("worker"));
  const ordered = [...order.filter((i) => i !== last), last].filter((i) => i !== undefined);
  for (const [done, i] of ordered.entries()) {
    const process = processes[i];
    const command = commands[i];
    if (process === undefined || command === undefined) throw new Error("a server has no command");
    const from = model.requestCount;
    while (model.requestCount < from + REQUESTS_BETWEEN) await delay(50);
    say(`${process.name} is replaced`);
    await process.replaceBy(command);
    onProgress((done + 1) / ordered.length);
  }
}

export interface OlderVersion extends Disposable {
  /** The file that a server of this version runs. */
  readonly script: string;
}

/** Checks a version out of git into a folder of its own, with the packages that its lock file names. */
export function checkOut(ref: string): OlderVersion {
  const folder = temporaryFolder("batchd-older-");
  const path = join(folder.path, "batchd");
  run(ROOT, "git", "worktree", "add", "--detach", path, ref);
  const remove = () => {
    run(ROOT, "git", "worktree", "remove", "--force", path);
    folder[Symbol.dispose]();
  };
  try {
    const lockOf = (root: string) => readFileSync(join(root, "package-lock.json"), "utf8");
    if (lockOf(path) === lockOf(ROOT)) {
      symlinkSync(join(ROOT, "node_modules"), join(path, "node_modules"));
    } else run(path, "npm", "ci", "--prefer-offline", "--no-audit", "--no-fund");
  } catch (error) {
    remove();
    throw error;
  }
  return { script: join(path, "src", "main.ts"), [Symbol.dispose]: remove };
}

function run(cwd: string, command: string, ...args: readonly string[]): void {
  const { status, stderr, error } = spawnSync(command, args, { cwd, encoding: "utf8" });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`${command} ${args.join(" ")}:\n${stderr}`);
}
