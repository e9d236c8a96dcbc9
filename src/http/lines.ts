/** The routes that show the lines of a batch: page by page, and as examples of what fails. */
import type { BatchLines } from "../api/batch-lines.ts";
import type { BatchLine, LinePage, LineQuery } from "../batch/batch-line.ts";
import { CUSTOM_ID_MAX_LENGTH, LINE_PAGE, LINE_STATUSES } from "../contract/lines.ts";
import { RESULT_LIMITS } from "../contract/results.ts";
import type { Log } from "../telemetry/log.ts";
import { shortText } from "./body.ts";
import { type AppContext, scopedIdOf } from "./context.ts";
import { answerJson, JSON_TYPE, roomFor } from "./json.ts";
import {
  assertKnownParams,
  boundedIntegerParam,
  choiceParam,
  limitParam,
  textParam,
} from "./query.ts";
import type { Routes } from "./routes.ts";
import { answerStream } from "./stream-answer.ts";

export interface LineRoutesDeps {
  readonly batchLines: BatchLines;
  readonly log: Log;
}

export function mountLines(app: Routes, { batchLines, log }: LineRoutesDeps): void {
  app.get("/v1/batches/:id/lines", async (c) => {
    const query = lineQuery(c);
    using room = roomFor(c);
    await using reading = await batchLines.open(scopedIdOf(c), query, room);
    return await answerStream(c, {
      headers: JSON_TYPE,
      pieces: piecesOf(reading.page),
      log,
      about: { batch: scopedIdOf(c).id },
    });
  });

  app.get("/v1/batches/:id/failures", async (c) => {
    assertKnownParams(c, []);
    const groups = await batchLines.failures(scopedIdOf(c));
    return answerJson(c, {
      object: "list",
      data: groups.map(({ status, code, count, examples }) => ({
        status_code: status,
        code,
        lines: count,
        examples: examples.map(({ line, customId, message }) => ({
          line,
          custom_id: customId,
          message,
        })),
      })),
      has_more: false,
    });
  });
}

function lineQuery(c: AppContext): LineQuery {
  assertKnownParams(c, ["status", "custom_id", "after_line", "limit"]);
  return {
    status: choiceParam(c, "status", LINE_STATUSES),
    customId: shortText("custom_id", textParam(c, "custom_id"), CUSTOM_ID_MAX_LENGTH),
    afterLine: boundedIntegerParam(c, "after_line", RESULT_LIMITS.afterLine) ?? 0,
    limit: limitParam(c, LINE_PAGE),
  };
}

const NULL = Buffer.from("null");

/** Yields the answer in pieces: a line may be long, and its bytes are passed on as they were written. */
function* piecesOf({ lines, hasMore, lastLine }: LinePage): Generator<Buffer> {
  yield Buffer.from('{"object":"list","data":[');
  for (const [i, line] of lines.entries()) yield* piecesOfLine(line, i === 0 ? "" : ",");
  yield Buffer.from(`],"has_more":${hasMore},"last_line":${lastLine}}`);
}

function* piecesOfLine(line: BatchLine, separator: string): Generator<Buffer> {
  const { number, status, customId, request, response, error } = line;
  yield Buffer.from(`${separator}{"line":${number},"custom_id":`);
  yield customId ?? NULL;
  yield Buffer.from(`,"status":"${status}","request":`);
  yield request ?? NULL;
  yield Buffer.from(',"response":');
  yield response ?? NULL;
  yield Buffer.from(',"error":');
  yield error ?? NULL;
  yield Buffer.from("}");
}
