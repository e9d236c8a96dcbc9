/** What a configuration may say of an upstream: where it is, what it serves, and how much it can take. */
import { z } from "zod";
import { httpUrl, int, name, seconds, secret } from "./values.ts";

const ModelEntry = z.union(
  [
    z.string().min(1),
    z.strictObject({
      name: z.string().min(1),
      /** What the upstream calls it. Left out: the same name. */
      upstream_model: z.string().min(1).optional(),
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

/** Hours for batch lines; interactive requests are served at any time. */
const ScheduleEntry = z.strictObject({
  time_zone: z.string().refine(isTimeZone, "expected a time zone as Europe/Berlin").default("UTC"),
  windows: z
    .array(
      z.strictObject({
        /** On which the window begins. Left out: all. */
        days: z.array(z.enum(WEEKDAYS)).min(1).optional(),
        from: timeOfDay,
        /** Up to the next day when it is not after `from`. */
        to: timeOfDay,
      }),
    )
    .min(1),
  /** Batch lines in flight at once within a window. Left out: `max_concurrency`. */
  concurrency_inside: int(1, 100_000).optional(),
  /** And at any other time. */
  concurrency_outside: int(0, 100_000).default(0),
});

const AzureEntry = z.strictObject({
  /** Of the data plane, such as `2024-10-21`. Deployments go by the upstream names of the models. */
  api_version: z.string().regex(/^[\w.-]+$/, "expected a version as 2024-10-21"),
});

/** How bytes travel to the next host is agreed with it, not configured; what a proxy asks for stands in `proxy`. */
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

/** Names and values that fit into a header of HTTP. Who asks and how long the body is are not the operator's to say. */
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
    name,
    /** Up to and including `/v1`; the rest of the path comes from the endpoint. With `azure`: the resource. */
    base_url: httpUrl,
    api_key: secret.optional(),
    azure: AzureEntry.optional(),
    /** Public model names it serves; `"*"` is any other name, unchanged. */
    models: z.array(ModelEntry).min(1),
    /** Whether a model that the list of the upstream (`/models`) lacks is refused when a batch is validated. */
    check_models: z.boolean().default(false),
    /** Of two upstreams with a model, the one with the lower number is used until it is full or down. */
    priority: int(0, 1_000).default(0),
    /** Among upstreams of the same priority: how often it is chosen, against the others. */
    weight: int(1, 1_000).default(1),
    /** Requests in flight that it is never given less than, however slow it becomes. */
    min_concurrency: int(1, 100_000).default(1),
    /** Requests in flight at once, at the most; how many there are within that is found out by measuring. */
    max_concurrency: int(1, 100_000).default(64),
    /**
     * Of those, kept free of batch lines, for interactive requests. Left out: 1, and 0 where
     * `max_concurrency` is below 8.
     */
    interactive_reserve: int(0, 1_000).optional(),
    /**
     * Of the slots, and of the requests or tokens a minute, what lines of batches keep while interactive requests want
     * all of them. A higher share makes interactive requests wait longer under load; 1 puts them behind all lines but
     * for `interactive_reserve`, and 0 lets them stop batches altogether.
     */
    batch_share: z.number().min(0).max(1).default(0.25),
    /** Left out: what the upstream says in `x-ratelimit-limit-requests`, if it does. */
    requests_per_minute: int(1, 100_000_000).optional(),
    /** Left out: what the upstream says in `x-ratelimit-limit-tokens`, if it does. */
    tokens_per_minute: int(1, 100_000_000_000).optional(),
    schedule: ScheduleEntry.optional(),
    /** Sent with every request. */
    headers: headers.default({}),
    /** Fields of the body that every request gets, whatever its line says. */
    extra_body: bodyFields.default({}),
    /** Fields of the body that a request gets when its line does not say them. */
    defaults: bodyFields.default({}),
    /** An HTTP proxy on the way to it. */
    proxy: httpUrl.optional(),
    /** Certificates in PEM that are trusted besides the well-known ones: for a server with a private authority. */
    ca_file: z.string().min(1).optional(),
    connect_timeout_seconds: seconds.default(10),
    /** From the request to the first byte of its answer. Left out: `timeout_seconds`. */
    first_byte_timeout_seconds: seconds.optional(),
    /** Between two pieces of an answer. Left out: `timeout_seconds`. */
    idle_timeout_seconds: seconds.optional(),
    /** For one whole answer. A line that needs longer is tried again, a few times. */
    timeout_seconds: seconds.default(600),
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
export type ScheduleConfig = NonNullable<UpstreamConfig["schedule"]>;
