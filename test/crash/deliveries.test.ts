/** `kill -9` at random moments of a delivery: it ends once, whole, and leaves nothing else at its place. */
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { createBatch } from "../support/batches.ts";
import { endLeases } from "../support/end-leases.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { type Served, serve } from "../support/serve.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const LINES = 600;
const KILLS = 3;

const postgres = forAllTests(await sharePostgres("deliveries on PostgreSQL"));

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

const start = (configPath: string) => serve(["--config", configPath]);

const deliver = async ({ url }: Served, batchId: string, body: object) => {
  const headers = { "content-type": "application/json" };
  const path = `${url}/v1/batches/${batchId}/deliveries`;
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
};

const history = async ({ url }: Served, batchId: string): Promise<DeliveryObject[]> => {
  const answer = await fetch(`${url}/v1/batches/${batchId}/deliveries`);
  return ((await answer.json()) as { data: DeliveryObject[] }).data;
};

test.each([
  ["SQLite", false],
  ...(postgres === null
    ? []
    : ([["PostgreSQL, where two servers are asked at once", true]] as const)),
] as const)(
  "a delivery that is killed again and again: %s",
  async (_, isShared) => {
    using folder = temporaryFolder("batchd-crash-delivery-");
    const place = join(folder.path, "share");
    mkdirSync(place);
    await using upstream = await startUpstream();
    const databaseUrl = isShared ? await postgres!.createDatabase() : null;
    const configPath = join(folder.path, "batchd.yaml");
    const config = {
      server: { port: 0 },
      data_dir: join(folder.path, "data"),
      log_level: "debug",
      ...(databaseUrl !== null && { database_url: databaseUrl }),
      upstreams: [{ name: "only", base_url: upstream.url, models: ["*"], max_concurrency: 64 }],
      locations: [{ name: "share", kind: "folder", path: place, access: "write" }],
    };
    writeFileSync(configPath, JSON.stringify(config));
    let running = await start(configPath);
    const text = `${chatLines(LINES).join("\n")}\n`;
    const input = await running.openai.files.create({
      file: new File([text], "input.jsonl"),
      purpose: "batch",
    });
    const { id } = await createBatch(running.openai, input.id);
    await running.server.batchEnded(id);
    if (isShared) {
      const other = await start(configPath);
      const asked = [running, other, running, other, running, other].map((each) =>
        deliver(each, id, { location: "share", format: "csv" }),
      );
      const statuses = (await Promise.all(asked)).map(({ status }) => status);
      expect(statuses.toSorted()).toEqual([200, 409, 409, 409, 409, 409]);
      await other.server.kill();
    } else {
      expect((await deliver(running, id, { location: "share", format: "csv" })).status).toBe(200);
    }
    for (let kill = 0; kill < KILLS; kill++) {
      const hasEnded = (await history(running, id)).every(({ status }) => status === "delivered");
      if (!hasEnded) await sleep(Math.random() * 250);
      await running.server.kill();
      if (databaseUrl !== null) await endLeases(databaseUrl);
      // What is there is never a part: the files appear together.
      const names = readdirSync(place).filter((name) => !name.startsWith("."));
      for (const name of names) {
        expect(readdirSync(join(place, name)).toSorted()).toEqual(["output.csv", "run.json"]);
      }
      running = await start(configPath);
    }
    for (let deliveries = await history(running, id); ; deliveries = await history(running, id)) {
      if (deliveries[0]?.status === "delivered") break;
      await sleep(100);
    }
    expect(readdirSync(place)).toEqual([id]);
    expect(await history(running, id)).toHaveLength(1);
    const { output_file_id } = await running.openai.batches.retrieve(id);
    const table = await fetch(`${running.url}/v1/files/${output_file_id}/content?format=csv`);
    const expected = sha256(new Uint8Array(await table.arrayBuffer()));
    expect(sha256(readFileSync(join(place, id, "output.csv")))).toBe(expected);
    const record = JSON.parse(readFileSync(join(place, id, "run.json"), "utf8")) as object;
    expect(JSON.stringify(record)).toContain(id);
    await running.server.kill();
  },
  180_000,
);
