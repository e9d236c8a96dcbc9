/** Makes odd values in the place of a path, a header or a JSON value. */
import type { Dice } from "./fuzz-random.ts";

/** The ids of existing things, so that not every request ends in a 404. There are several, because some requests delete. */
export interface Known {
  readonly files: readonly string[];
  readonly batches: readonly string[];
  readonly upload: string;
  readonly part: string;
  /** The id of a key that sends no request. */
  readonly key: string;
}

const ODD_SEGMENTS = [
  "%00",
  "%ff",
  "%C3%28",
  "%",
  "%zz",
  "..",
  "%2e%2e%2f%2e%2e",
  "%2Fetc%2Fpasswd",
  "a%20b",
  "\xe9\xff",
  "__proto__",
  "constructor",
  "\u007f",
  "null",
  "-1",
  "0x10",
  "file-",
  "batch_",
  "batch_%F0%9F%98%80",
  ";drop table batches",
  "'--",
  "*",
  "x".repeat(5_000),
];

const ROUTES = [
  "/v1/files",
  "/v1/files/:file",
  "/v1/files/:file/content",
  "/v1/batches",
  "/v1/batches/:batch",
  "/v1/batches/:batch/cancel",
  "/v1/batches/:batch/pause",
  "/v1/batches/:batch/resume",
  "/v1/batches/:batch/deliveries",
  "/v1/batches/:batch/output",
  "/v1/batches/:batch/errors",
  "/v1/batches/:batch/lines",
  "/v1/batches/:batch/failures",
  "/v1/usage",
  "/v1/admin/keys",
  "/v1/admin/keys/:key",
  "/v1/admin/projects",
  "/v1/admin/upstreams",
  "/v1/admin/projects/:project",
  "/v1/uploads",
  "/v1/uploads/:upload/parts",
  "/v1/uploads/:upload/complete",
  "/v1/uploads/:upload/cancel",
  "/v1/models",
  "/v1/models/:model",
  "/health",
  "/ready",
  "/v1",
  "/",
];

const PREFIXES = ["", "", "", "", "/openai", "//openai//", "/openai/deployments/x", "/v1", "/."];

const QUERIES = [
  "limit=1",
  "limit=0",
  "limit=-1",
  "limit=99999999999999999999",
  "limit=1e3",
  "limit=",
  "limit=%",
  "limit=1&limit=2",
  "after=:file",
  "after=:batch",
  "after=%00",
  "after=",
  "order=asc",
  "order=sideways",
  "purpose=batch",
  "purpose=__proto__",
  "api-version=2024-10-21",
  "after_line=1",
  "after_line=-1",
  "after_line=99999999999",
  "after_line=9007199254740993",
  "after_line=1&after_line=2",
  "after_line=1.5",
  "limit=1000000",
  "wait=0",
  "wait=1",
  "wait=61",
  "wait=1e1",
  "status=failed",
  "status=waiting&limit=100",
  "status=sideways",
  "custom_id=a",
  `custom_id=${"c".repeat(600)}`,
  "custom_id=%F0%9F%98%80%00",
  "files=input",
  "files=output",
  "endpoint=/v1/chat/completions",
  "endpoint=/chat/completions&status=completed",
  "endpoint=/v1/nothing",
  "model=m",
  `model=${"m".repeat(2_000)}`,
  "created_after=1",
  "created_after=-1",
  "created_after=99999999999999",
  "metadata[a]=b",
  "metadata[__proto__]=x",
  "metadata[]=x&metadata=y",
  "metadata[a][b]=c",
  Array.from({ length: 500 }, (_, i) => `metadata[k${i}]=v`).join("&"),
  "group_by=model,day",
  "group_by=project,project",
  "group_by=%00",
  "from=2026-01-01&to=2026-01-31",
  "from=2026-02-30",
  "from=0000-00-00&to=9999-99-99",
  "project=other&format=csv",
  "format=xml",
  "%zz=%zz",
  "a=b&&&==",
  "x[]=1&x[y]=2",
  `q=${"y".repeat(3_000)}`,
];

function filled(template: string, known: Known, dice: Dice): string {
  const idOf: Readonly<Record<string, () => string>> = {
    file: () => dice.pick(known.files),
    batch: () => dice.pick(known.batches),
    upload: () => known.upload,
    key: () => known.key,
    project: () => "made-by-chance",
    model: () => "test-model",
  };
  return template.replaceAll(/:(file|batch|upload|model|key|project)/g, (_, kind: string) =>
    dice.chance(0.3) ? dice.pick(ODD_SEGMENTS) : (idOf[kind]?.() ?? ""),
  );
}

export function anyTarget(dice: Dice, known: Known): string {
  const route = dice.pick(ROUTES);
  const prefix = dice.pick(PREFIXES);
  const path = prefix.startsWith("/openai/") || prefix === "/openai" ? route.slice(3) : route;
  const end = dice.chance(0.1) ? dice.pick(["/", "//", `/${dice.pick(ODD_SEGMENTS)}`, "#x"]) : "";
  const query = dice.chance(0.3) ? `?${dice.pick(QUERIES)}` : "";
  return filled(prefix + path + end + query, known, dice) || "/";
}

