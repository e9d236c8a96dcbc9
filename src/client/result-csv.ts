/** Turns result lines into CSV: the parts of an answer that a spreadsheet can show. JSON lines have all of it. */
import { Transform } from "node:stream";
import { LineSplitter, type SplitLine } from "../batch/split.ts";
import { csvLine } from "../contract/csv.ts";
import { CommandFailure } from "./failure.ts";

const COLUMNS = [
  ...["custom_id", "status_code", "answer", "error_code", "error_message"],
  ...["input_tokens", "output_tokens"],
];

/** No answer is longer, and a longer text does not fit into memory as a string. */
const LINE_MAX_BYTES = 256 * 1024 * 1024;

export function toCsv(): Transform {
  const splitter = new LineSplitter(LINE_MAX_BYTES, { start: 0, firstLine: 1 });
  const rows = (lines: Iterable<SplitLine>) => Array.from(lines, rowOf).join("");
  let head = csvLine(COLUMNS);
  const withHead = (text: string) => {
    const whole = head + text;
    head = "";
    return whole;
  };
  return new Transform({
    transform: (piece: Buffer, _encoding, done) =>
      answer(() => withHead(rows(splitter.push(piece))), done),
    flush: (done) => answer(() => withHead(rows(splitter.end())), done),
  });
}

type Done = (error?: Error | null, text?: string) => void;

function answer(make: () => string, done: Done): void {
  let text: string;
  try {
    text = make();
  } catch (error) {
    done(error as Error);
    return;
  }
  done(null, text);
}

/** The parts of a result line that the columns need. Any of them may be missing. */
interface ResultLine {
  readonly custom_id?: string;
  readonly response?: { readonly status_code?: number; readonly body?: unknown } | null;
  readonly error?: Fault | null;
}
interface Fault {
  readonly code?: string | null;
  readonly message?: string | null;
}
interface Tokens {
  readonly prompt_tokens?: number;
  readonly completion_tokens?: number;
  readonly input_tokens?: number;
  readonly output_tokens?: number;
}
interface Body {
  readonly usage?: Tokens | null;
  readonly error?: Fault | null;
  readonly choices?: readonly { readonly message?: Message; readonly text?: string }[];
  readonly output?: readonly { readonly content?: readonly { readonly text?: string }[] }[];
  readonly data?: unknown;
  readonly results?: unknown;
}
interface Message {
  readonly content?: string | null;
  readonly tool_calls?: unknown;
}

function rowOf({ bytes, number }: SplitLine): string {
  const line = parsed(bytes, number);
  const body = (line.response?.body ?? {}) as Body;
  const fault = line.error ?? body.error ?? null;
  const { usage } = body;
  return csvLine([
    ...[line.custom_id, line.response?.status_code, fault === null ? answerIn(body) : null],
    ...[fault?.code, fault?.message],
    usage?.prompt_tokens ?? usage?.input_tokens,
    usage?.completion_tokens ?? usage?.output_tokens,
  ]);
}

function parsed(bytes: Buffer | null, number: number): ResultLine {
  try {
    if (bytes !== null) return JSON.parse(bytes.toString()) as ResultLine;
  } catch {
    // The message below says which line it is.
  }
  throw new CommandFailure(
    `line ${number} of the results is not JSON; --format jsonl has it as it is`,
  );
}

/** Returns the text of an answer; JSON for an answer that is no text. */
function answerIn(body: Body): string {
  const message = body.choices?.[0]?.message;
  const text =
    message?.content ??
    body.choices?.[0]?.text ??
    body.output
      ?.flatMap(({ content }) => content ?? [])
      .map(({ text }) => text ?? "")
      .join("");
  if (typeof text === "string" && text !== "") return text;
  return JSON.stringify(message?.tool_calls ?? body.data ?? body.results ?? body);
}
