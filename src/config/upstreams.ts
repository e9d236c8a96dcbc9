/** The schema of an upstream: its address, its models, and its capacity. */
import { z } from "zod";
import { apiUrl, httpUrl, int, name, seconds, secret } from "./values.ts";

const ModelEntry = z.union(
  [
    z.string().min(1),
    z.strictObject({
      name: z.string().min(1).describe("The public name."),
      upstream_model: z
        .string()
        .min(1)
        .optional()
        .meta({ description: "What the upstream calls it.", left_out: "the same name" }),
    }),
  ],
  { error: "expected the name of a model, or { name, upstream_model }" },
);

export const WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"] as const;
export type Weekday = (typeof WEEKDAYS)[number];

const timeOfDay = z.string().regex(/^([01]\d|2[0-3]):[0-5]\d$|^24:00$/, "expected a time as 22:30");

const isTimeZone = (text: string) => {
  try {
    return new Intl.DateTimeFormat("en", { timeZone: text }).resolvedOptions().timeZone !== "";
  } catch {
    return false;
  }
};

const ScheduleEntry = z.strictObject({
  time_zone: z
    .string()
    .refine(isTimeZone, "expected a time zone as Europe/Berlin")
    .default("UTC")
    .meta({ description: "The clock that the hours are read from.", example: "Europe/Berlin" }),
  windows: z
    .array(
      z.strictObject({
        days: z
          .array(z.enum(WEEKDAYS))
          .min(1)
          .optional()
          .meta({ description: "Days on which the window begins.", left_out: "all" }),
        from: timeOfDay.meta({ description: "When the window begins.", example: '"20:00"' }),
        to: timeOfDay.meta({
          description:
            "When it ends: on the next day if `to` is not after `from`. Equal times make a whole day.",
          example: '"06:00"',
        }),
      }),
    )
    .min(1)
    .describe("Hours at which the upstream takes `concurrency_inside` batch lines."),
  concurrency_inside: int(1, 100_000).optional().meta({
    description: "Batch lines in flight at once within a window.",
    unit: "requests",
    left_out: "`max_concurrency`",
  }),
  concurrency_outside: int(0, 100_000)
    .default(0)
    .meta({ description: "Batch lines in flight at once at any other time.", unit: "requests" }),
});

const AzureEntry = z.strictObject({
  api_version: z
    .string()
    .regex(/^[\w.-]+$/, "expected a version as 2024-10-21")
    .meta({
      description:
        "The version of the data plane. One without a date (`preview`) takes everything to `/openai/v1`.",
      example: '"2024-10-21"',
    }),
});

/**
 * The headers that belong to the connection with the next host. No configuration may set them; credentials for a proxy
 * go into `proxy`.
 */
const OWN_HEADERS = new Set([
  "connection",
  "content-length",
  "expect",
  "host",
  "keep-alive",
  "proxy-authorization",
  "transfer-encoding",
  "upgrade",
]);

/** Names and values that fit into an HTTP header. The operator may not set the host or the length of the body. */
const headers = z.record(
  z
    .string()
    .regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, "expected the name of a header")
    .refine((header) => !OWN_HEADERS.has(header.toLowerCase()), "this header is batchd's own"),
  z.string().regex(/^[\x20-\x7e]*$/, "expected printable ASCII"),
);

const bodyFields = z
  .record(z.string().min(1), z.json())
  .refine((fields) => !("model" in fields), "the model is named under models");

