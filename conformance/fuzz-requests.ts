/** Makes requests for the fuzzer, as bytes: good ones, odd ones, and damaged ones. */
import type { Dice } from "./fuzz-random.ts";
import {
  anyHeaders,
  anyTarget,
  anyValue,
  CONTENT_TYPES,
  goodBodies,
  type Known,
  spoilt,
} from "./fuzz-values.ts";

export interface FuzzRequest {
  readonly bytes: Buffer;
  /** It is true for complete HTTP, which the server must answer. */
  readonly isWhole: boolean;
  readonly isHead: boolean;
}

/** The key of most requests, with every scope. */
export const FUZZ_KEY = "key-of-the-fuzzer";

const latin1 = (text: string) => Buffer.from(text, "latin1");

const METHODS = [
  "GET",
  "GET",
  "GET",
  "POST",
  "POST",
  "POST",
  "POST",
  "DELETE",
  "PUT",
  "PATCH",
  "HEAD",
  "OPTIONS",
  "TRACE",
  "PROPFIND",
];

const BOUNDARY = "fuzz-boundary";
const LINE =
  '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}\n';

interface Body {
  readonly bytes: Buffer;
  readonly type: string;
}

function jsonBody(dice: Dice, known: Known): Body {
  const good = dice.pick(goodBodies(known, dice));
  const value = dice.chance(0.2) ? good : dice.chance(0.8) ? spoilt(good, dice) : anyValue(dice);
  const text = Buffer.from(JSON.stringify(value) ?? "");
  return { bytes: dice.chance(0.2) ? mutated(text, dice) : text, type: "application/json" };
}

const TEXTS: readonly ((dice: Dice) => Buffer)[] = [
  () => latin1("{"),
  () => latin1(""),
  () => latin1("\xef\xbb\xbf{}"),
  () => latin1("[".repeat(50_000)),
  () => latin1('{"a":'.repeat(5_000)),
  () => latin1('{"endpoint":"\\ud800"}'),
  () => latin1('{"input_file_id":"a","input_file_id":1}'),
  () => latin1("NaN"),
  () => latin1("1e999999"),
  () => latin1("{'single': 1}"),
  () => Buffer.from('{"endpoint":"x"}', "utf16le"),
  (dice) => latin1(`{"foo":"${"x".repeat(dice.size(1, 1_200_000))}"}`),
  (dice) => dice.bytes(dice.size(0, 3_000)),
];

const FIELD_NAMES = [
  "file",
  "data",
  "purpose",
  "expires_after[anchor]",
  "expires_after[seconds]",
  "xyz",
  "",
  "__proto__",
];
const FIELD_VALUES = [
  "batch",
  "user_data",
  "created_at",
  "3600",
  "1",
  "nonsense",
  "",
  "\xff",
  "x".repeat(3_000),
];
const FILE_NAMES = ["f.jsonl", "", "../../x", "\xff", 'a"b', "n".repeat(500)];
const FILE_CONTENTS = [
  LINE,
  LINE.repeat(50),
  "",
  "notes",
  "\xff\xfe",
  "\u0000",
  "{}\n{",
  " ".repeat(2_000),
];

function part(dice: Dice, name: string): string {
  const isFile = name === "file" || name === "data" ? dice.chance(0.95) : dice.chance(0.05);
  const filename = isFile ? `; filename="${dice.pick(FILE_NAMES)}"` : "";
  const header = dice.chance(0.1)
    ? `${dice.pick(["Content-Type: ", "Content-Transfer-Encoding: base64", "no colon here", `X: ${"h".repeat(20_000)}`])}\r\n`
    : "";
  const content = isFile ? dice.pick(FILE_CONTENTS) : dice.pick(FIELD_VALUES);
  return `Content-Disposition: form-data; name="${name}"${filename}\r\n${header}\r\n${content}`;
}

function formBody(dice: Dice): Body {
  const good = dice.chance(0.5) ? ["purpose", "file"] : ["file", "purpose"];
  const names = dice.chance(0.4)
    ? Array.from({ length: dice.size(0, 40) + 1 }, () => dice.pick(FIELD_NAMES))
    : dice.chance(0.5)
      ? good
      : ["data"];
  const parts = names.map((name) =>
    name === "purpose" && dice.chance(0.7)
      ? `Content-Disposition: form-data; name="purpose"\r\n\r\nbatch`
      : part(dice, name),
  );
  const end = dice.chance(0.85)
    ? `--${BOUNDARY}--\r\n`
    : dice.pick(["", `--${BOUNDARY}`, "--", "\r\n"]);
  const text = latin1(`${parts.map((each) => `--${BOUNDARY}\r\n${each}\r\n`).join("")}${end}`);
  return {
    bytes: dice.chance(0.15) ? mutated(text, dice) : text,
    type: `multipart/form-data; boundary=${BOUNDARY}`,
  };
}

