/** Makes odd values in the place of a path, a header or a JSON value. */
import type { Dice } from "./fuzz-random.ts";

/** The ids of existing things, so that not every request ends in a 404. */
export interface Known {
  readonly file: string;
  readonly batch: string;
  readonly upload: string;
  readonly part: string;
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
  "%zz=%zz",
  "a=b&&&==",
  "x[]=1&x[y]=2",
  `q=${"y".repeat(3_000)}`,
];

function filled(template: string, known: Known, dice: Dice): string {
  return template.replaceAll(/:(file|batch|upload|model)/g, (_, kind: keyof Known | "model") => {
    if (dice.chance(0.3)) return dice.pick(ODD_SEGMENTS);
    return kind === "model" ? "test-model" : known[kind];
  });
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
  () => "Authorization: Bearer sk-anything",
  () => "Authorization: Basic \xff\xfe",
  () => "Authorization:",
  () => "api-key: x",
  (dice) =>
    `Idempotency-Key: ${dice.pick(["a", "b", "", "\xe9", "k".repeat(256), "k".repeat(255)])}`,
  (dice) =>
    `Range: ${dice.pick(["bytes=0-", "bytes=5-1", "bytes=-0", "bytes=99999999-", "bytes=0-0,2-3", "lines=1-2", "bytes=--", "\xff"])}`,
  () => 'If-Range: "nonsense"',
  () => 'If-None-Match: "x"',
  (dice) => `Accept: ${dice.pick(["text/html", "*/*;q=x", "", "application/binary"])}`,
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

export const goodBodies = (known: Known): readonly Record<string, unknown>[] => [
  {
    input_file_id: known.file,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { a: "b" },
    output_expires_after: { anchor: "created_at", seconds: 3_600 },
  },
  { filename: "f.jsonl", purpose: "batch", bytes: 10, mime_type: "text/jsonl" },
  { part_ids: [known.part], md5: null },
];
