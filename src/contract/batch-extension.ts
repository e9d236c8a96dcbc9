/**
 * `x_batchd` of the object `batch`: what batchd tells of a batch beyond OpenAI's fields. It is nested because some
 * clients take every text at the top for one of OpenAI's.
 */
import { z } from "zod";
import { Decimal } from "./price.ts";
import { UnixSeconds } from "./unix-seconds.ts";
import { BatchCost } from "./usage.ts";

/** The lines of another batch that a batch can run again. */
export const SOURCE_LINES = ["failed", "succeeded", "all"] as const;
export type SourceLines = (typeof SOURCE_LINES)[number];

/** The most batches that `retried_by` lists. */
export const MAX_RETRIES_LISTED = 20;

/** The reasons for which a batch waits, as `waiting.reason` says them. */
export const WAITING_REASONS = [
  "no_room",
  "upstream_down",
  "refused_credentials",
  "out_of_quota",
  "wrong_address",
  "not_served",
  "outside_hours",
  "journal_not_writable",
  "storage_unavailable",
  "retrying",
  "source",
] as const;
export type WaitingReason = (typeof WAITING_REASONS)[number];

const BatchWaiting = z
  .object({
    reason: z
      .enum(WAITING_REASONS)
      .describe(
        "`no_room`: all slots are taken, the upstream is overloaded, a rate is used up, or other lines under way hold what is left of a quota of its project. `upstream_down`: none of its upstreams answers. `refused_credentials`, `out_of_quota`, `wrong_address`: they refuse the key, the account or the address that batchd is configured with. `not_served`: no upstream serves its model any more. `outside_hours`: its upstreams take batch lines at other hours. `journal_not_writable`: answers cannot be kept at the moment. `storage_unavailable`: its files or the database cannot be read or written at the moment, so that its input is not checked, its lines do not go out or its results are not written. `retrying`: its lines have failed in a way that another try may cure, or the server that had them is gone, and all of them wait for the next try. `source`: its input is made of lines of the batch in `from`, once that one has ended.",
      ),
    since: UnixSeconds,
    upstream_error: z
      .string()
      .nullable()
      .describe(
        "The problem at the upstream, shortened and without secrets; null when there is none.",
      ),
  })
  .meta({ id: "BatchWaiting" });

/** The reasons for which a batch sends no new lines until it is resumed. */
const PAUSE_REASONS = [
  "requested",
  "sample",
  "budget",
  "tokens_per_day",
  "cost_per_month",
] as const;
export type PauseReason = (typeof PAUSE_REASONS)[number];

const BatchPause = z
  .object({
    since: UnixSeconds,
    reason: z
      .enum(PAUSE_REASONS)
      .describe(
        "`requested`: a client paused it. `sample`: the lines of its sample have ended. `budget`: its next line might exceed its budget. `tokens_per_day`, `cost_per_month`: its next line might exceed this quota of its project; it goes on by itself on the next day (UTC), in the next month, or when the quota is changed.",
      ),
  })
  .meta({ id: "BatchPause" });

const BatchCommonFailure = z
  .object({
    lines: z.int().describe("The number of lines that have failed alike before any other result."),
    status_code: z.int().nullable().describe("The status of the answers; null without one."),
    code: z.string().nullable().describe("`error.code` of the answers, or of the rows."),
    message: z.string().nullable().describe("`error.message` of the first one, shortened."),
  })
  .meta({ id: "BatchCommonFailure" });

const BatchFailureGroup = z
  .object({
    status_code: z.int().nullable().describe("The status of the answers; null without one."),
    code: z
      .string()
      .nullable()
      .describe(
        "`error.code` of the answers, or of the rows. Without it and a status: all lines that no other group counts.",
      ),
    lines: z.int().describe("The number of lines."),
  })
  .meta({ id: "BatchFailureGroup" });

export const BatchExtension = z
  .object({
    priority: z.int(),
    default_model: z
      .string()
      .nullable()
      .describe("The model for lines whose `model` is empty; null as long as none is set."),
    eta: UnixSeconds.nullable().describe(
      "Unix seconds at which the last line will be answered, estimated from measurements; null when that is not known.",
    ),
    at_risk: z.boolean().describe("Whether the batch may not be done before `expires_at`."),
    queue_position: z
      .int()
      .nullable()
      .describe(
        "0 while its lines are being sent, else its place among the batches of its project that wait; null when it is final.",
      ),
    waiting: BatchWaiting.nullable().describe(
      "The reason why no line of the batch goes on now; null while one does.",
    ),
    common_failure: BatchCommonFailure.nullable().describe(
      "Set when its first 50 lines have all failed in the same way. A server that has not seen them fail, or was started again since, knows it only while no line has ended in another way, and has no `message`.",
    ),
    failures: z
      .array(BatchFailureGroup)
      .describe(
        "The failed lines so far by status and code, the largest group first: at most 20 groups.",
      ),
    paused: BatchPause.nullable().describe(
      "Set while no new line goes out until the batch is resumed. Its window goes on.",
    ),
    from: z
      .object({
        batch: z.string(),
        lines: z.enum(SOURCE_LINES),
        merge: z.boolean(),
        template: z.record(z.string(), z.unknown()).nullable(),
      })
      .nullable()
      .describe("The batch whose lines it runs; null for a batch with an input of its own."),
    retried_by: z
      .array(z.string())
      .describe(
        `The batches that run lines of it again, the newest first: at most ${MAX_RETRIES_LISTED}.`,
      ),
    sample: z
      .int()
      .nullable()
      .describe("The number of lines that run before the batch pauses; null without a sample."),
    budget: Decimal.nullable().describe("The most that the batch may cost; null for no limit."),
    deduplicated: z
      .int()
      .nullable()
      .describe(
        "The number of lines that are not sent because their body came before; null for a batch that sends every line, and until it is validated.",
      ),
    cost: BatchCost.nullable().describe("Null while the configuration has no price for its model."),
  })
  .meta({ id: "BatchExtension" });
