/** The rows of lists that hundreds of clients ask for at the same time. They are not counted like the pages made of them. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { clientOf } from "../support/projects.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const CLIENTS = 300;
/** They are read at once. */
const BATCHES = 20;
/** The rows of all clients together would take twice as much, and the process would end. */
const HEAP = { NODE_OPTIONS: "--max-old-space-size=256" };
/** A batch with these takes some 70 kB, as it comes from the database and as it is read. */
const METADATA = Object.fromEntries(
  Array.from({ length: 16 }, (_, n) => [`key-${n}`, "\u{1f600}".repeat(512)]),
);

const postgres = forAllTests(await sharePostgres("the memory of lists on PostgreSQL"));
const folder = forAllTests(temporaryFolder("batchd-list-memory-")).path;

test.skipIf(postgres === null)(
  "hundreds of clients that list long batches at once do not fill the memory with rows",
  async () => {
    const config = join(folder, "config.json");
    const settings = {
      data_dir: join(folder, "data"),
      database_url: await postgres?.createDatabase(),
      limits: { memory_bytes: "16MiB" },
      auth: { keys: [{ name: "a", key: "key-of-a" }] },
    };
    await writeFile(config, JSON.stringify(settings));
    await using server = new BatchdProcess(["serve", "--port", "0", "--config", config], HEAP);
    const url = await server.listening();
    const openai = clientOf(url, "key-of-a");
    const file = new File([chatLines(1).join("\n")], "in.jsonl");
    const { id } = await openai.files.create({ file, purpose: "batch" });
    for (let n = 0; n < BATCHES; n++) {
      await openai.batches.create({
        input_file_id: id,
        endpoint: "/v1/chat/completions",
        completion_window: "24h",
        metadata: METADATA,
      });
    }
    const list = async () => {
      const headers = { authorization: "Bearer key-of-a" };
      const answer = await fetch(`${url}/v1/batches?limit=${BATCHES}`, { headers });
      await answer.arrayBuffer();
      return answer.status;
    };
    const statuses = await Promise.all(Array.from({ length: CLIENTS }, list));
    // The pages themselves have a bound in memory, and some clients are to come back.
    expect(statuses.filter((status) => ![200, 429, 503].includes(status))).toEqual([]);
    expect(await list()).toBe(200);
  },
);
