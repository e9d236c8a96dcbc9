/** A process that delivers is killed at any moment. What people see is whole or not there, and the next attempt completes it. */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { TestRepository } from "../support/git-repository.ts";
import { killAtTestEnd } from "../support/leftovers.ts";
import { newBatchId, patternOf } from "../support/parcels.ts";
import { COMPILE_CACHE } from "../support/process.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const FIXTURE = fileURLToPath(new URL("../support/fixtures/deliver-once.ts", import.meta.url));
const AT_RENAME = new URL("../support/fixtures/kill-at-rename.ts", import.meta.url).href;
const env = { ...process.env, NODE_COMPILE_CACHE: COMPILE_CACHE };
const OUTPUT = patternOf(3_000_000);

interface Delivering {
  readonly entry: object;
  readonly batchId: string;
  readonly workFolder: string;
}

/** Resolves to the time that the delivery took, or would have taken at least. */
async function deliver(
  { entry, batchId, workFolder }: Delivering,
  killAfterMs?: number,
): Promise<number> {
  const child = spawn(process.execPath, [FIXTURE, JSON.stringify(entry), batchId, workFolder], {
    env,
    stdio: ["ignore", "pipe", "inherit"],
  });
  killAtTestEnd(child);
  const exited = once(child, "exit");
  let begunMs = 0;
  for await (const line of createInterface({ input: child.stdout })) {
    if (line === "begun") begunMs = performance.now();
    if (line === "begun" && killAfterMs !== undefined) {
      await sleep(killAfterMs);
      child.kill("SIGKILL");
    }
  }
  const [code] = (await exited) as [number | null];
  if (killAfterMs === undefined) expect(code).toBe(0);
  return performance.now() - begunMs;
}

const KILLS = 4;

/** Kills at moments spread over the whole delivery, and looks each time. */
async function killOften(delivering: Omit<Delivering, "batchId">, look: (batchId: string) => void) {
  const wholeMs = await deliver({ ...delivering, batchId: newBatchId() });
  const batchId = newBatchId();
  for (let i = 1; i <= KILLS; i++) {
    await deliver({ ...delivering, batchId }, (wholeMs * i) / (KILLS + 1));
    look(batchId);
  }
  await deliver({ ...delivering, batchId });
  look(batchId);
  return batchId;
}

test("a folder has the whole parcel or nothing after each kill, and no leftovers in the end", async () => {
  using share = temporaryFolder("batchd-share-");
  using work = temporaryFolder("batchd-work-");
  const entry = { name: "share", kind: "folder", path: share.path, access: "write" };
  const batchId = await killOften({ entry, workFolder: work.path }, (id) => {
    const folder = join(share.path, id);
    if (!existsSync(folder)) return;
    expect(readdirSync(folder).sort()).toEqual(["output.jsonl", "run.json"]);
    expect(readFileSync(join(folder, "output.jsonl")).equals(OUTPUT)).toBe(true);
  });
  expect(existsSync(join(share.path, batchId))).toBe(true);
  expect(readdirSync(share.path).filter((name) => name.startsWith("."))).toEqual([]);
});

test.each(["before", "after"] as const)(
  "a folder delivery that is killed right %s its rename is whole with the next attempt",
  async (when) => {
    using share = temporaryFolder("batchd-share-");
    const entry = { name: "share", kind: "folder", path: share.path, access: "write" };
    const batchId = newBatchId();
    const args = ["--import", AT_RENAME, FIXTURE, JSON.stringify(entry), batchId];
    const killed = spawnSync(process.execPath, args, { env: { ...env, KILL_AT_RENAME: when } });
    expect([killed.signal, killed.stdout.toString()]).toEqual(["SIGKILL", "begun\n"]);
    const names = () => readdirSync(share.path);
    if (when === "after") expect(names()).toEqual([batchId]);
    else expect(names()).toEqual([expect.stringMatching(/^\.batchd-/)]);
    await deliver({ entry, batchId, workFolder: share.path });
    expect(names()).toEqual([batchId]);
    expect(readdirSync(join(share.path, batchId)).sort()).toEqual(["output.jsonl", "run.json"]);
    expect(readFileSync(join(share.path, batchId, "output.jsonl")).equals(OUTPUT)).toBe(true);
  },
);

test("a git repository has one whole commit or none after each kill, and is sound", async () => {
  using repository = new TestRepository();
  using work = temporaryFolder("batchd-work-");
  const entry = { name: "evals", kind: "git", repository: repository.path, access: "write" };
  const batchId = await killOften({ entry, workFolder: work.path }, (id) => {
    const branch = `batch/${id}`;
    if (!repository.branches.includes(branch)) return;
    expect(repository.text("rev-list", "--count", `main..${branch}`)).toBe("1");
    const files = repository.filesIn(branch, `runs/${id}`);
    expect([...files.keys()].sort()).toEqual(["output.jsonl", "run.json"]);
    expect(files.get("output.jsonl")?.equals(OUTPUT)).toBe(true);
  });
  expect(repository.branches).toContain(`batch/${batchId}`);
  expect(repository.text("fsck", "--full", "--no-dangling")).toBe("");
  // A git that outlives its process may write for another moment. A later process removes what it leaves.
  const remains = async () => {
    await deliver({ entry, batchId, workFolder: work.path });
    return readdirSync(work.path);
  };
  await expect.poll(remains).toEqual([]);
});
