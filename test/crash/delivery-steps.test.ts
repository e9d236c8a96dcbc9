/**
 * `kill -9` at each step of a delivery, and of deriving an input. One process is stopped at all of these steps at once and
 * killed there; the next one ends everything. Nothing is doubled, and nothing half done is ever to be seen.
 */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { ListMultipartUploadsCommand, S3Client } from "@aws-sdk/client-s3";
import type OpenAI from "openai";
import { expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { namesBelow } from "../support/files-below.ts";
import { TestRepository } from "../support/git-repository.ts";
import { hasS3Server, S3_KEYS, startS3Server } from "../support/s3-server.ts";
import { serve } from "../support/serve.ts";
import { chatLines, type ResultRow } from "../support/service.ts";
import { type Stop, startStepProxy } from "../support/step-proxy.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const MIB = 1024 * 1024;
/** The output has some 12 MB, so it goes to a bucket in two parts. */
const LARGE = chatLines(3, () => "[[big 4000000]]");
const SMALL_COUNT = 100;

/** The steps of a delivery to a bucket, and the files that are there when the process is killed. */
const S3_STEPS: Record<string, Omit<Stop, "path"> & { path: string; there: readonly string[] }> = {
  claimed: { method: "HEAD", path: "output.jsonl", at: "request", there: [] },
  begun: { method: "POST", path: "output.jsonl?uploads", at: "answer", there: [] },
  saved: { method: "PUT", path: "partNumber=1&", at: "request", there: [] },
  "half-part": { method: "PUT", path: "partNumber=2&", at: { sentBytes: MIB }, there: [] },
  uploaded: { method: "POST", path: "uploadId=", at: "request", there: [] },
  completed: { method: "POST", path: "uploadId=", at: "answer", there: ["output.jsonl"] },
  manifest: { method: "PUT", path: "run.json", at: "request", there: ["output.jsonl"] },
  placed: { method: "PUT", path: "run.json", at: "answer", there: ["output.jsonl", "run.json"] },
};

async function start(configPath: string) {
  const { server, openai } = await serve(["--config", configPath]);
  const upload = async (lines: readonly string[]) => {
    const file = new File([`${lines.join("\n")}\n`], "input.jsonl");
    return (await openai.files.create({ file, purpose: "batch" })).id;
  };
  const create = async (body: object) =>
    (await openai.post("/batches", {
      body: { endpoint: "/v1/chat/completions", completion_window: "24h", ...body },
    })) as OpenAI.Batch;
  const run = async (lines: readonly string[]) => {
    const { id } = await create({ input_file_id: await upload(lines) });
    await server.batchEnded(id);
    return openai.batches.retrieve(id);
  };
  const deliver = async (batchId: string, location: string) =>
    (await openai.post(`/batches/${batchId}/deliveries`, {
      body: { location },
    })) as DeliveryObject;
  const history = async (batchId: string) =>
    ((await openai.get(`/batches/${batchId}/deliveries?limit=100`)) as { data: DeliveryObject[] })
      .data;
  return { server, openai, create, run, deliver, history };
}

/** A repository whose hook waits for a file. */
function waitingRepository(folder: string, hook: "pre-receive" | "post-receive") {
  const repository = new TestRepository();
  const [entered, left] = [join(folder, `${hook}-entered`), join(folder, `${hook}-left`)];
  const path = join(repository.path, "hooks", hook);
  const wait = `touch '${entered}'\nwhile [ ! -e '${left}' ]; do sleep 0.05; done`;
  writeFileSync(path, `#!/bin/sh\ncat > /dev/null\n${wait}\n`);
  chmodSync(path, 0o755);
  return { repository, entered, left };
}

const escaped = (text: string) => text.replaceAll(/[?.]/g, "\\$&");

test.runIf(hasS3Server())(
  "each step of a delivery, and of deriving an input, survives kill -9",
  async () => {
    using folder = temporaryFolder("batchd-steps-");
    const share = join(folder.path, "share");
    mkdirSync(share);
    using half = new TestRepository();
    const pushed = waitingRepository(folder.path, "pre-receive");
    const committed = waitingRepository(folder.path, "post-receive");
    using _pushed = pushed.repository;
    using _committed = committed.repository;
    await using upstream = await startUpstream();
    await using bucket = await startS3Server();
    await using proxy = await startStepProxy(bucket.url);
    const { type: _, ...s3 } = bucket.storage({ endpoint: proxy.url });
    const git = ({ path }: TestRepository, name: string) => ({
      name,
      kind: "git",
      access: "write",
      repository: path,
      timeout_seconds: 600,
    });
    const configPath = join(folder.path, "batchd.yaml");
    const config = {
      server: { port: 0 },
      data_dir: join(folder.path, "data"),
      log_level: "debug",
      storage: bucket.storage({ endpoint: proxy.url, prefix: "blobs/" }),
      upstreams: [{ name: "only", base_url: upstream.url, models: ["*"] }],
      locations: [
        { name: "share", kind: "folder", path: share, access: "write" },
        ...Object.keys(S3_STEPS).map((name) => ({
          name,
          kind: "s3",
          access: "write",
          ...s3,
          prefix: `${name}/`,
          timeout_seconds: 600,
        })),
        git(half, "half"),
        git(pushed.repository, "pushed"),
        git(committed.repository, "committed"),
      ],
    };
    writeFileSync(configPath, JSON.stringify(config));
    const first = await start(configPath);
    const [large, other, source, claimedSource] = [
      await first.run(LARGE),
      await first.run(LARGE),
      await first.run(chatLines(SMALL_COUNT)),
      await first.run(chatLines(SMALL_COUNT)),
    ];

    // Deliveries.
    const stops = Object.entries(S3_STEPS).map(([name, { path, ...stop }]) =>
      proxy.stopAt({ ...stop, path: new RegExp(`/${name}/.*${escaped(path)}`) }),
    );
    const read = new RegExp(`/files/${other.output_file_id}`);
    stops.push(proxy.stopAt({ method: "GET", path: read, at: { answeredBytes: 5 * MIB } }, 2));
    const deliveries: (readonly [string, string])[] = [
      ...[...Object.keys(S3_STEPS), "pushed", "committed"].map((name) => [large.id, name] as const),
      ...["share", "half"].map((name) => [other.id, name] as const),
    ];
    for (const [batchId, name] of deliveries) await first.deliver(batchId, name);
    const areEntered = () => [pushed, committed].every(({ entered }) => existsSync(entered));

    // Deriving: the input is recorded, and its batch not validated; stored; half written; claimed.
    const derive = async (batch: OpenAI.Batch, stop?: Omit<Stop, "path">) => {
      const made = await first.create({ x_batchd: { from: { batch: batch.id, lines: "all" } } });
      const path = new RegExp(`/files/${made.input_file_id}`);
      if (stop !== undefined) await proxy.stopAt({ ...stop, path });
      return made;
    };
    const derived = [await derive(source, { method: "GET", at: "request" })];
    derived.push(await derive(source, { method: "PUT", at: "answer" }));
    derived.push(await derive(source, { method: "PUT", at: { sentBytes: 1 } }));
    const input = new RegExp(`/files/${claimedSource.input_file_id}`);
    const claimed = proxy.stopAt({ method: "GET", path: input, at: "request" });
    derived.push(await derive(claimedSource));
    await Promise.all([...stops, claimed]);
    await expect.poll(areEntered, { timeout: 120_000 }).toBe(true);
    // No repository has removed the private folder of another one that is in use.
    expect(readdirSync(join(folder.path, "data", "locations"))).toHaveLength(3);

    await first.server.kill();
    for (const [name, { there }] of Object.entries(S3_STEPS)) {
      expect(namesBelow(join(bucket.bucketFolder, name)), name).toEqual(there);
    }
    expect(readdirSync(share).filter((name) => !name.startsWith("."))).toEqual([]);
    expect([half.branches, pushed.repository.branches]).toEqual([["main"], ["main"]]);
    expect(committed.repository.branches).toContain(`batch/${large.id}`);

    // The pushes of the killed process end beside those of the next one.
    for (const { left } of [pushed, committed]) writeFileSync(left, "");
    proxy.release();
    const second = await start(configPath);
    for (const { id } of derived) await second.server.batchEnded(id);
    for (const batch of [large, other]) {
      const all = () => second.history(batch.id).then((data) => data.map(({ status }) => status));
      const expected = deliveries.flatMap(([id]) => (id === batch.id ? ["delivered"] : []));
      await expect.poll(all, { timeout: 120_000 }).toEqual(expected);
    }
    const output = async ({ output_file_id }: OpenAI.Batch) =>
      (await second.openai.files.content(output_file_id ?? "")).text();
    const [largeOutput, otherOutput] = [await output(large), await output(other)];
    for (const name of Object.keys(S3_STEPS)) {
      const place = join(bucket.bucketFolder, name, large.id);
      expect(namesBelow(join(bucket.bucketFolder, name)), name).toEqual([
        "output.jsonl",
        "run.json",
      ]);
      expect(readFileSync(join(place, "output.jsonl"), "utf8") === largeOutput, name).toBe(true);
    }
    const client = new S3Client({
      endpoint: bucket.url,
      region: "us-east-1",
      forcePathStyle: true,
      credentials: {
        accessKeyId: S3_KEYS.access_key_id,
        secretAccessKey: S3_KEYS.secret_access_key,
      },
    });
    const query = new ListMultipartUploadsCommand({ Bucket: "tests" });
    const ofDeliveries = ({ Key = "" }) => !Key.startsWith("blobs/");
    expect((await client.send(query)).Uploads?.filter(ofDeliveries) ?? []).toEqual([]);
    expect(readdirSync(share)).toEqual([other.id]);
    expect(readFileSync(join(share, other.id, "output.jsonl"), "utf8") === otherOutput).toBe(true);
    for (const [repository, { id }, text] of [
      [half, other, otherOutput],
      [pushed.repository, large, largeOutput],
      [committed.repository, large, largeOutput],
    ] as const) {
      expect(repository.branches).toEqual([`batch/${id}`, "main"]);
      expect(repository.text("rev-list", "--count", `main..batch/${id}`)).toBe("1");
      const files = repository.filesIn(`batch/${id}`, `runs/${id}`);
      expect([...files.keys()].toSorted()).toEqual(["output.jsonl", "run.json"]);
      expect(files.get("output.jsonl")?.toString() === text).toBe(true);
      expect(repository.text("fsck", "--full", "--no-dangling")).toBe("");
    }

    const lines = `${chatLines(SMALL_COUNT).join("\n")}\n`;
    for (const { id, input_file_id } of derived) {
      const ended = await second.openai.batches.retrieve(id);
      expect([ended.status, ended.input_file_id]).toEqual(["completed", input_file_id]);
      expect(await (await second.openai.files.content(input_file_id)).text()).toBe(lines);
      const rows = (await output(ended)).trimEnd().split("\n");
      const ids = rows.map((row) => (JSON.parse(row) as ResultRow).custom_id);
      expect(ids).toEqual(Array.from({ length: SMALL_COUNT }, (_, i) => `line-${i + 1}`));
    }
    const inputs = (await second.openai.files.list({ purpose: "batch" })).data;
    expect(inputs).toHaveLength(4 + derived.length);
    await second.server.kill();
  },
  300_000,
);
