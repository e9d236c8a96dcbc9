/** One batch goes to every kind of location, by the front door: a real bucket, the real git, and the routes of Oxen. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { TestRepository } from "../support/git-repository.ts";
import { listening } from "../support/listening.ts";
import { OxenServer } from "../support/oxen-server.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

test.runIf(hasS3Server())(
  "the results of a batch are whole in a bucket, a git repository and an Oxen server",
  async () => {
    using folder = temporaryFolder("batchd-share-");
    using repository = new TestRepository();
    const oxen = new OxenServer();
    await using bucket = await startS3Server();
    const { type: _, ...s3 } = bucket.storage({ prefix: "runs/" });
    const locations = [
      { name: "share", kind: "folder", path: folder.path, access: "write" },
      { name: "lake", kind: "s3", access: "write", ...s3 },
      { name: "evals", kind: "git", access: "write", repository: repository.path },
      {
        name: "data",
        kind: "oxen",
        access: "write",
        repository: "ns/data",
        url: `http://127.0.0.1:${await listening(oxen.http)}`,
      },
    ];
    await using upstream = await startUpstream();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { locations },
    });
    const input_file_id = await service.upload(chatLines(3));
    const deliver = locations.map(({ name }) => ({ location: name }));
    const { id } = (await service.openai.post("/batches", {
      body: {
        input_file_id,
        endpoint: "/v1/chat/completions",
        completion_window: "24h",
        metadata: { name: "nightly run" },
        x_batchd: { deliver },
      },
    })) as { id: string };
    for (const { name: location } of locations) {
      await service.events.reached("delivery.delivered", { batch: id, location });
    }
    const output = await service.text((await service.openai.batches.retrieve(id)).output_file_id);
    expect(readFileSync(join(folder.path, id, "output.jsonl"), "utf8")).toBe(output);
    const inBucket = join(bucket.bucketFolder, "runs", id);
    expect(readFileSync(join(inBucket, "output.jsonl"), "utf8")).toBe(output);
    expect(existsSync(join(inBucket, "run.json"))).toBe(true);
    expect(repository.branches).toEqual(["batch/nightly-run", "main"]);
    const committed = repository.filesIn("batch/nightly-run", `runs/${id}`);
    expect(committed.get("output.jsonl")?.toString()).toBe(output);
    expect([...committed.keys()]).toContain("run.json");
    expect(
      repository.text(
        "log",
        "-1",
        "--format=%(trailers:key=Batch-Id,valueonly)",
        "batch/nightly-run",
      ),
    ).toBe(id);
    expect(oxen.filesIn("batch/nightly-run", `runs/${id}`).get("output.jsonl")?.toString()).toBe(
      output,
    );
    expect(readdirSync(folder.path)).toEqual([id]);
  },
);
