/**
 * Makes the request of a line: what an upstream gets, out of the bytes of the input. It must never take a line that differs
 * from what was validated.
 */
import type { Batch } from "../../batch/batch.ts";
import {
  bodyOf,
  inputTokensOf,
  leavesModelOpen,
  type ParsedLine,
  textOf,
} from "../../batch/line.ts";
import { answerTokensOf } from "../../batch/token-estimate.ts";
import type { Room } from "../../resources/memory-budget.ts";
import type { SplitLine } from "../../text/split.ts";
import type { UpstreamRequest } from "../../upstream/request.ts";

/** Returns a line that intake accepted. A line that cannot be read any more means that the blob changed. */
export function checked(line: SplitLine, parsed: ParsedLine | null) {
  if (line.bytes === null || parsed === null || parsed.customId === null) {
    throw new Error(`line ${line.number} of the input file is not what was validated`);
  }
  const customId = line.bytes.subarray(parsed.customId.start, parsed.customId.end);
  return { bytes: line.bytes, parsed, customId };
}

interface SentLine {
  readonly bytes: Buffer;
  readonly parsed: ParsedLine;
  readonly traceparent: string | null;
  readonly room: Room;
  readonly deadlineAtMs: number;
}

export function requestOf(
  { bytes, parsed, traceparent, room, deadlineAtMs }: SentLine,
  batch: Batch,
): UpstreamRequest {
  const isModelInBody = !leavesModelOpen(bytes, parsed);
  const model = isModelInBody ? textOf(bytes, parsed.model) : batch.defaultModel;
  return {
    project: batch.project,
    endpoint: batch.endpoint,
    model: model ?? "",
    isModelInBody,
    body: bodyOf(bytes, parsed),
    inputTokens: inputTokensOf(parsed),
    answerTokens: answerTokensOf(parsed),
    deadlineAtMs,
    room,
    traceparent,
  };
}
