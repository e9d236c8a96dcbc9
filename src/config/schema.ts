/**
 * The schema of a configuration: every key with its type, its default and the cost of raising it. Unknown keys are
 * refused everywhere. `config.ts` finds and reads the values.
 *
 * The descriptions are the text of `docs/configuration.md`. In `meta`, `left_out` explains a missing optional key
 * without a default. `unit` is the unit of a number, and `example` is a value as the file has it.
 */
import { z } from "zod";
import { EVENT_TYPES } from "../contract/event.ts";
import { DEFAULT_SCOPES, Scope } from "../contract/scope.ts";
import { completionWindowMs, DEFAULT_COMPLETION_WINDOW } from "../contract/window.ts";
import { LOG_LEVELS } from "../telemetry/log.ts";
import { DELIVERIES } from "./deliveries.ts";
import { LocationEntry } from "./locations.ts";
import { Prices } from "./prices.ts";
import { ProjectEntry } from "./projects.ts";
import { STORAGE } from "./storage.ts";
import { UpstreamEntry } from "./upstreams.ts";
import {
  bytes,
  databaseUrl,
  graceSeconds,
  host,
  httpUrl,
  int,
  leaseSeconds,
  listenHost,
  name,
  openHttpUrl,
  secret,
  written,
} from "./values.ts";

/** The protocols by their OpenTelemetry names. Every collector accepts both; protobuf is smaller. */
const TRACING_PROTOCOLS = ["http/protobuf", "http/json"] as const;

const PADDED_BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** A secret of the form `whsec_` and the key in base64. Any other text is the key itself. */
const signingSecret = z
  .string()
  .regex(/^\S(?:.*\S)?$/, written("text without spaces or line breaks around it"))
  .refine(
    (text) => !text.startsWith("whsec_") || isPaddedBase64(text.slice("whsec_".length)),
    "expected base64, with its padding, after whsec_",
  );

const isPaddedBase64 = (text: string) => text !== "" && PADDED_BASE64.test(text);

const completionWindow = z
  .string()
  .refine(
    (text) => completionWindowMs(text) !== null,
    "expected hours or days such as 72h or 7d, at most 30d",
  );

const KeyEntry = z.strictObject({
  name: name.describe("Names the key in the log. Every key needs a name of its own."),
  key: secret
    .refine(
      (key) => !key.startsWith("sha256:") || /^sha256:[0-9a-f]{64}$/i.test(key),
      "expected 64 hexadecimal digits after sha256:",
    )
    .meta({
      description:
        "The key itself, best as `${NAME}`, or `sha256:` and its SHA-256 in hexadecimal.",
      example: "${CI_KEY}",
    }),
  project: name
    .default("default")
    .describe("Keys of different projects do not see each other's files and batches."),
  scopes: z
    .array(Scope)
    .min(1)
    .default([...DEFAULT_SCOPES])
    .describe(
      "What the key may do. `read`: files, batches and models. `write`: create, cancel and delete them. `interactive`: requests that are answered at once. `admin`: keys and projects of the whole installation.",
    ),
});

const WebhookEntry = z.strictObject({
  name: name.describe("Names the endpoint in the log. Every endpoint needs a name of its own."),
  url: openHttpUrl.meta({ description: "Where events go.", example: "https://example.com/batchd" }),
  secret: signingSecret.meta({
    description:
      "Signs the events: `whsec_` and a key in base64, or any other text. Best as `${NAME}`.",
    example: "${WEBHOOK_SECRET}",
  }),
  events: z
    .array(z.enum(EVENT_TYPES))
    .min(1)
    .optional()
    .meta({ description: "The events to send.", left_out: "all" }),
  project: name
    .optional()
    .meta({ description: "Sends events about the batches of this project only.", left_out: "all" }),
});

const SERVER = z.strictObject({
  host: listenHost
    .default("127.0.0.1")
    .describe(
      "Address to listen on. `0.0.0.0` takes IPv4 from other machines, `::` takes IPv6 and IPv4; then set `auth.keys` as well.",
    ),
  port: int(0, 65_535)
    .default(8080)
    .describe("Port to listen on. `0` takes any free one; the line on standard output says which."),
  allowed_hosts: z
    .array(z.string().regex(/^[\w.*:[\]-]{1,255}$/, "a host name such as batchd.example.com"))
    .default([])
    .meta({
      description:
        "Names by which clients reach a server without keys, beside its addresses and `localhost`: the `Host` that a proxy in front of it passes on. It refuses all other names on `127.0.0.1`, and anywhere once a name is given, so that no page of another site reaches it ([why](operating.md#without-keys)). `*` allows every name.",
      example: "[batchd.example.com]",
      left_out: "none",
    }),
});

