/** Section 1.1: the times of a batch. */
import assert from "node:assert/strict";
import { isSeconds } from "../expect.ts";
import { type Fact, strong } from "../fact.ts";
import type { Batch } from "../server.ts";
import { allBatches, KEYS } from "./batch-samples.ts";

const STAMPS = KEYS.filter((key) => key.endsWith("_at"));

const stamped = (batch: Batch) => STAMPS.filter((key) => batch[key] !== null);

export const batchTimes: readonly Fact[] = [
  strong.http("1-seconds", "Times are integer Unix seconds", async (context) => {
    for (const batch of await allBatches(context)) {
      for (const key of stamped(batch)) assert.ok(isSeconds(batch[key]), `${key} ${batch[key]}`);
    }
  }),
  strong.http(
    "1.1-stamps-created",
    "A new batch has only `created_at` and `expires_at` of all times",
    async ({ stories }) => {
      assert.deepEqual(stamped((await stories.clean()).created), ["created_at", "expires_at"]);
    },
  ),
  strong.http(
    "1.1-stamps-completed",
    "A completed batch has the times of the statuses that it went through, in order, and no others",
    async ({ stories }) => {
      const { final } = await stories.clean();
      const expected = [
        "created_at",
        "in_progress_at",
        "expires_at",
        "finalizing_at",
        "completed_at",
      ];
      assert.deepEqual(stamped(final), expected);
      const times = expected.filter((key) => key !== "expires_at").map((key) => Number(final[key]));
      assert.deepEqual(
        times,
        times.toSorted((a, b) => a - b),
      );
    },
  ),
  strong.http(
    "1.1-stamps-failed",
    "A failed batch has `failed_at`, and was never in progress",
    async ({ stories }) => {
      assert.deepEqual(stamped((await stories.faulty()).final), [
        "created_at",
        "expires_at",
        "failed_at",
      ]);
    },
  ),
  strong.http(
    "1.1-stamps-cancelled",
    "A cancelled batch keeps `in_progress_at` and `cancelling_at`, and its `finalizing_at` is null",
    async ({ stories }) => {
      assert.deepEqual(stamped((await stories.cancelledWhileRunning()).final), [
        "created_at",
        "in_progress_at",
        "expires_at",
        "cancelling_at",
        "cancelled_at",
      ]);
    },
  ),
  strong.http(
    "1.1-stamps-stay",
    "A time that is set is never changed again",
    async ({ main, stories }) => {
      const { cancelling, before, final } = await stories.cancelledWhileRunning();
      for (const earlier of [before, cancelling.json as Batch]) {
        for (const key of stamped(earlier)) assert.equal(final[key], earlier[key], key);
      }
      const again = await main.call("POST", `/v1/batches/${final.id}/cancel`);
      assert.deepEqual(again.json, final);
    },
  ),
  strong.http(
    "1.1-expires-at",
    "`expires_at` is `created_at` + 86400 from the first answer on, also when failed or cancelled",
    async (context) => {
      for (const batch of await allBatches(context)) {
        assert.equal(batch.expires_at, batch.created_at + 86_400);
      }
    },
  ),
];
