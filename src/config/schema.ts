/**
 * What a configuration may say: every key with its type, its default and what raising it costs. Unknown
 * keys are refused everywhere. How it is found and read: `config.ts`.
 */
import { isIP } from "node:net";
import { z } from "zod";
import { EVENT_TYPES } from "../contract/event.ts";
import { completionWindowMs, DEFAULT_COMPLETION_WINDOW } from "../contract/window.ts";
import { LOG_LEVELS } from "../log.ts";
import { UpstreamEntry } from "./upstreams.ts";
import { bytes, graceSeconds, httpUrl, int, name, secret } from "./values.ts";

/** As OpenTelemetry names them. Every collector takes both; protobuf is smaller. */
const TRACING_PROTOCOLS = ["http/protobuf", "http/json"] as const;

const PADDED_BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** `whsec_` and the key in base64; any other text is the key itself. */
const signingSecret = z
  .string()
  .regex(/^\S(?:.*\S)?$/, "expected text without spaces or line breaks around it")
  .refine(
    (text) => !text.startsWith("whsec_") || isPaddedBase64(text.slice("whsec_".length)),
    "expected base64, with its padding, after whsec_",
  );

const isPaddedBase64 = (text: string) => text !== "" && PADDED_BASE64.test(text);

const hasNoCredentials = (text: string) => {
  const url = URL.parse(text);
  return url === null || url.username + url.password === "";
};

const isHost = (text: string) =>
  isIP(text.replace(/^\[(.*)\]$/, "$1")) !== 0 ||
  (!/[:/?#@\\\s]/.test(text) && URL.canParse(`http://${text}`));

/** IPv6 with or without the brackets that it has in a URL. */
const host = z
  .string()
  .refine(isHost, "expected a host name or an address, without scheme, port and path");

const completionWindow = z
  .string()
  .refine(
    (text) => completionWindowMs(text) !== null,
    "expected hours or days such as 72h or 7d, at most 30d",
  );

const KeyEntry = z.strictObject({
  name,
  /** The key itself (best as `${NAME}`), or `sha256:` and its SHA-256 in hexadecimal. */
  key: secret.refine(
    (key) => !key.startsWith("sha256:") || /^sha256:[0-9a-f]{64}$/i.test(key),
    "expected 64 hexadecimal digits after sha256:",
  ),
  project: name.default("default"),
});

const WebhookEntry = z.strictObject({
  name,
  url: httpUrl.refine(hasNoCredentials, "leave user name and password out of it"),
  secret: signingSecret,
  /** Left out: all. */
  events: z.array(z.enum(EVENT_TYPES)).min(1).optional(),
  /** Left out: batches of all projects. */
  project: name.optional(),
});

export const ConfigFile = z.strictObject({
  server: z
    .strictObject({
      host: z.string().min(1).default("127.0.0.1"),
      port: int(0, 65_535).default(8080),
    })
    .prefault({}),
  /** SQLite file and blobs. */
  data_dir: z.string().min(1).default("./data"),
  log_level: z.enum(LOG_LEVELS).default("info"),
  limits: z
    .strictObject({
      max_file_bytes: bytes(1, Number.MAX_SAFE_INTEGER).default(209_715_200),
      /** Of a file that comes in parts. While it is put together it takes twice this much room. */
      max_upload_bytes: bytes(1, Number.MAX_SAFE_INTEGER).default(8_589_934_592),
      /** Costs some 50 bytes of memory a line while a file is validated. */
      max_requests_per_batch: int(1, 1_000_000_000).default(50_000),
      /** Texts to embed, summed over the requests of a batch for `/v1/embeddings`. */
      max_embedding_inputs_per_batch: int(1, 1_000_000_000).default(50_000),
      /** Longest input line. */
      max_line_bytes: bytes(1_024, 268_435_456).default(33_554_432),
      /** Longest answer to one line. */
      max_answer_bytes: bytes(1_024, 268_435_456).default(67_108_864),
      /** Of bodies and answers, in memory at a time: half for requests of clients, a quarter each for lines and their answers. */
      memory_bytes: bytes(16 * 1024 * 1024, Number.MAX_SAFE_INTEGER).default(512 * 1024 * 1024),
      /** Whether the lines of one batch may name several models. OpenAI refuses that, and so is the default. */
      allow_mixed_models: z.boolean().default(false),
      /** What a batch may ask for. `24h` is there for all clients; a longer one keeps lines waiting for longer. */
      completion_windows: z
        .array(completionWindow)
        .refine((windows) => windows.includes(DEFAULT_COMPLETION_WINDOW), {
          error: `${DEFAULT_COMPLETION_WINDOW} must be among them: it is what clients ask for, and what they get that ask for nothing`,
        })
        .default([DEFAULT_COMPLETION_WINDOW]),
    })
    .prefault({}),
  auth: z.strictObject({ keys: z.array(KeyEntry).min(1) }).optional(),
  upstreams: z.array(UpstreamEntry).default([]),
  /** What a line without a model asks for, unless its batch says otherwise. Left out: such a line is refused. */
  default_model: z.string().min(1).optional(),
  /** Left out: no traces. */
  tracing: z
    .strictObject({
      /** Where traces go, by OTLP over HTTP, such as `http://localhost:4318/v1/traces`. */
      endpoint: httpUrl,
      protocol: z
        .enum(TRACING_PROTOCOLS, `expected ${TRACING_PROTOCOLS.join(" or ")}: gRPC is not spoken`)
        .default("http/protobuf"),
    })
    .optional(),
  webhooks: z
    .strictObject({
      endpoints: z.array(WebhookEntry).default([]),
      /** Names and addresses that are delivered to although they are not public. */
      allow_private_hosts: z.array(host).default([]),
    })
    .prefault({}),
  engine: z
    .strictObject({
      /** How long requests in flight may run on after SIGTERM. Keep it under the supervisor's own grace period. */
      drain_grace_seconds: graceSeconds.default(20),
      /** How long requests in flight may run on after a batch is cancelled or expires. */
      stop_grace_seconds: graceSeconds.default(30),
    })
    .prefault({}),
});

export type Config = z.infer<typeof ConfigFile>;
export type WebhooksConfig = Config["webhooks"];
export type WebhookConfig = WebhooksConfig["endpoints"][number];
export type KeyConfig = NonNullable<Config["auth"]>["keys"][number];