const ODD_HEADERS: readonly ((dice: Dice) => string)[] = [
  () => "Authorization: Basic \xff\xfe",
  () => "Authorization:",
  () => "api-key: x",
  (dice) =>
    `Idempotency-Key: ${dice.pick(["a", "b", "", "\xe9", "k".repeat(256), "k".repeat(255)])}`,
  (dice) =>
    `Range: ${dice.pick(["bytes=0-", "bytes=5-1", "bytes=-0", "bytes=99999999-", "bytes=0-0,2-3", "lines=1-2", "bytes=--", "\xff"])}`,
  () => 'If-Range: "nonsense"',
  () => 'If-None-Match: "x"',
  (dice) =>
    `Accept: ${dice.pick(["text/html", "*/*;q=x", "", "application/binary", "text/event-stream"])}`,
  (dice) => `Last-Event-ID: ${dice.pick(["1", "-1", "x", "9".repeat(30), ""])}`,
  () => "Accept-Encoding: gzip, br, zstd",
  () => "Content-Encoding: gzip",
  (dice) => `Expect: ${dice.pick(["100-continue", "something-else"])}`,
  () => "Upgrade: websocket\r\nConnection: Upgrade",
  () => "X-Forwarded-For: 127.0.0.1, ,,",
  () => "Cookie: a=b; a=c; ;;",
  () => "X-Stainless-Retry-Count: NaN",
  () => "__proto__: x",
  (dice) => `X-Large: ${"z".repeat(dice.size(1, 30_000))}`,
  (dice) => Array.from({ length: dice.size(1, 300) }, (_, i) => `X-${i}: ${i}`).join("\r\n"),
  () => "X-Twice: 1\r\nX-Twice: 2",
  (dice) =>
    `X-Bytes: ${dice
      .bytes(20)
      .toString("latin1")
      .replaceAll(/[^\x20-\x7e\x80-\xff]/g, "")}`,
];

export const anyHeaders = (dice: Dice): string[] =>
  dice.chance(0.5)
    ? []
    : Array.from({ length: dice.size(1, 6) }, () => dice.pick(ODD_HEADERS)(dice));

export const CONTENT_TYPES = [
  "application/json",
  "application/json; charset=utf-16",
  "text/plain",
  "multipart/form-data",
  "multipart/form-data; boundary=",
  `multipart/form-data; boundary=${"b".repeat(200)}`,
  'multipart/form-data; boundary="odd\\"',
  "application/x-www-form-urlencoded",
  "",
  "\xff",
];

const ODD_VALUES: readonly ((dice: Dice) => unknown)[] = [
  () => null,
  () => true,
  () => 0,
  () => -1,
  () => 3600.5,
  () => 1e308,
  () => Number.MAX_SAFE_INTEGER,
  () => "",
  () => "\u0000",
  () => "\ud800",
  () => "\u{1f600}".repeat(600),
  () => [],
  () => ["24h"],
  () => ({}),
  () => ({ toString: "x", __proto__: null, constructor: { prototype: 1 } }),
  (dice) => "v".repeat(dice.size(1, 20_000)),
  (dice) => Object.fromEntries(Array.from({ length: dice.size(1, 40) }, (_, i) => [`k${i}`, "v"])),
  (dice) => nested(dice.size(1, 200)),
];

const nested = (depth: number): unknown =>
  Array.from({ length: depth }).reduce<unknown>((inner) => [inner], 1);

export const anyValue = (dice: Dice): unknown => dice.pick(ODD_VALUES)(dice);

/** Changes, removes and adds some keys. */
export function spoilt(
  value: Readonly<Record<string, unknown>>,
  dice: Dice,
): Record<string, unknown> {
  const entries = Object.entries(value).flatMap(([key, item]): [string, unknown][] => {
    if (dice.chance(0.1)) return [];
    return [[dice.chance(0.05) ? `${key} ` : key, dice.chance(0.25) ? anyValue(dice) : item]];
  });
  if (dice.chance(0.15))
    entries.push([dice.pick(["foo", "", "__proto__", "\ud83d"]), anyValue(dice)]);
  return Object.fromEntries(entries);
}

/** Numbers and texts at the edges of budgets, samples and priorities. */
const EDGES = [
  "0",
  "0.00",
  "1e3",
  "-1",
  "+1",
  ".5",
  "5.",
  "9".repeat(100),
  `0.${"0".repeat(99)}1`,
  "NaN",
  0,
  1,
  1_000,
  1_001,
  1.5,
  -1,
  10,
  11,
  -10,
  1e21,
];

const TASK = { endpoint: "/v1/chat/completions", completion_window: "24h" };

export const goodBodies = (known: Known, dice: Dice): readonly Record<string, unknown>[] => [
  {
    input_file_id: dice.pick(known.files),
    ...TASK,
    metadata: { a: "b" },
    output_expires_after: { anchor: "created_at", seconds: 3_600 },
  },
  {
    input_file_id: dice.pick(known.files),
    ...TASK,
    x_batchd: spoilt({ sample: 1, budget: "5.00", priority: 3, default_model: "m" }, dice),
  },
  {
    input_file_id: dice.pick(known.files),
    ...TASK,
    x_batchd: { [dice.pick(["sample", "budget", "priority"])]: dice.pick(EDGES) },
  },
  {
    ...TASK,
    x_batchd: {
      from: spoilt({ batch: dice.pick(known.batches), lines: "failed", merge: true }, dice),
    },
  },
  { ...TASK, x_batchd: { from: { batch: dice.pick(known.batches), lines: "all" } } },
  { budget: dice.pick(EDGES) },
  { budget: "7.50", priority: dice.pick(EDGES), metadata: { team: "search" } },
  {
    name: "made by chance",
    project: "made-by-chance",
    scopes: ["read"],
    expires_at: 4_000_000_000,
  },
  {
    name: "made-by-chance",
    weight: 2,
    models: ["*"],
    quotas: spoilt({ files: 1, cost_per_month: "1.00", requests_per_minute: 5 }, dice),
    files_expire_after: 3_600,
  },
  { filename: "f.jsonl", purpose: "batch", bytes: 10, mime_type: "text/jsonl" },
  { part_ids: [known.part], md5: null },
];