const LIMITS = z.strictObject({
  max_file_bytes: bytes(1, Number.MAX_SAFE_INTEGER).default(209_715_200).meta({
    description:
      "Largest input file. A file of another purpose may have 512 MiB in one piece, and no more than `max_upload_bytes`.",
    example: "1GB",
  }),
  max_upload_bytes: bytes(1, Number.MAX_SAFE_INTEGER)
    .default(8_589_934_592)
    .describe(
      "Largest file that comes in parts. While it is put together it takes twice its size on disk. `max_file_bytes` bounds batch input as well. The rows of lines that `dedupe` does not send have as many bytes in a batch at most.",
    ),
  max_requests_per_batch: int(1, 1_000_000_000).default(50_000).meta({
    description: "Most lines in a batch. Validation takes some 50 bytes of memory for each.",
    unit: "lines",
  }),
  max_embedding_inputs_per_batch: int(1, 1_000_000_000).default(50_000).meta({
    description: "Most texts to embed in a batch for `/v1/embeddings`, over all its lines.",
    unit: "texts",
  }),
  max_line_bytes: bytes(1_024, 268_435_456)
    .default(33_554_432)
    .describe("Longest line of an input file, and longest body of an interactive request."),
  max_answer_bytes: bytes(1_024, 268_435_456)
    .default(67_108_864)
    .describe("Longest answer to one line."),
  memory_bytes: bytes(16 * 1024 * 1024, Number.MAX_SAFE_INTEGER)
    .default(512 * 1024 * 1024)
    .describe(
      "Bodies and answers in memory at a time: half for requests of clients, a quarter for lines of batches, a quarter for their answers. Without room, clients get a 503, or a 429 if their own project holds most of it, and lines wait.",
    ),
  allow_mixed_models: z
    .boolean()
    .default(false)
    .describe("Whether the lines of one batch may name several models. OpenAI refuses that."),
  completion_windows: z
    .array(completionWindow)
    .refine((windows) => windows.includes(DEFAULT_COMPLETION_WINDOW), {
      error: `${DEFAULT_COMPLETION_WINDOW} must be among them: it is what clients ask for, and what they get that ask for nothing`,
    })
    .default([DEFAULT_COMPLETION_WINDOW])
    .meta({
      description:
        "What a batch may ask for as its `completion_window`: hours or days, at most `30d`, and `24h` among them. Lines wait for as long as the window lasts.",
      example: "[24h, 72h, 7d]",
    }),
});

const TRACING = z.strictObject({
  endpoint: httpUrl.meta({
    description: "Where traces go, by OTLP over HTTP.",
    example: "http://localhost:4318/v1/traces",
  }),
  protocol: z
    .enum(TRACING_PROTOCOLS, `expected ${TRACING_PROTOCOLS.join(" or ")}: gRPC is not spoken`)
    .default("http/protobuf")
    .describe("The encoding of traces. gRPC is not supported."),
});

const WEBHOOKS = z.strictObject({
  endpoints: z
    .array(WebhookEntry)
    .default([])
    .describe(
      "Each gets a signed event when a batch is final. [`webhooks.md`](webhooks.md) says what arrives and how to check it.",
    ),
  allow_private_hosts: z.array(host).default([]).meta({
    description: "Host names and addresses that webhooks may reach although they are not public.",
    example: "[alarms.internal]",
  }),
});

const ENGINE = z.strictObject({
  drain_grace_seconds: graceSeconds
    .default(20)
    .describe(
      "How long requests in flight may run on after SIGTERM. Keep it below the grace period of your supervisor.",
    ),
  stop_grace_seconds: graceSeconds
    .default(30)
    .describe("How long requests in flight may run on after a batch is cancelled or expires."),
  lease_seconds: leaseSeconds
    .default(30)
    .describe(
      "How long the work of a process that has died waits until another one takes it over. A process that is cut off from the database for longer loses its work to the others.",
    ),
});

const DATABASE = z.strictObject({
  pool_size: int(1, 1_000)
    .default(10)
    .describe(
      "Connections to PostgreSQL at most. Each costs the server some 10 MB; calls that find none free wait for 20 seconds.",
    ),
  tls: z.enum(["off", "encrypt", "verify"]).optional().meta({
    description:
      "Whether connections are encrypted, and whether the certificate of the server is checked. It comes before what `database_url` says.",
    left_out:
      "as `sslmode` in `database_url` says (`require` also checks, `no-verify` only encrypts), and not encrypted without it; `verify` with `ca_file`",
  }),
  ca_file: z.string().min(1).optional().meta({
    description:
      "File with the certificates, in PEM, that the certificate of the server is checked against. It is read for each connection.",
    left_out: "the usual authorities",
    example: "/etc/batchd/postgres-ca.pem",
  }),
  listen: z
    .boolean()
    .default(true)
    .describe(
      "Whether new and cancelled batches reach the other servers within a second (`LISTEN`), on one connection more. Otherwise they take up to ten. Turn it off behind a pooler in transaction mode.",
    ),
});

