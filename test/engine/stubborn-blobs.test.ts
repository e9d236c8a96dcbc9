/** What a disk or a bucket does not let go keeps its row for the next sweep, and holds up nothing else. */
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { setImmediate } from "node:timers/promises";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { uploadLines } from "../support/batches.ts";
import type { LoggedEvent } from "../support/events.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { pathsBelow } from "../support/files-below.ts";
import { blobsAround, GatedBlobs } from "../support/gated-blobs.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

test("a hundred files that cannot be removed hold up none of those behind them", async () => {
  const clock = new FakeClock();
  await using service = await startTestService({ clock });
  const { openai, events, dataDir } = service;
  /** Each deletion begins a sweep, and a minute later things are tried again. */
  const beginSweep = async () => {
    clock.advance(60_000);
    await openai.files.delete(await service.upload(chatLines(1)));
  };
  /** Twenty sweeps that come to nothing else are enough. */
  const sweepUntilGone = async (file: string) => {
    const enough = events.count("sweep.failed") + 20 * 100;
    const isGone = () => events.count("file.removed", { file }) === 1;
    while (!isGone() && events.count("sweep.failed") < enough) await beginSweep();
    expect(isGone()).toBe(true);
  };
  const ids: string[] = [];
  for (let i = 0; i < 102; i++) ids.push(await service.upload(chatLines(1)));
  const [first = "", ...others] = ids.slice(0, 100);
  for (const id of [first, ...others]) await putInTheWay(join(dataDir, "blobs/files", id));
  for (const id of [first, ...others]) await openai.files.delete(id);
  while (!events.all.some((each) => isAbout(each, others.at(-1) ?? ""))) await beginSweep();
  for (const file of ids.slice(100)) {
    await openai.files.delete(file);
    await sweepUntilGone(file);
  }

  await rm(join(dataDir, "blobs/files", first), { recursive: true });
  await sweepUntilGone(first);
});

test("what cannot be removed is tried and logged once a minute, also of a deleted project, while batches end", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    clock,
    upstreamUrl: upstream.url,
    config: {
      auth: { keys: [{ name: "operator", key: "test", scopes: ["admin", "read", "write"] }] },
    },
  });
  const { openai, events, url, dataDir } = service;
  const headers = { authorization: "Bearer test", "content-type": "application/json" };
  const administer = async (method: string, path: string, body: object | null = null) => {
    const init = { method, headers, ...(body !== null && { body: JSON.stringify(body) }) };
    const answer = await fetch(`${url}/v1/admin/${path}`, init);
    return (await answer.json()) as { readonly key: string };
  };
  await administer("POST", "projects", { name: "gone" });
  const { key } = await administer("POST", "keys", { name: "of-gone", project: "gone" });
  const file = await uploadLines(openai.withOptions({ apiKey: key }), chatLines(1));
  await putInTheWay(join(dataDir, "blobs/files", file));
  await administer("DELETE", "projects/gone");
  while (events.count("sweep.failed") === 0) {
    clock.advance(1_000);
    await administer("GET", "projects");
  }

  for (let count = 1; count <= 5; count++) {
    clock.advance(1_000);
    await service.run(chatLines(1));
    await events.reached("journal.removed", { count });
  }
  expect(events.count("sweep.failed")).toBe(1);
  clock.advance(60_000);
  await events.reached("sweep.failed", { count: 2 });
});

/** Nothing removes a folder in the place of a file, as nothing removes what a bucket is told to keep. */
async function putInTheWay(path: string): Promise<void> {
  await rm(path);
  await mkdir(join(path, "kept"), { recursive: true });
}

/** Blobs that cannot be deleted until `relent` is called, as on a disk with errors. */
class StubbornBlobs extends GatedBlobs {
  #isStubborn = true;

  relent(): void {
    this.#isStubborn = false;
  }

  override async delete(...keys: string[]): Promise<void> {
    this.#refuse();
    await super.delete(...keys);
  }

  override async deleteAll(prefix: string): Promise<void> {
    this.#refuse();
    await super.deleteAll(prefix);
  }

  #refuse(): void {
    if (this.#isStubborn) throw Object.assign(new Error("EIO"), { code: "EIO" });
  }
}

test("bytes that cannot be removed keep their rows, so that the next sweep removes them", async () => {
  const clock = new FakeClock();
  const wrapped = blobsAround(StubbornBlobs);
  await using upstream = await startUpstream();
  await using service = await startTestService({
    clock,
    upstreamUrl: upstream.url,
    openStorage: wrapped.open,
  });
  const { id, input_file_id } = await service.run(chatLines(2));
  await service.openai.files.delete(input_file_id);
  await service.events.reached("sweep.failed", { thing: id });
  while (!service.events.all.some((each) => isAbout(each, input_file_id))) await setImmediate();

  wrapped.blobs().relent();
  clock.advance(60_000);
  await service.events.reached("journal.removed", { batch: id });
  await service.events.reached("file.removed", { file: input_file_id });
  expect(pathsBelow(join(service.dataDir, "blobs/journal"))).toEqual([]);
  expect(pathsBelow(join(service.dataDir, "blobs/files"))).not.toContain(input_file_id);
});

const isAbout = ({ event, thing }: LoggedEvent, fileId: string) =>
  event === "sweep.failed" && thing === `files/${fileId}`;

test("a journal that a disk refuses to remove does not end the server", async () => {
  using folder = temporaryFolder("batchd-stubborn-");
  await using upstream = await startUpstream();
  const args = ["serve", "--port", "0", "--data-dir", folder.path, "--upstream", upstream.url];
  await using batchd = new BatchdProcess(args);
  const baseURL = `${await batchd.listening()}/v1`;
  const openai = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
  const file = new File([chatLines(1).join("\n")], "input.jsonl");
  const input = await openai.files.create({ file, purpose: "batch" });
  const asked = {
    input_file_id: input.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  } as const;
  const { id } = await openai.batches.create(asked);
  await batchd.batchEnded(id);
  const journal = join(folder.path, "blobs/journal", id);
  // The sweep that follows the end of the batch would remove the folders while they are made.
  await expect.poll(() => existsSync(dirname(journal))).toBe(false);
  makeUnremovable(journal);
  try {
    await openai.delete(`/batches/${id}`);
    await batchd.loggedLike(new RegExp(`"thing":"${id}".*"event":"sweep.failed"`));
  } finally {
    spawnSync("rm", ["-rf", journal]);
  }
  const after = await openai.batches.create(asked);
  await batchd.batchEnded(after.id);
});

/** Makes folders in a folder, so deep that no path leads to the last ones, which no system call can name then. */
function makeUnremovable(path: string): void {
  const script = `
    process.chdir(${JSON.stringify(path)});
    for (let depth = 0; depth < 20; depth++) {
      fs.mkdirSync("d".repeat(250));
      process.chdir("d".repeat(250));
    }`;
  spawnSync("mkdir", ["-p", path]);
  const { status } = spawnSync(process.execPath, ["-e", script], {
    env: { ...process.env, NODE_OPTIONS: "" },
  });
  expect(status).toBe(0);
}