export const UpstreamEntry = z
  .strictObject({
    name: name.describe(
      "Names the upstream in the log and in metrics. Every upstream needs a name of its own.",
    ),
    base_url: apiUrl.meta({
      description:
        "Address up to and including `/v1`; batchd appends the rest of the path. With `azure`: the resource.",
      example: "http://localhost:8000/v1",
    }),
    api_key: secret.optional().meta({
      description: "Sent as a bearer token, to Azure as `api-key`. Best as `${NAME}`.",
      left_out: "none",
      example: "${OPENAI_API_KEY}",
    }),
    azure: AzureEntry.optional().meta({
      description: "Makes the upstream a resource of Azure OpenAI.",
      left_out: "an OpenAI-style server",
    }),
    models: z.array(ModelEntry).min(1).meta({
      description:
        'Models it serves: a name, a name with what the upstream calls it, or `"*"` for any name that no upstream lists.',
      type_text: "list of names or `{ name, upstream_model }`",
      example: "[llama3.2, { name: chat, upstream_model: llama3.2 }]",
    }),
    check_models: z
      .boolean()
      .default(false)
      .describe(
        "Whether validation refuses models that the upstream does not list under `/models` (`model_not_found`). Without a list every name passes.",
      ),
    priority: int(0, 1_000)
      .default(0)
      .describe(
        "Among upstreams with the same model, a higher number is used only while the lower ones are full or down.",
      ),
    weight: int(1, 1_000)
      .default(1)
      .describe("Share of the requests among upstreams of the same priority."),
    min_concurrency: int(1, 100_000).default(1).meta({
      description:
        "Requests in flight that it is never given less than. Set to `max_concurrency`, it turns the learning off.",
      unit: "requests",
    }),
    max_concurrency: int(1, 100_000).default(64).meta({
      description:
        "Most requests in flight at once. How many there are below that is learned from finished work and from refusals.",
      unit: "requests",
    }),
    interactive_reserve: int(0, 1_000).optional().meta({
      description:
        "Part of `max_concurrency` that is kept free of batch lines, for interactive requests.",
      unit: "requests",
      left_out: "1; 0 if `max_concurrency` is below 8",
    }),
    batch_share: z
      .number()
      .min(0)
      .max(1)
      .default(0.25)
      .describe(
        "Fraction of the slots and of the rate limit that batch lines keep while interactive requests want all of it. A higher fraction makes interactive requests wait longer. `1` puts lines first; `0` lets interactive requests stop them.",
      ),
    requests_per_minute: int(1, 100_000_000).optional().meta({
      description:
        "Most requests in any minute. A lower `x-ratelimit-limit-requests` of an answer takes precedence.",
      unit: "requests a minute",
      left_out: "`x-ratelimit-limit-requests` of its answers, if they have it",
    }),
    tokens_per_minute: int(1, 100_000_000_000).optional().meta({
      description:
        "Most tokens in any minute, estimated before a request and corrected by its `usage`. A lower `x-ratelimit-limit-tokens` of an answer takes precedence.",
      unit: "tokens a minute",
      left_out: "`x-ratelimit-limit-tokens` of its answers, if they have it",
    }),
    schedule: ScheduleEntry.optional().meta({
      description: "Hours for batch lines. Interactive requests are served at any time.",
      left_out: "any time",
    }),
    headers: headers.default({}).meta({
      description: "Sent with every request. They replace batchd's own of the same name.",
      type_text: "mapping of names to texts",
      example: "{ x-team: search }",
    }),
    extra_body: bodyFields.default({}).meta({
      description:
        "Fields that the body of every request gets. They replace fields of the same name, in any case.",
      type_text: "mapping",
      example: "{ service_tier: flex }",
    }),
    defaults: bodyFields.default({}).meta({
      description:
        "Fields that the body of a request gets if it does not have them. A `null` in the body counts as having one.",
      type_text: "mapping",
      example: "{ temperature: 0 }",
    }),
    proxy: httpUrl.optional().meta({
      description: "Proxy on the way to the upstream, with `user:password@` if it asks for them.",
      left_out: "none",
      example: "http://proxy.internal:3128",
    }),
    ca_file: z.string().min(1).optional().meta({
      description:
        "PEM file with authorities that are trusted besides the well-known ones. It is read again when the server cannot be reached, and when the configuration is loaded again (SIGHUP).",
      left_out: "none",
      example: "/etc/ssl/company.pem",
    }),
    connect_timeout_seconds: seconds
      .default(10)
      .describe("Time for a connection, TLS and proxy included."),
    first_byte_timeout_seconds: seconds.optional().meta({
      description: "Time from the request to the beginning of its answer.",
      left_out: "`timeout_seconds`",
    }),
    keep_alive: z
      .boolean()
      .default(true)
      .describe(
        "Whether a connection carries one request after the other. `false` is for a server or a proxy that sometimes answers twice; it costs a connection for each request.",
      ),
    idle_timeout_seconds: seconds.optional().meta({
      description: "Time between two pieces of an answer.",
      left_out: "`timeout_seconds`",
    }),
    timeout_seconds: seconds
      .default(600)
      .describe(
        "Time for one whole answer. A line that needs longer is tried again, up to five times in all.",
      ),
  })
  .refine((upstream) => upstream.min_concurrency <= upstream.max_concurrency, {
    error: "min_concurrency is above max_concurrency",
    path: ["min_concurrency"],
  })
  .refine((upstream) => (upstream.interactive_reserve ?? 0) < upstream.max_concurrency, {
    error: "leave at least one of max_concurrency to batches",
    path: ["interactive_reserve"],
  });

export type UpstreamConfig = z.infer<typeof UpstreamEntry>;

/** Returns whether one of them serves the model: only `*` alone stands for other names. */
export const isServed = (upstreams: readonly UpstreamConfig[], model: string): boolean =>
  upstreams.some(({ models }) =>
    models.some((entry) => ["*", model].includes(typeof entry === "string" ? entry : entry.name)),
  );
export type ScheduleConfig = NonNullable<UpstreamConfig["schedule"]>;
