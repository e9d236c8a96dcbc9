/** The schemas of `GET /v1/admin/upstreams`. They hold no address, key or header of a model server. */
import { z } from "zod";
import { WAITING_REASONS } from "./batch-extension.ts";
import { UnixSeconds } from "./unix-seconds.ts";

const count = z.int().min(0);
const seconds = z.number().nullable();

const Rate = z
  .object({
    limit: z.int().describe("The configured one or the one in its answers, whichever is lower."),
    used: count.describe("In the last 60 seconds."),
  })
  .nullable();

const Window = z.object({
  days: z.array(z.string()).nullable().describe("Null: every day."),
  from: z.string().meta({ example: "20:00" }),
  to: z.string().meta({ example: "06:00" }),
});

const Schedule = z.object({
  time_zone: z.string().meta({ example: "Europe/Berlin" }),
  windows: z.array(Window),
  open: z.boolean().describe("Whether lines of batches may go out now."),
  concurrency: count.describe("The lines that may be in flight now."),
  next: z
    .object({ at: UnixSeconds, concurrency: count })
    .nullable()
    .describe("When that number changes, and to which one."),
});

const Refusal = {
  reason: z.enum(WAITING_REASONS),
  message: z.string().nullable().describe("What the model server answered, in short."),
};

export const UpstreamObject = z
  .object({
    object: z.literal("upstream"),
    name: z.string(),
    models: z.array(z.string()).describe("As clients name them; `*` is any."),
    servers: count.describe("The servers of batchd that have it in their configuration."),
    circuit: z
      .enum(["closed", "open", "half_open"])
      .describe("`open`: nothing is sent, at some server at least. `half_open`: a probe is."),
    unavailable: z
      .object(Refusal)
      .nullable()
      .describe("Why it takes no lines of batches at all; null when it takes some."),
    held: z
      .array(z.object({ project: z.string(), model: z.string(), ...Refusal }))
      .describe("The projects and models of which it takes no lines."),
    max_concurrency: count.describe("As configured, for all servers together."),
    concurrency_limit: count.describe("What batchd allows itself at the moment."),
    in_flight: z.object({ batch: count, interactive: count }),
    waiting: count.describe("Requests that wait for a place."),
    attempts: z
      .object({
        answered: count,
        rate_limited: count.describe("Refused with the status 429."),
        overloaded: count.describe("Refused for another overload, such as 503 and 529."),
        failed: count.describe("No answer, a 5xx, or a refusal of the key or the address."),
      })
      .describe("Since each server was started."),
    latency_seconds: z
      .object({ p50: seconds, p95: seconds })
      .nullable()
      .describe(
        "Upper bounds for half and for 95% of the attempts; null beyond the largest bound. Null as a whole before the first attempt.",
      ),
    requests_per_minute: Rate,
    tokens_per_minute: Rate,
    schedule: Schedule.nullable().describe("Null: it takes lines at any time."),
  })
  .meta({ id: "Upstream" });
export type UpstreamObject = z.infer<typeof UpstreamObject>;

export const UpstreamList = z
  .object({ object: z.literal("list"), data: z.array(UpstreamObject) })
  .meta({ id: "UpstreamList" });
export type UpstreamList = z.infer<typeof UpstreamList>;
