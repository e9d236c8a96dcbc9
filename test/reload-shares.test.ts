/** A server with a location on a share whose server is gone, in a process of its own. */
import { rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { stringify } from "yaml";
import { submitLines } from "./support/batches.ts";
import { mountDeadShare } from "./support/dead-share.ts";
import { BatchdProcess } from "./support/process.ts";
import { chatLines } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream, type TestUpstream } from "./support/upstream.ts";

const configOf = ({ url }: TestUpstream, share: string | null) =>
  stringify({
    upstreams: [{ name: "a", base_url: url, models: ["*"] }],
    locations:
      share === null ? [] : [{ name: "share", kind: "folder", path: share, access: "write" }],
  });

const SILENT = /the folder \S+ of the location share does not answer/;

test("a location on a share that never answers stops neither a start, nor a reload, nor the end of the server", async ({
  skip,
}) => {
  using share = await mountDeadShare();
  if (share === null) return skip("this process may not mount a file system");
  await using upstream = await startUpstream();
  using folder = temporaryFolder("batchd-share-");
  const path = join(folder.path, "batchd.yaml");
  const configure = async (text: string) => {
    await writeFile(`${path}.tmp`, text);
    await rename(`${path}.tmp`, path);
  };
  const dataDir = join(folder.path, "data");
  const args = ["serve", "--port", "0", "--config", path, "--data-dir", dataDir];
  const completes = async (server: BatchdProcess, url: string) => {
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
    const { id } = await submitLines(openai, chatLines(5));
    await server.batchEnded(id);
    return (await openai.batches.retrieve(id)).status;
  };

  await configure(configOf(upstream, null));
  await using reloaded = new BatchdProcess(args);
  const url = await reloaded.listening();
  await configure(configOf(upstream, share.path));
  await reloaded.loggedLike(SILENT);
  for (let times = 0; times < 5; times++) reloaded.signal("SIGHUP");
  expect(await completes(reloaded, url)).toBe("completed");
  expect((await reloaded.kill("SIGTERM")).stderr).toContain("server.stopped");

  await using started = new BatchdProcess(args);
  expect(await completes(started, await started.listening())).toBe("completed");
  await started.loggedLike(SILENT);
  expect((await started.kill("SIGTERM")).stderr).toContain("server.stopped");
});
