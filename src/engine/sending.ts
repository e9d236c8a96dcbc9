/**
 * The lines of a chunk that are under way: each is admitted, read, sent, and ends as a record in the journal. A chunk is
 * worked on by `chunk-runner.ts`; this is its hot path, so what is the same for all lines is made once.
 */
import { type Batch, NO_USAGE } from "../batch/batch.ts";
import { bodyOf, leavesModelOpen, type ParsedLine, textOf } from "../batch/line.ts";
import { type FinalOutcome, isSuccess, type Outcome, outcomeLine } from "../batch/outcome.ts";
import type { SplitLine } from "../batch/split.ts";
import type { MemoryBudget, Room } from "../resources/memory-budget.ts";
import type { ClaimedChunk } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import { endingOf, NO_SPAN } from "../telemetry/tracing.ts";
import type { RequestKind, Route, UpstreamRequest } from "../upstream/upstream.ts";
import type { ChunkTrace } from "./chunk-trace.ts";
import type { CommonFailures } from "./common-failures.ts";
import type { HandOut } from "./dispatch/route-queue.ts";
import type { Journal } from "./journal.ts";
import type { Run } from "./lease.ts";
import { parsedLine } from "./parsed-line.ts";

export interface ChunkRun {
  readonly claimed: ClaimedChunk;
  readonly route: Route;
  /** Of one of its models, as it may have moved since the file was read; null when nothing serves it any more. */
  readonly routeOf: (model: string) => Route | null;
  readonly run: Run;
  readonly handOut: HandOut;
  /** Called for each line that has its outcome. */
  readonly onRecorded: () => void;
}

interface SendingParts {
  readonly journal: Journal;
  readonly trace: ChunkTrace;
  readonly log: Log;
  readonly memory: MemoryBudget;
  readonly commonFailures: CommonFailures;
}

/** The lines of a chunk that are under way. Made for tens of thousands of lines a second: one promise each. */
export class Sending {
  readonly #chunkRun: ChunkRun;
  readonly #journal: Journal;
  readonly #trace: ChunkTrace;
  readonly #log: Log;
  readonly #commonFailures: CommonFailures;
  readonly #memory: MemoryBudget;
  /** What most of its lines ask for: a chunk may hold lines for several names of one route. */
  readonly #kind: RequestKind;
  #underWayCount = 0;
  #resolveSettled: (() => void) | null = null;
  recordedCount = 0;
  isAnyUnserved = false;
  failure: Error | null = null;

  constructor(chunkRun: ChunkRun, parts: SendingParts) {
    const { journal, trace, log, memory, commonFailures } = parts;
    this.#chunkRun = chunkRun;
    this.#journal = journal;
    this.#trace = trace;
    this.#log = log;
    this.#commonFailures = commonFailures;
    this.#memory = memory;
    const { batch, chunk } = chunkRun.claimed;
    this.#kind = { project: batch.project, endpoint: batch.endpoint, model: chunk.model };
  }

