/** `batchd validate`: every fault of an input file, by the rules that the server validates with, without a server. */
import { ContentCheck, NOT_UTF8, noJsonl } from "../batch/content.ts";
import { FileCheck, fileTooLarge } from "../batch/file-check.ts";
import { parseLine } from "../batch/line.ts";
import type { LineFault } from "../batch/line-check.ts";
import { fileLimits } from "../config/file-limits.ts";
import { isServed } from "../config/upstreams.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import { printable } from "../printable.ts";
import { note, say, sayJson } from "../terminal/lines.ts";
import type { SplitLine } from "../text/split.ts";
import { count, lines } from "../words.ts";
import { linesIn, unpackedContent } from "./content.ts";
import { EXIT } from "./exit-codes.ts";
import { endpointOf, openInput } from "./input.ts";
import { configOf, type OfflineFlags, offline, readLines } from "./offline.ts";

export interface ValidateFlags extends OfflineFlags {
  readonly endpoint?: BatchEndpoint;
  readonly model?: string;
  readonly json?: boolean;
}

/** The endpoint whose rules count where the first line names none: its url is a fault then. */
const USUAL_ENDPOINT = "/v1/chat/completions";

export const validate = (file: string, flags: ValidateFlags): Promise<number> =>
  offline((signal) => validateFile(file, flags, signal));

async function validateFile(
  file: string,
  flags: ValidateFlags,
  signal: AbortSignal,
): Promise<number> {
  const config = configOf(flags);
  await using input = await openInput(file, signal);
  const endpoint = flags.endpoint ?? (await endpointOf(input.path)) ?? USUAL_ENDPOINT;
  const limits = fileLimits(config);
  const { upstreams } = config;
  const check = new FileCheck(endpoint, limits, {
    // Without upstreams, every name passes.
    routeKeyOf: (model) => (upstreams.length === 0 || isServed(upstreams, model) ? "served" : null),
    defaultModel: flags.model ?? config.default_model ?? null,
  });
  const content = new ContentCheck();
  let faultCount = 0;
  const report = (fault: LineFault, line: number | null) => {
    faultCount++;
    if (flags.json) sayJson({ line, ...fault });
    else
      say(printable(`${file}${line === null ? "" : `:${line}`}: ${fault.message} (${fault.code})`));
  };
  // A table, or JSON over several lines, has one fault: it is another kind of file.
  const hasOneFault = await isOtherKind(input.path, limits.maxLineBytes, signal);
  await readLines(input.path, limits.maxLineBytes, {
    signal,
    onPiece: (piece) => content.add(piece),
    onLine: (line) => {
      check.countLine();
      const fault = faultOf(line, check);
      if (fault !== null && !hasOneFault) report(fault, line.number);
    },
  });
  // A packed file must be within the limit before and after it is unpacked.
  if (Math.max(input.bytes, content.bytes) > limits.maxFileBytes)
    report(fileTooLarge(limits.maxFileBytes), null);
  const { isUtf8, formatHint } = content.report();
  if (!isUtf8) report(refusal(NOT_UTF8), null);
  // An empty file has a fault of its own.
  else if (formatHint !== null && check.lineCount > 0) report(refusal(noJsonl(formatHint)), null);
  const wrong = hasOneFault ? null : check.findFileFault();
  if (wrong !== null) report(wrong, null);
  const model = check.model === null ? "" : `, model ${printable(check.model)}`;
  const about = `${lines(check.lineCount)} for ${endpoint}${model}`;
  note(
    `${about}: ${faultCount === 0 ? "no faults" : `${count(faultCount)} ${faultCount === 1 ? "fault" : "faults"}`}`,
  );
  return faultCount === 0 ? EXIT.done : EXIT.failed;
}

const faultOf = ({ bytes }: SplitLine, check: FileCheck): LineFault | null =>
  bytes === null ? check.findTooLong() : check.findFault(bytes, parseLine(bytes));

/** The fault of a file that an upload refuses as a whole. */
const refusal = (message: string): LineFault => ({ code: "invalid_request", message, param: null });

/** Returns whether an upload refuses a file for its first line, and no line is a JSON object. */
async function isOtherKind(path: string, maxLineBytes: number, signal: AbortSignal) {
  const content = new ContentCheck();
  async function* checked() {
    for await (const piece of unpackedContent(path)) {
      content.add(piece);
      yield piece;
    }
  }
  let hasLines = false;
  for await (const { bytes } of linesIn(checked(), maxLineBytes)) {
    if (bytes === null || parseLine(bytes) !== null) return false;
    signal.throwIfAborted();
    hasLines = true;
  }
  return hasLines && content.report().formatHint !== null;
}
