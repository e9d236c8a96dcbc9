/** The deliberate differences from OpenAI. Each row says what batchd does instead. */
import assert from "node:assert/strict";
import { accepted } from "../expect.ts";
import { differs, type Section, strong, weak } from "../fact.ts";
import { line } from "../lines.ts";
import { allBatches, EXTENSION } from "./batch-samples.ts";

const OPENAI_ALONE = [
  "openai-organization",
  "strict-transport-security",
  "access-control-allow-origin",
];

export const differences: Section = {
  number: "15",
  title: "Differences on purpose",
  facts: [
    differs(
      strong.http(
        "15-model-snapshot",
        "OpenAI shows the snapshot that a model name stands for; batchd shows the name, for only the model server knows more",
        async ({ stories }) => {
          assert.equal((await stories.clean()).final["model"], "test-model");
        },
      ),
    ),
    differs(
      strong.http(
        "15-extension",
        "OpenAI has no other keys; batchd adds one object, `x_batchd`, after the last of them",
        async (context) => {
          for (const batch of await allBatches(context)) {
            assert.equal(Object.keys(batch).at(-1), EXTENSION);
            assert.deepEqual(Object.keys(batch[EXTENSION] as object), [
              "priority",
              "default_model",
              "eta",
              "at_risk",
              "queue_position",
              "waiting",
              "common_failure",
              "failures",
              "paused",
              "from",
              "retried_by",
              "sample",
              "budget",
              "deduplicated",
              "cost",
            ]);
          }
        },
      ),
    ),
    differs(
      weak.http(
        "15-fine-tune-content",
        "OpenAI refuses a file for fine-tuning that is not JSONL; batchd looks into batch input alone",
        async ({ main }) => {
          accepted(await main.sendFile("notes", { purpose: "fine-tune" }));
        },
      ),
    ),
    differs(
      strong.http(
        "15-wrong-key-text",
        "OpenAI's refusal of a key leads to its website; batchd's to the operator of the server",
        async ({ keyed }) => {
          const { text } = await keyed.get("/v1/files", { authorization: "Bearer sk-wrong" });
          assert.match(text, /Ask the operator of this server for a key\./);
        },
      ),
    ),
    differs(
      strong.http(
        "15-organization",
        "OpenAI refuses an `OpenAI-Organization` that is not the key's with 401 `mismatched_organization`; batchd has no organizations",
        async ({ keyed }) => {
          accepted(await keyed.get("/v1/files", { "openai-organization": "org-of-somebody" }));
        },
      ),
    ),
    differs(
      strong.http(
        "15-rate-limit",
        "OpenAI answers 429 beyond a rate, and allows 2,000 batches an hour; batchd has rates only where the operator gives a project quotas",
        async ({ main }) => {
          const created = await Promise.all(
            Array.from({ length: 100 }, () => main.create("file-x")),
          );
          assert.ok(created.every(({ status }) => status === 200));
        },
      ),
    ),
    differs(
      strong.http(
        "15-token-limit",
        "OpenAI fails a batch beyond a number of enqueued tokens with `token_limit_exceeded`; batchd does so only where the operator gives a project that quota",
        async ({ main }) => {
          const batch = await main.run([line("long", "word ".repeat(200_000))]);
          assert.equal(batch.status, "completed");
        },
      ),
    ),
    differs(
      strong.http(
        "15-user-agent",
        "OpenAI's webhooks have the `User-Agent` `OpenAI/1.0 …`; batchd's have its own",
        async ({ receiver, stories }) => {
          await stories.clean();
          await receiver.reached(1);
          assert.match(receiver.seen[0]?.headers["user-agent"] ?? "", /^batchd\/\d+\.\d+\.\d+/);
        },
      ),
    ),
    differs(
      strong.http(
        "15-headers",
        "OpenAI sends `openai-organization`, `strict-transport-security` and `access-control-allow-origin`; batchd leaves them to what stands before it",
        async ({ main }) => {
          const { headers } = await main.get("/v1/files");
          assert.deepEqual(
            OPENAI_ALONE.filter((name) => headers.has(name)),
            [],
          );
        },
      ),
    ),
  ],
};