/** The whole file. `docs/configuration.md` is generated from the descriptions, defaults and bounds. */
export const ConfigFile = z.strictObject({
  server: SERVER.prefault({}).describe("Where batchd listens."),
  data_dir: z
    .string()
    .min(1)
    .default("./data")
    .describe(
      "Folder for the database, and for all files unless `storage` says otherwise. It is made if it is missing.",
    ),
  storage: STORAGE.prefault({}).describe(
    "Where files, results and journals are kept. [`storage.md`](storage.md) says what a bucket needs.",
  ),
  database_url: databaseUrl.optional().meta({
    description:
      "A PostgreSQL database, version 15 or later, in place of the SQLite file in `data_dir`. Take the password, or all of it, from the environment; signs such as `/`, `#` and `@` in the password are written as `%2F`, `%23` and `%40`.",
    left_out: "SQLite in `data_dir`",
    example: "postgres://batchd:${DATABASE_PASSWORD}@db.internal:5432/batchd",
  }),
  database: DATABASE.prefault({}).describe("How PostgreSQL is reached."),
  log_level: z
    .enum(LOG_LEVELS)
    .default("info")
    .describe(
      "Least severe events that the log has. [`observability.md`](observability.md) lists them.",
    ),
  limits: LIMITS.prefault({}).describe(
    "What clients may ask for, and what batchd keeps in memory. A changed limit holds for requests and batches that begin after it.",
  ),
  auth: z
    .strictObject({
      keys: z
        .array(KeyEntry)
        .min(1)
        .describe(
          "Keys of clients, sent as `Authorization: Bearer …` or `api-key: …`, or as the password of basic authentication. A key that is removed is refused from the next request on.",
        ),
    })
    .optional()
    .meta({ description: "Who may use the API.", left_out: "no key is asked for" }),
  projects: z
    .array(ProjectEntry)
    .default([])
    .describe(
      "Rules for projects. A project without an entry has no limits. [`projects.md`](projects.md#projects) says what happens beyond one.",
    ),
  audit: z
    .strictObject({
      file: z.string().min(1).optional().meta({
        description:
          "The file to append to. Each line is written whole, and the file is opened anew for each write, so it may be rotated at any time.",
        left_out: "standard error",
        example: "./audit.jsonl",
      }),
    })
    .optional()
    .meta({
      description:
        "One JSON line for who did what to which object. [`projects.md`](projects.md#audit-log) says what is in it.",
      left_out: "no audit log",
    }),
  locations: z
    .array(LocationEntry)
    .default([])
    .describe(
      "Places outside of batchd that batches read their input from and write their results to. [`locations.md`](locations.md) says what each kind needs, and what clients can reach.",
    ),
  upstreams: z
    .array(UpstreamEntry)
    .default([])
    .describe(
      "The model servers. [`upstreams.md`](upstreams.md) says how they share lines, and what happens when one is slow, down or refuses.",
    ),
  default_model: z.string().min(1).optional().meta({
    description:
      "The model of lines whose `model` is missing, null or empty, unless `x_batchd.default_model` of their batch names another one.",
    left_out: "such lines are refused",
    example: "llama3.2",
  }),
  prices: Prices.default([]).describe(
    "What models cost. A batch shows its cost, and `GET /v1/usage` sums up. A changed price counts for lines that go out after it.",
  ),
  tracing: TRACING.optional().meta({
    description:
      "OpenTelemetry traces. Where the file says nothing, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` does, and `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` or `OTEL_EXPORTER_OTLP_PROTOCOL` for the protocol.",
    left_out: "no traces",
  }),
  webhooks: WEBHOOKS.prefault({}).describe("Whom to tell when a batch is final."),
  deliveries: DELIVERIES.prefault({}).describe(
    "Results on their way to places outside. [`deliveries.md`](deliveries.md) says how clients ask for them.",
  ),
  engine: ENGINE.prefault({}).describe("How long running requests get when work has to stop."),
});

export type Config = z.infer<typeof ConfigFile>;
export type WebhooksConfig = Config["webhooks"];
export type WebhookConfig = WebhooksConfig["endpoints"][number];
export type KeyConfig = NonNullable<Config["auth"]>["keys"][number];
