/** Sections 5 and 6: the life of a batch, and its early end. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parse } from "yaml";
import type { Context } from "../context.ts";
import { accepted, refused } from "../expect.ts";
import { type Check, type Section, strong, weak } from "../fact.ts";
import { chatBody, line } from "../lines.ts";
import type { Batch } from "../server.ts";

const OPENAPI = fileURLToPath(new URL("../../openapi.yaml", import.meta.url));
const STATUSES = [
  "cancelled",
  "cancelling",
  "completed",
  "expired",
  "failed",
  "finalizing",
  "in_progress",
  "validating",
];
const STOPPING = "test/engine/stopping.test.ts";

const refusesToCancel =
  (status: string, story: (context: Context) => Promise<{ final: Batch }>): Check =>
  async (context) => {
    const { final } = await story(context);
    const answer = await context.main.call("POST", `/v1/batches/${final.id}/cancel`);
    refused(answer, { status: 409, message: `Cannot cancel a batch with status '${status}'.` });
    assert.equal(answer.headers.get("x-should-retry"), "false");
  };

export const lifecycle: Section = {
  number: "5",
  title: "Lifecycle",
  facts: [
    strong.http("5-validating", "A new batch is `validating`", async ({ stories }) => {
      assert.equal((await stories.clean()).created.status, "validating");
    }),
    strong.http(
      "5-in-progress",
      "It is `in_progress` with the number of its lines as `total` while they run",
      async ({ stories }) => {
        const { before } = await stories.cancelledWhileRunning();
        assert.equal(before.status, "in_progress");
        assert.equal(before.request_counts.total, 3);
      },
    ),
    strong.http("5-counts-grow", "`completed` grows while lines run", async ({ stories }) => {
      const { before } = await stories.cancelledWhileRunning();
      assert.deepEqual(before.request_counts, { total: 3, completed: 1, failed: 0 });
    }),
    strong.http(
      "5-no-files-yet",
      "File ids come with the final status; a batch that runs has none",
      async ({ stories }) => {
        const { before, cancelling } = await stories.cancelledWhileRunning();
        for (const { output_file_id, error_file_id } of [before, cancelling.json as Batch]) {
          assert.deepEqual([output_file_id, error_file_id], [null, null]);
        }
      },
    ),
    strong.http(
      "5-completed",
      "It is `completed` when its files are there, with `completed` + `failed` = `total`",
      async ({ stories }) => {
        const { final } = await stories.mixed();
        assert.equal(final.status, "completed");
        assert.deepEqual(final.request_counts, { total: 4, completed: 2, failed: 2 });
      },
    ),
    strong.http(
      "5-failed",
      "It is `failed` when validation finds anything, and only then",
      async ({ stories }) => {
        assert.equal((await stories.faulty()).final.status, "failed");
        assert.equal((await stories.allBad()).final.status, "completed");
      },
    ),
    strong.http(
      "5-cancelled",
      "It is `cancelling` and then `cancelled` when it is cancelled",
      async ({ stories }) => {
        const { cancelling, final } = await stories.cancelledWhileRunning();
        assert.deepEqual([cancelling.json["status"], final.status], ["cancelling", "cancelled"]);
      },
    ),
    strong.http(
      "5-cancelled-counts",
      "Lines of a cancelled batch that never ran are not counted as failed",
      async ({ stories }) => {
        const { final } = await stories.cancelledWhileRunning();
        assert.deepEqual(final.request_counts, { total: 3, completed: 1, failed: 0 });
      },
    ),
    strong.test(
      "5-expired",
      "It is `expired` when `expires_at` passes; unfinished lines are not counted as failed",
      {
        file: STOPPING,
        title: "when the window ends, answers are delivered and the other lines say that it ended",
      },
    ),
    weak.test(
      "5-finalizing",
      "A batch that has all its answers is completed although `expires_at` passes",
      {
        file: "test/ports/store-stopping.ts",
        title: "a batch that has all its answers, or is cancelled, does not expire",
      },
    ),
    strong.test("5-moves", "No other moves between statuses are possible", {
      file: "test/batch/status.test.ts",
      title: "a batch moves only along the documented life",
    }),
    strong.http(
      "5-statuses",
      "There are eight statuses: the API document has no other, and a batch shows no other",
      async ({ stories }) => {
        const document = parse(readFileSync(OPENAPI, "utf8"));
        const { enum: listed } = document.components.schemas.Batch.properties.status;
        assert.deepEqual(listed.toSorted(), STATUSES);
        const { before, cancelling, final } = await stories.cancelledWhileRunning();
        for (const { status } of [before, cancelling.json as Batch, final]) {
          assert.ok(STATUSES.includes(status), status);
        }
      },
    ),
  ],
};

export const stopping: Section = {
  number: "6",
  title: "Cancel and expire",
  facts: [
    strong.http(
      "6-cancel-at-once",
      "Cancelling answers 200 with `cancelling` and `cancelling_at`",
      async ({ stories }) => {
        const { cancelling } = await stories.cancelledWhileRunning();
        const { status, cancelling_at } = accepted(cancelling);
        assert.equal(status, "cancelling");
        assert.ok(Number.isInteger(cancelling_at));
      },
    ),
    strong.http(
      "6-cancel-validating",
      "Cancelled while validating: `in_progress_at` null, counts 0/0/0, no files",
      async ({ stories }) => {
        const { before, cancelling, final } = await stories.cancelledWhileValidating();
        assert.equal(before.status, "validating");
        assert.equal(cancelling.status, 200);
        assert.equal(final.status, "cancelled");
        assert.equal(final["in_progress_at"], null);
        assert.deepEqual(final.request_counts, { total: 0, completed: 0, failed: 0 });
        assert.deepEqual([final.output_file_id, final.error_file_id], [null, null]);
      },
    ),
    strong.http(
      "6-cancel-running",
      "Cancelled while running: done lines are in the output file, the others in the error file",
      async ({ stories }) => {
        const { output, errors } = await stories.cancelledWhileRunning();
        assert.deepEqual(
          output.map(({ custom_id }) => custom_id),
          ["done"],
        );
        assert.deepEqual(
          errors.map(({ custom_id, error }) => [custom_id, error?.code]),
          [
            ["flying", "batch_cancelled"],
            ["waiting", "batch_cancelled"],
          ],
        );
      },
    ),
    strong.http(
      "6-cancel-nothing-done",
      "Cancelled before any answer: only an error file, counts `completed 0, failed 0`",
      async ({ stories }) => {
        const { final, errors } = await stories.cancelledBeforeAnyAnswer();
        assert.equal(final.output_file_id, null);
        assert.equal(errors.length, 2);
        assert.deepEqual(final.request_counts, { total: 2, completed: 0, failed: 0 });
      },
    ),
    strong.http(
      "6-cancel-again",
      "Cancelling again, while `cancelling` or when `cancelled`, answers 200",
      async ({ main, stories }) => {
        const created = await main.submit([line("a", "[[hang]]", { body: chatBody("[[hang]]") })]);
        await main.reached(created.id, ({ status }) => status === "in_progress");
        const cancel = () => main.call("POST", `/v1/batches/${created.id}/cancel`);
        const [first, second] = [await cancel(), await cancel()];
        assert.deepEqual([first.status, second.status], [200, 200]);
        const { final } = await stories.cancelledWhileRunning();
        const third = await main.call("POST", `/v1/batches/${final.id}/cancel`);
        assert.equal(accepted(third)["status"], "cancelled");
      },
    ),
    strong.http(
      "6-cancel-completed",
      "Cancelling a `completed` batch: 409 `Cannot cancel a batch with status 'completed'.`, and `x-should-retry: false`",
      refusesToCancel("completed", ({ stories }) => stories.clean()),
    ),
    strong.http(
      "6-cancel-failed",
      "Cancelling a `failed` batch: the same, of `failed`",
      refusesToCancel("failed", ({ stories }) => stories.faulty()),
    ),
    weak.test("6-cancel-expired", "Cancelling an `expired` batch: the same, of `expired`", {
      file: "test/http/batches.test.ts",
      title: "a batch that is %s",
    }),
    weak.test(
      "6-cancel-finalizing",
      "Cancelling while `finalizing` is taken, and the batch ends `cancelled` with what was written",
      {
        file: "test/ports/store-stopping.ts",
        title: "a batch cancelled while it is finalized ends cancelled, with what was written",
      },
    ),
    strong.http(
      "6-cancel-stops",
      "A line that was not sent when its batch was cancelled is never sent",
      async ({ stories, upstream }) => {
        await stories.cancelledWhileRunning();
        assert.equal(upstream.received.get("done"), 1);
        assert.equal(
          upstream.seen.some(({ body }) => body.includes('"never"') && body.includes('"waiting"')),
          false,
        );
      },
    ),
    strong.test(
      "6-expiry",
      "At the end of the window finished lines are in the output file, the others in the error file as `batch_expired`",
      {
        file: STOPPING,
        title: "when the window ends, answers are delivered and the other lines say that it ended",
      },
    ),
    strong.test(
      "6-expiry-overload",
      "A line that waits out an overload when the window ends is expired, not failed",
      {
        file: STOPPING,
        title: "a line that waits out an overload when the window ends is expired, not failed",
      },
    ),
  ],
};
