/** Sections 1.2 to 1.4: entries of `errors`, files, and lists. */
import assert from "node:assert/strict";
import { accepted, idsOn, isSeconds } from "../expect.ts";
import { type Section, strong, weak } from "../fact.ts";
import { line } from "../lines.ts";
import type { Json, Server } from "../server.ts";

const FILE_KEYS = [
  "object",
  "id",
  "purpose",
  "filename",
  "bytes",
  "created_at",
  "expires_at",
  "status",
  "status_details",
];
const PURPOSES = ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"];
const CONTENT = `${line("one")}\n`;
const PAGE_KEYS = ["data", "first_id", "has_more", "last_id", "object"];

const newFile = async (main: Server, fields: Record<string, string> = {}): Promise<Json> =>
  accepted(await main.sendFile(CONTENT, fields));

const faultsOf = (batch: Json) => (batch["errors"] as { data: Json[] }).data;

export const batchError: Section = {
  number: "1.2",
  title: "BatchError",
  facts: [
    strong.http(
      "1.2-keys",
      "An entry has `code`, `message`, `param` and `line`",
      async ({ stories }) => {
        for (const { final } of [await stories.faulty(), await stories.missingInput()]) {
          for (const fault of faultsOf(final)) {
            assert.deepEqual(Object.keys(fault).sort(), ["code", "line", "message", "param"]);
          }
        }
      },
    ),
    strong.http("1.2-text", "`code` and `message` are texts", async ({ stories }) => {
      for (const { code, message } of faultsOf((await stories.faulty()).final)) {
        assert.deepEqual([typeof code, typeof message], ["string", "string"]);
      }
    }),
    strong.http(
      "1.2-line",
      "`line` counts the lines of the input file from 1",
      async ({ stories }) => {
        const lines = faultsOf((await stories.faulty()).final).map((fault) => fault["line"]);
        assert.deepEqual(lines, [2, 3, 4, 5]);
      },
    ),
    strong.http(
      "1.2-whole-file",
      "`line` is null when the whole file is at fault",
      async ({ stories }) => {
        assert.equal(faultsOf((await stories.missingInput()).final)[0]?.["line"], null);
      },
    ),
  ],
};

export const file: Section = {
  number: "1.3",
  title: "File",
  facts: [
    strong.http(
      "1.3-keys",
      "A file has these keys, always: `object`, `id`, `purpose`, `filename`, `bytes`, `created_at`, `expires_at`, `status`, `status_details`",
      async ({ main }) => {
        assert.deepEqual(Object.keys(await newFile(main)).sort(), FILE_KEYS.toSorted());
      },
    ),
    strong.http("1.3-object", "`object` is `file`", async ({ main }) => {
      assert.equal((await newFile(main))["object"], "file");
    }),
    strong.http("1.3-id", "`id` is `file-` and 22 letters or digits", async ({ main }) => {
      assert.match(String((await newFile(main))["id"]), /^file-[A-Za-z0-9]{22}$/);
    }),
    strong.http(
      "1.3-echo",
      "`filename`, `bytes` and `purpose` are those of the upload",
      async ({ main }) => {
        const { filename, bytes, purpose } = await newFile(main, { filename: "größe 1.jsonl" });
        assert.deepEqual(
          { filename, bytes, purpose },
          { filename: "größe 1.jsonl", bytes: CONTENT.length, purpose: "batch" },
        );
      },
    ),
    strong.http("1.3-created-at", "`created_at` is now, in Unix seconds", async ({ main }) => {
      const beforeSeconds = Math.floor(Date.now() / 1000);
      const { created_at } = await newFile(main);
      // The clock of a database is known to some milliseconds.
      assert.ok(isSeconds(created_at) && Number(created_at) >= beforeSeconds - 1);
    }),
    strong.http("1.3-status", "`status` is `processed` at once", async ({ main }) => {
      assert.equal((await newFile(main))["status"], "processed");
    }),
    strong.http("1.3-status-details", "`status_details` is null", async ({ main }) => {
      assert.equal((await newFile(main))["status_details"], null);
    }),
    strong.http(
      "1.3-expires-batch",
      "A file for a batch expires 30 days after its creation when nothing else was asked for",
      async ({ main }) => {
        const { created_at, expires_at } = await newFile(main);
        assert.equal(expires_at, Number(created_at) + 2_592_000);
      },
    ),
    strong.http(
      "1.3-expires-others",
      "A file for anything else has `expires_at` null",
      async ({ main }) => {
        for (const purpose of PURPOSES.filter((each) => each !== "batch")) {
          assert.equal((await newFile(main, { purpose }))["expires_at"], null, purpose);
        }
      },
    ),
    strong.http(
      "1.3-output-purpose",
      "Result files have the purpose `batch_output`",
      async ({ main, stories }) => {
        const { output_file_id, error_file_id } = (await stories.mixed()).final;
        for (const id of [output_file_id, error_file_id]) {
          assert.equal((await main.get(`/v1/files/${id}`)).json["purpose"], "batch_output");
        }
      },
    ),
    strong.http(
      "1.3-deleted",
      "What is deleted is answered with `object`, `id` and `deleted: true`",
      async ({ main }) => {
        const { id } = await newFile(main);
        const answer = await main.call("DELETE", `/v1/files/${id}`);
        assert.deepEqual(accepted(answer), { object: "file", id, deleted: true });
      },
    ),
  ],
};

async function listed(main: Server, path: string): Promise<Json> {
  const page = accepted(await main.get(path));
  assert.deepEqual(Object.keys(page).sort(), PAGE_KEYS);
  assert.equal(page["object"], "list");
  assert.equal(typeof page["has_more"], "boolean");
  return page;
}

export const lists: Section = {
  number: "1.4",
  title: "List envelope",
  facts: [
    strong.http(
      "1.4-files",
      "A list of files has `object: list`, `data`, `first_id`, `last_id` and `has_more`",
      async ({ main }) => {
        await newFile(main);
        await listed(main, "/v1/files");
      },
    ),
    strong.http("1.4-batches", "A list of batches has the same", async ({ main, stories }) => {
      await stories.clean();
      await listed(main, "/v1/batches");
    }),
    strong.http(
      "1.4-ends",
      "`first_id` and `last_id` are the ids at the ends of `data`",
      async ({ main }) => {
        await newFile(main);
        await newFile(main);
        const page = await listed(main, "/v1/files?limit=2");
        assert.deepEqual([page["first_id"], page["last_id"]], idsOn(page));
        assert.equal(page["has_more"], true);
      },
    ),
    weak.http(
      "1.4-empty",
      "An empty page has `data: []`, both ids null and `has_more: false`",
      async ({ strict }) => {
        for (const path of ["/v1/files?purpose=vision", "/v1/batches?limit=0"]) {
          const empty = {
            object: "list",
            data: [],
            first_id: null,
            last_id: null,
            has_more: false,
          };
          assert.deepEqual(await listed(strict, path), empty);
        }
      },
    ),
    strong.http("1.4-models", "A list of models has `object` and `data` only", async ({ main }) => {
      const page = accepted(await main.get("/v1/models"));
      assert.deepEqual(Object.keys(page).sort(), ["data", "object"]);
    }),
  ],
};
