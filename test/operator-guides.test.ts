/**
 * The commands of docs/storage.md, docs/operating.md and docs/opensearch.md, pasted as they stand, with addresses of this
 * test, and the layout of docs/architecture.md. What no test can run is listed in `pasted-pages.test.ts`.
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { forAllTests } from "./support/for-all-tests.ts";
import { listening } from "./support/listening.ts";
import { type Connector, MlCommons } from "./support/ml-commons.ts";
import { blocksOf, paste, putCommand } from "./support/paste.ts";
import { sharePostgres } from "./support/postgres.ts";
import { AS_NPM_START, BatchdProcess, SOURCES } from "./support/process.ts";
import { hasS3Server, S3_KEYS, startS3Server } from "./support/s3-server.ts";
import { chatLines, startTestService } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const EXAMPLES = join(ROOT, "examples/opensearch");

const postgres = forAllTests(await sharePostgres("the commands of docs/storage.md"));

test.skipIf(postgres === null || !hasS3Server())(
  "docs/storage.md moves an installation up, back, and by a configuration; docs/operating.md serves it by roles",
  async () => {
    using folder = temporaryFolder("batchd-operators-");
    await using bucket = await startS3Server();
    const url = (await postgres?.createDatabase()) ?? "";
    const write = (name: string, values: object) =>
      // JSON is YAML too.
      writeFileSync(join(folder.path, name), JSON.stringify({ server: { port: 0 }, ...values }));
    const env = {
      ...putCommand(folder.path),
      DATABASE_URL: url,
      AWS_ACCESS_KEY_ID: S3_KEYS.access_key_id,
      AWS_SECRET_ACCESS_KEY: S3_KEYS.secret_access_key,
    };
    const pasted = async (script: string) => {
      const { code, output } = await paste(script, { env, folder: folder.path });
      expect({ code, output }).toMatchObject({ code: 0 });
      return output;
    };
    mkdirSync(join(folder.path, "data"));
    await pasted("batchd migrate --data-dir ./data");

    const [block = ""] = blocksOf("storage.md", "bash");
    const commands = block
      .replace(
        "s3://my-batches/batchd/?region=eu-central-1",
        `s3://tests/batchd/?region=us-east-1&endpoint=${bucket.url}&force_path_style=true`,
      )
      .split(/^(?=#)/m);
    expect(commands).toHaveLength(3);
    const [up = "", back = "", byConfig = ""] = commands;
    expect(await pasted(up)).toMatch(/verified|compared|copied/i);

    const storage = bucket.storage({ prefix: "batchd/" });
    write("batchd.yaml", { storage, data_dir: "./fleet" });
    expect(await pasted(back)).toMatch(/verified|compared|copied/i);

    const [roles = ""] = blocksOf("operating.md", "bash").filter((each) => /--role/.test(each));
    const [variable = "", ...servers] = roles.trim().split("\n");
    expect(variable).toMatch(/^export BATCHD_DATABASE_URL=postgres:/);
    expect(servers).toHaveLength(2);
    const upstreams = [{ name: "a", base_url: "http://127.0.0.1:9/v1", models: ["*"] }];
    write("batchd.yaml", { storage, upstreams, data_dir: join(folder.path, "member") });
    for (const line of servers) {
      const [command, ...args] = line
        .replace("batchd.yaml", join(folder.path, "batchd.yaml"))
        .split(" ");
      expect(command).toBe("batchd");
      await using server = new BatchdProcess(args, { BATCHD_DATABASE_URL: url });
      expect((await fetch(`${await server.listening()}/ready`)).status).toBe(200);
      expect((await server.kill("SIGTERM")).code).toBe(0);
    }

    write("batchd.yaml", { data_dir: "./data-2" });
    write("new.yaml", { data_dir: "./data-3" });
    expect(await pasted(byConfig)).toMatch(/verified|compared|copied/i);
  },
);

test("a backup as docs/operating.md makes it has everything, and opens no credentials of clients", async () => {
  using folder = temporaryFolder("batchd-backup-");
  const options = {
    upstreamUrl: "http://127.0.0.1:9/v1",
    config: { deliveries: { allow_private_hosts: ["127.0.0.1"] } },
  };
  const before = await startTestService({ ...options, dataDir: join(folder.path, "data") });
  const endpoint = "http://127.0.0.1:9";
  const deliver = [{ kind: "s3", bucket: "mine", region: "us-east-1", endpoint, ...S3_KEYS }];
  const { id } = (await before.openai.post("/batches", {
    body: {
      input_file_id: await before.upload(chatLines(2)),
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      x_batchd: { deliver },
    },
  })) as OpenAI.Batch;
  await before.events.reached("batch.started", { batch: id });
  const layout = readFileSync(join(ROOT, "docs/architecture.md"), "utf8").match(
    /^data\/\n.*?^```/ms,
  );
  const files = readdirSync(before.dataDir).filter((name) => !/-(?:wal|shm)$/.test(name));
  expect(files).toContain("batchd.credentials-key");
  for (const name of files) expect(layout?.[0]).toMatch(new RegExp(`^  ${name}[/ ]`, "m"));
  await before.close();

  const backup = blocksOf("operating.md", "bash").find((block) => block.startsWith("tar "));
  const restore = "mv data old\ntar --extract --file=batchd.tar\n";
  expect(await paste(`${backup}${restore}`, { folder: folder.path })).toMatchObject({ code: 0 });
  expect(readdirSync(join(folder.path, "data"))).not.toContain("batchd.credentials-key");
  await using after = await startTestService({ ...options, dataDir: before.dataDir });
  await after.openai.batches.cancel(id);
  await after.events.reached("delivery.given_up", { batch: id });
  const history = (await after.openai.get(`/batches/${id}/deliveries`)) as { data: unknown[] };
  expect(history.data).toMatchObject([{ status: "failed", error: { code: "credentials_lost" } }]);
});

test("a key that was revoked after a backup is accepted after its restore, until docs/operating.md has it revoked again", async () => {
  using folder = temporaryFolder("batchd-restored-keys-");
  const env = putCommand(folder.path);
  const pasted = async (script: string) => {
    const { code, output } = await paste(script, { env, folder: folder.path });
    expect({ code, output }).toMatchObject({ code: 0 });
    return output;
  };
  const statusWith = async (key: string | null) => {
    const dataDir = join(folder.path, "data");
    await using service = await startTestService({ upstreamUrl: "http://127.0.0.1:9/v1", dataDir });
    const headers = key === null ? {} : { authorization: `Bearer ${key}` };
    return (await fetch(`${service.url}/v1/batches`, { headers })).status;
  };
  const [backup = "", again = ""] = blocksOf("operating.md", "bash").filter((block) =>
    /^(?:tar|batchd keys) /.test(block),
  );
  const restore = "rm -r data\ntar --extract --file=batchd.tar\n";

  await pasted(`batchd migrate --data-dir data\n${backup}`);
  const made = await pasted("batchd keys create --name nightly --data-dir data");
  const key = /sk-\S+/.exec(made)?.[0] ?? "";
  const id = /key_[0-9a-f]{32}/.exec(await pasted("batchd keys list --data-dir data"))?.[0] ?? "";
  expect([await statusWith(key), await statusWith(null)]).toEqual([200, 401]);
  await pasted(
    `${backup.replace("batchd.tar", "with-key.tar")}batchd keys revoke ${id} --data-dir data\n`,
  );
  expect(await statusWith(key)).toBe(401);

  await pasted(restore.replace("batchd.tar", "with-key.tar"));
  expect(await statusWith(key)).toBe(200);
  expect(await pasted(again.replace(/key_[0-9a-f]{32}/, id))).toContain(id);
  expect(await statusWith(key)).toBe(401);

  await pasted(restore);
  expect(await statusWith(null)).toBe(200);
});

test("docs/opensearch.md takes passages to vectors, with the calls of ML Commons between its commands", async () => {
  using folder = temporaryFolder("batchd-opensearch-");
  await using upstream = await startUpstream();
  const [, start = "", upload = "", download = "", bulk = ""] = blocksOf("opensearch.md", "bash");
  const example = readFileSync(join(EXAMPLES, "batchd.yaml"), "utf8");
  const config = join(folder.path, "batchd.yaml");
  writeFileSync(config, example.replace("http://localhost:8000/v1", upstream.url));
  const [npm, script, ...args] = start.trim().split(" ");
  expect([npm, script, args.shift()]).toEqual(["npm", "start", "--"]);
  const given = args.map((arg) => (arg === "examples/opensearch/batchd.yaml" ? config : arg));
  expect(given).toContain(config);
  const env = {
    ...AS_NPM_START,
    BATCHD_PORT: "0",
    BATCHD_HOST: "127.0.0.1",
    BATCHD_DATA_DIR: folder.path,
  };
  await using batchd = new BatchdProcess(["serve", ...given], env, SOURCES);
  const url = await batchd.listening();

  const received = Promise.withResolvers<string>();
  const openSearch = createServer((request, response) => {
    received.resolve(text(request).then((body) => `${request.url} ${body}`));
    response.end('{"errors":false}');
  });
  const openSearchUrl = `http://127.0.0.1:${await listening(openSearch)}`;
  const pasted = async (block: string) => {
    const here = block
      .replaceAll("http://203.0.113.10:8080", url)
      .replaceAll("http://localhost:9200", openSearchUrl)
      .replaceAll(/\b(output\.jsonl|bulk\.ndjson)\b/g, `${folder.path}/$1`);
    const { code, output } = await paste(here, { folder: ROOT });
    expect({ code, output }).toMatchObject({ code: 0 });
    expect(output).not.toContain('"error":{');
    return output;
  };
  const fileId = /file-\w+/.exec(await pasted(upload))?.[0] ?? "";
  const connector = JSON.parse(readFileSync(join(EXAMPLES, "connector.json"), "utf8")) as Connector;
  using ml = await MlCommons.open(connector, url);
  expect((await ml.batchPredict({ input_file_id: fileId })).status).toBe(200);
  const id = String(ml.remoteJob["id"]);
  await batchd.batchEnded(id);
  await ml.status();
  expect(ml.taskState).toBe("COMPLETED");
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-local" });
  expect((await openai.batches.retrieve(id)).request_counts?.failed).toBe(0);
  await pasted(download.replace("<output_file_id>", String(ml.remoteJob["output_file_id"])));
  await pasted(bulk);
  const sent = await received.promise;
  expect(sent).toMatch(/^\/_bulk \{"index":/);
  expect(sent.split("\n").filter((line) => line.includes('"title_embedding"'))).toHaveLength(3);
});