  /** Sends the lines that are not answered yet, each as soon as there is room. False when the run ends first. */
  async takeOn(lines: Iterable<SplitLine>, answered: ReadonlySet<number>): Promise<boolean> {
    const { handOut, run } = this.#chunkRun;
    for (const line of lines) {
      if (answered.has(line.number)) continue;
      if (run.stop.aborted) return false;
      for (let held = this.#held(); held !== null; held = this.#held()) await held;
      const admitted = handOut.admit();
      if (admitted !== true && !(await admitted)) return false;
      this.#underWayCount++;
      void this.#send(line);
    }
    return true;
  }

  /** A chunk of lines that every target refuses keeps them: they need no memory of their own, and no place. */
  #held(): Promise<void> | null {
    const { route, run } = this.#chunkRun;
    return run.stop.aborted ? null : route.held(this.#kind, run.stop);
  }

  /** Resolves once none is under way. */
  async settled(): Promise<void> {
    if (this.#underWayCount === 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#resolveSettled = resolve;
    await promise;
  }

  async #send(line: SplitLine): Promise<void> {
    const { claimed, route, routeOf, run } = this.#chunkRun;
    const span = this.#trace.startLine(line.number);
    const room = this.#memory.open("answers", claimed.batch.project);
    let hasPlace = true;
    let isKept = false;
    try {
      const read = line.bytes === null ? null : parsedLine(line.bytes);
      const { bytes, parsed, customId } = checked(
        line,
        read instanceof Promise ? await read : read,
      );
      const traceparent = this.#trace.traceparentOf(span);
      const request = requestOf({ bytes, parsed, traceparent, room }, claimed.batch);
      const ownRoute = routeOf(request.model);
      if (ownRoute !== route) {
        // Whatever it waits for now, it must not keep a place here.
        hasPlace = false;
        route.dismiss();
      }
      if (ownRoute === null) this.isAnyUnserved = true;
      const outcome = (await ownRoute?.send(request, run)) ?? INTERRUPTED;
      if (span !== NO_SPAN) span.end(endingOf(outcome));
      if (outcome.kind !== "interrupted") {
        isKept = true;
        await this.#record({ lineNumber: line.number, customId, room }, outcome);
      }
    } catch (cause) {
      this.failure ??= new Error("a line could not be sent", { cause });
    } finally {
      if (!isKept) room.release();
      if (hasPlace) route.dismiss();
      if (--this.#underWayCount === 0) this.#resolveSettled?.();
    }
  }

  /** The journal has the room of the answer from then on. */
  #record(
    { lineNumber, customId, room }: AnsweredLine,
    outcome: FinalOutcome,
  ): Promise<void> | null {
    const succeeded = isSuccess(outcome);
    this.#commonFailures.note(this.#chunkRun.claimed.batch, outcome);
    const row = outcomeLine(customId, outcome);
    const usage = succeeded && outcome.kind === "answered" ? outcome.usage : NO_USAGE;
    const { lease } = this.#chunkRun.claimed;
    this.recordedCount++;
    this.#chunkRun.onRecorded();
    const upstreamRequestId = "requestId" in outcome ? outcome.requestId : null;
    const { batchId: batch, chunkNumber: chunk } = lease;
    const { kind } = outcome;
    this.#log.debug({ batch, chunk, line: lineNumber, outcome: kind, upstreamRequestId }, RECORDED);
    return this.#journal.append({ lineNumber, succeeded, row, room }, usage);
  }
}

const RECORDED = "line.recorded";
const INTERRUPTED: Outcome = { kind: "interrupted" };

/** A line that intake accepted; that it cannot be read any more means that the blob changed. */
function checked(line: SplitLine, parsed: ParsedLine | null) {
  if (line.bytes === null || parsed === null || parsed.customId === null) {
    throw new Error(`line ${line.number} of the input file is not what was validated`);
  }
  const customId = line.bytes.subarray(parsed.customId.start, parsed.customId.end);
  return { bytes: line.bytes, parsed, customId };
}

interface AnsweredLine {
  readonly lineNumber: number;
  readonly customId: Buffer;
  readonly room: Room;
}

interface SentLine {
  readonly bytes: Buffer;
  readonly parsed: ParsedLine;
  readonly traceparent: string | null;
  readonly room: Room;
}

function requestOf({ bytes, parsed, traceparent, room }: SentLine, batch: Batch): UpstreamRequest {
  const isModelInBody = !leavesModelOpen(bytes, parsed);
  const model = isModelInBody ? textOf(bytes, parsed.model) : batch.defaultModel;
  return {
    project: batch.project,
    endpoint: batch.endpoint,
    model: model ?? "",
    isModelInBody,
    body: bodyOf(bytes, parsed),
    deadlineAtMs: batch.expiresAtMs,
    room,
    traceparent,
  };
}
