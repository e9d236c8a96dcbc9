/** Section 1.1: the batch object. */
import assert from "node:assert/strict";
import { type Section, strong, weak } from "../fact.ts";
import { ALIAS, chatBody, line } from "../lines.ts";
import { allBatches, EXTENSION, KEYS, LATER_KEYS } from "./batch-samples.ts";
import { batchTimes } from "./batch-times.ts";

const NO_USAGE = {
  input_tokens: 0,
  input_tokens_details: { cached_tokens: 0 },
  output_tokens: 0,
  output_tokens_details: { reasoning_tokens: 0 },
  total_tokens: 0,
};

export const batchObject: Section = {
  number: "1.1",
  title: "Batch",
  facts: [
    ...batchTimes,
    strong.http("1.1-keys", "Every key is always there, null when unset", async (context) => {
      for (const batch of await allBatches(context)) {
        assert.deepEqual(Object.keys(batch).sort(), [...KEYS, ...LATER_KEYS, EXTENSION].sort());
      }
    }),
    strong.http("1.1-order", "Keys come in the order of recorded answers", async (context) => {
      for (const batch of await allBatches(context)) {
        assert.deepEqual(
          Object.keys(batch).filter((key) => !LATER_KEYS.includes(key)),
          [...KEYS, EXTENSION],
        );
      }
    }),
    strong.http(
      "1.1-id",
      "`id` is `batch_` and 32 hexadecimal digits, of which the first 8 are the time of creation",
      async ({ stories }) => {
        const { created } = await stories.clean();
        assert.match(created.id, /^batch_[0-9a-f]{32}$/);
        assert.equal(Number.parseInt(created.id.slice(6, 14), 16), created.created_at);
      },
    ),
    strong.http("1.1-object", "`object` is `batch`", async (context) => {
      for (const batch of await allBatches(context)) assert.equal(batch["object"], "batch");
    }),
    strong.http("1.1-endpoint", "`endpoint` echoes the request", async ({ main }) => {
      for (const endpoint of ["/v1/embeddings", "/v1/responses"]) {
        assert.equal((await main.create("file-x", { endpoint })).json["endpoint"], endpoint);
      }
    }),
    strong.http(
      "1.1-model-null",
      "`model` is null until the batch is validated, and stays null when it fails",
      async ({ stories }) => {
        assert.equal((await stories.clean()).created["model"], null);
        assert.equal((await stories.missingInput()).final["model"], null);
      },
    ),
    strong.http(
      "1.1-model",
      "`model` is the model of the lines once the batch is validated",
      async ({ stories }) => {
        assert.equal((await stories.clean()).final["model"], "test-model");
      },
    ),
    strong.http(
      "1.1-errors-null",
      "`errors` is null but for failed validation, whatever becomes of lines",
      async ({ stories }) => {
        for (const story of [stories.clean, stories.mixed, stories.allBad, stories.timedOut]) {
          const { created, final } = await story();
          assert.deepEqual([created["errors"], final["errors"]], [null, null]);
        }
      },
    ),
    strong.http(
      "1.1-errors",
      '`errors` of a failed batch is `{"object":"list","data":[…]}`',
      async ({ stories }) => {
        const errors = (await stories.faulty()).final["errors"] as Record<string, unknown>;
        assert.deepEqual(Object.keys(errors).sort(), ["data", "object"]);
        assert.equal(errors["object"], "list");
        assert.ok(Array.isArray(errors["data"]));
      },
    ),
    strong.http("1.1-input-file-id", "`input_file_id` echoes the request", async ({ stories }) => {
      assert.equal((await stories.missingInput()).final["input_file_id"], "file-that-never-was");
    }),
    strong.http("1.1-completion-window", "`completion_window` is `24h`", async (context) => {
      for (const batch of await allBatches(context)) {
        assert.equal(batch["completion_window"], "24h");
      }
    }),
    strong.http(
      "1.1-output-file-id",
      "`output_file_id` is set only if a line succeeded",
      async ({ stories }) => {
        assert.match(String((await stories.mixed()).final.output_file_id), /^file-/);
        assert.equal((await stories.allBad()).final.output_file_id, null);
        assert.equal((await stories.faulty()).final.output_file_id, null);
      },
    ),
    strong.http(
      "1.1-error-file-id",
      "`error_file_id` is set only if a line ended without success",
      async ({ stories }) => {
        assert.match(String((await stories.mixed()).final.error_file_id), /^file-/);
        assert.match(String((await stories.cancelledWhileRunning()).final.error_file_id), /^file-/);
        assert.equal((await stories.clean()).final.error_file_id, null);
        assert.equal((await stories.faulty()).final.error_file_id, null);
      },
    ),
    weak.http(
      "1.1-no-empty-file-id",
      "A file id that is not there is null, never an empty text",
      async (context) => {
        for (const batch of await allBatches(context)) {
          assert.notEqual(batch.output_file_id, "");
          assert.notEqual(batch.error_file_id, "");
        }
      },
    ),
    strong.http(
      "1.1-counts-keys",
      "`request_counts` has `total`, `completed` and `failed`, always, as integers",
      async (context) => {
        for (const { request_counts } of await allBatches(context)) {
          assert.deepEqual(Object.keys(request_counts).sort(), ["completed", "failed", "total"]);
          assert.ok(Object.values(request_counts).every(Number.isInteger));
        }
      },
    ),
    strong.http(
      "1.1-counts-zero",
      "`request_counts` are zeros until validation ends",
      async ({ stories }) => {
        const { created } = await stories.clean();
        assert.deepEqual(created.request_counts, { total: 0, completed: 0, failed: 0 });
      },
    ),
    strong.http(
      "1.1-usage-zero",
      "`usage` is there from the creation on, all zeros",
      async ({ stories }) => {
        assert.deepEqual((await stories.clean()).created["usage"], NO_USAGE);
      },
    ),
    strong.http(
      "1.1-usage-sum",
      "`usage` of a finished batch is the sum over its answers, also of endpoints that name tokens otherwise",
      async ({ main, stories }) => {
        assert.deepEqual((await stories.clean()).final["usage"], {
          input_tokens: 7,
          input_tokens_details: { cached_tokens: 3 },
          output_tokens: 13,
          output_tokens_details: { reasoning_tokens: 6 },
          total_tokens: 20,
        });
        const body = { model: "test-model", input: "one two" };
        const responses = await main.run([line("r", "", { url: "/v1/responses", body })], {
          endpoint: "/v1/responses",
        });
        assert.deepEqual(responses["usage"], {
          input_tokens: 3,
          input_tokens_details: { cached_tokens: 1 },
          output_tokens: 5,
          output_tokens_details: { reasoning_tokens: 2 },
          total_tokens: 8,
        });
      },
    ),
    strong.http("1.1-usage-failed", "`usage` of a failed batch is zeros", async ({ stories }) => {
      assert.deepEqual((await stories.faulty()).final["usage"], NO_USAGE);
    }),
    strong.http("1.1-metadata-null", "`metadata` is null if none was sent", async ({ stories }) => {
      assert.equal((await stories.mixed()).final["metadata"], null);
    }),
    strong.http("1.1-metadata", "`metadata` comes back as it was sent", async ({ stories }) => {
      assert.deepEqual((await stories.clean()).final["metadata"], { kind: "clean", owner: "me" });
    }),
    weak.http("1.1-no-output-expiry", "`output_expires_after` is not echoed", async ({ main }) => {
      const expiry = { anchor: "created_at", seconds: 3600 };
      const { json } = await main.create("file-x", { output_expires_after: expiry });
      assert.equal("output_expires_after" in json, false);
    }),
    strong.http(
      "1.1-model-name",
      "A model that is called otherwise upstream keeps in `model` the name that the lines use",
      async ({ main, upstream }) => {
        const prompt = "by its public name";
        const body = chatBody(prompt, { model: ALIAS });
        const final = await main.run([line("by-alias", "", { body })]);
        assert.equal(final["model"], ALIAS);
        const sent = upstream.seen.find((request) => request.body.includes(prompt));
        assert.equal(JSON.parse(sent?.body ?? "{}").model, "test-model");
      },
    ),
  ],
};
