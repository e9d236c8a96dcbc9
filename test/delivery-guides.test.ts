/** The commands of docs/deliveries.md, docs/locations.md and docs/runs.md, pasted as they stand. */
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import { blocksOf, paste } from "./support/paste.ts";
import { chatLines, startTestService } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";

test("the commands of the guides take an input from a share and its results back to it", async () => {
  using share = temporaryFolder("batchd-share-");
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: {
      locations: [{ name: "share", kind: "folder", path: share.path, access: "read-write" }],
    },
  });
  const { url, events } = service;
  const pasted = async (block = "", env: Readonly<Record<string, string>> = {}) => {
    const script = block.replaceAll("http://127.0.0.1:8080", url);
    const { code, output } = await paste(script, {
      env: { KEY: "not-needed", BATCHD: url, ...env },
    });
    expect(output).not.toContain('"error":{');
    expect(code).toBe(0);
    return output;
  };
  const batchIn = (output: string) => /batch_[0-9a-f]{32}/.exec(output)?.[0] ?? "";

  mkdirSync(join(share.path, "in"));
  const input = gzipSync(`${chatLines(3).join("\n")}\n`);
  writeFileSync(join(share.path, "in/nightly.jsonl.gz"), input);
  const read = batchIn(await pasted(blocksOf("locations.md", "bash")[0]));
  await events.reached("batch.completed", { batch: read });

  const [withBatch, later] = blocksOf("deliveries.md", "bash");
  const INPUT = await service.upload(chatLines(2));
  const nightly = batchIn(await pasted(withBatch, { INPUT }));
  await events.reached("delivery.delivered", { batch: nightly });
  const folder = join(share.path, "team/nightly", nightly);
  expect(readdirSync(folder).toSorted()).toEqual(["output.csv", "run.json"]);

  const listed = await pasted(later, { BATCH: read });
  expect(listed).toContain('"object":"batch.delivery"');
  await events.reached("delivery.delivered", { batch: read });
  expect(readdirSync(join(share.path, read)).toSorted()).toEqual(["output.jsonl", "run.json"]);

  const record = JSON.parse(await pasted(blocksOf("runs.md", "bash")[0], { BATCH: read }));
  expect(record).toMatchObject({
    schema: "run_record.v1",
    input: { location: { name: "share", path: "in/nightly.jsonl.gz" } },
  });
});