function anyBody(dice: Dice, known: Known): Body {
  const turn = dice.next();
  const body =
    turn < 0.45
      ? jsonBody(dice, known)
      : turn < 0.85
        ? formBody(dice)
        : { bytes: dice.pick(TEXTS)(dice), type: dice.pick(CONTENT_TYPES) };
  return dice.chance(0.1) ? { ...body, type: dice.pick(CONTENT_TYPES) } : body;
}

function inChunks(bytes: Buffer, dice: Dice): Buffer {
  const pieces: Buffer[] = [];
  for (let at = 0; at < bytes.length; ) {
    const piece = bytes.subarray(at, at + dice.size(1, 5_000) + 200);
    const extension = dice.chance(0.05) ? ";odd=extension" : "";
    pieces.push(latin1(`${piece.length.toString(16)}${extension}\r\n`), piece, latin1("\r\n"));
    at += piece.length;
  }
  return Buffer.concat([...pieces, latin1("0\r\n\r\n")]);
}

function wellFormed(dice: Dice, known: Known): FuzzRequest {
  const method = dice.pick(METHODS);
  const hasBody = method === "POST" ? dice.chance(0.9) : dice.chance(0.15);
  const head = [`${method} ${anyTarget(dice, known).replaceAll(" ", "%20")} HTTP/1.1`];
  head.push("Host: localhost", "Connection: close", ...anyHeaders(dice));
  if (dice.chance(0.95)) head.push(`Authorization: Bearer ${FUZZ_KEY}`);
  let sent: Buffer = Buffer.alloc(0);
  if (hasBody) {
    const { bytes, type } = anyBody(dice, known);
    const isChunked = dice.chance(0.2);
    sent = isChunked ? inChunks(bytes, dice) : bytes;
    head.push(`Content-Type: ${type}`);
    head.push(isChunked ? "Transfer-Encoding: chunked" : `Content-Length: ${bytes.length}`);
  }
  const bytes = Buffer.concat([latin1(`${head.join("\r\n")}\r\n\r\n`), sent]);
  return { bytes, isWhole: true, isHead: method === "HEAD" };
}

const FRAMING_FAULTS: readonly ((text: string) => string)[] = [
  (text) => text.replace("HTTP/1.1", "HTTP/9.9"),
  (text) => text.replace("HTTP/1.1", "HTTP/1.0"),
  (text) => text.replace("Host: localhost\r\n", ""),
  (text) => text.replace("Host: localhost", "Host: [::bad"),
  (text) => text.replace("Host: localhost", "Host: a\r\nHost: b"),
  (text) => text.replace(/Content-Length: \d+/, "Content-Length: -1"),
  (text) => text.replace(/Content-Length: (\d+)/, "Content-Length: $1\r\nContent-Length: 7"),
  (text) =>
    text.replace(/Content-Length: (\d+)/, "Content-Length: $1\r\nTransfer-Encoding: chunked"),
  (text) => text.replace(/Content-Length: (\d+)/, "Content-Length: $19"),
  (text) => text.replace(/Content-Length: \d+/, "Content-Length: 3"),
  (text) => text.replace("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked"),
  (text) => text.replace(/^\w+/, "CONNECT"),
  (text) => text.replace(/^\w+/, "get"),
  (text) => text.replace(/^\w+/, ""),
  (text) => text.replace("\r\n", "\n"),
  (text) => text.replace(" /", " http://elsewhere.example/"),
  (text) => text.replace(" /", " //[/"),
  (text) => `\r\n\r\n${text}`,
  (text) => text + text,
];

/** Removes, inserts and changes bytes. */
function mutated(bytes: Buffer, dice: Dice): Buffer {
  const at = dice.below(bytes.length + 1);
  const length = dice.size(1, 60);
  switch (dice.below(4)) {
    case 0:
      return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + length)]);
    case 1:
      return Buffer.concat([bytes.subarray(0, at), dice.bytes(length), bytes.subarray(at)]);
    case 2:
      return Buffer.concat([
        bytes.subarray(0, at),
        dice.bytes(length),
        bytes.subarray(at + length),
      ]);
    default:
      return Buffer.concat([bytes, bytes.subarray(at)]);
  }
}

export function anyRequest(dice: Dice, known: Known): FuzzRequest {
  const request = wellFormed(dice, known);
  const turn = dice.next();
  if (turn < 0.7) return request;
  const { bytes } = request;
  const isHead = request.isHead;
  if (turn < 0.8) {
    return { bytes: bytes.subarray(0, dice.below(bytes.length)), isWhole: false, isHead };
  }
  if (turn < 0.9) return { bytes: mutated(bytes, dice), isWhole: false, isHead };
  const text = dice.pick(FRAMING_FAULTS)(bytes.toString("latin1"));
  return { bytes: latin1(text), isWhole: false, isHead };
}
