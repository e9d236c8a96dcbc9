import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { NO_USAGE } from "../../src/batch/batch.ts";
import {
  BATCH_CANCELLED,
  BATCH_EXPIRED,
  type FinalOutcome,
  isSuccess,
  lineNumberOf,
  noAnswerLine,
  onOneLine,
  outcomeLine,
} from "../../src/batch/outcome.ts";
import { isReadBack, jsonText, stringText } from "../support/json-arbitraries.ts";

const LINE_NUMBER = 0x1f;

/** The whole row, whatever pieces it comes in. */
const lineFor = (customId: Buffer, outcome: FinalOutcome) =>
  Buffer.concat(outcomeLine({ lineNumber: LINE_NUMBER, customId }, outcome));

const answered = (status: number, body: string, requestId: string | null = null): FinalOutcome => ({
  kind: "answered",
  usage: NO_USAGE,
  status,
  requestId,
  body: Buffer.from(body),
});

const parsedText = jsonText.filter(isReadBack);
const CUSTOM_ID = Buffer.from('"a"');
const parsed = (line: Buffer) => JSON.parse(line.toString()) as Record<string, unknown>;

const newlinesIn = (line: Buffer) => line.filter((byte) => byte === 0x0a || byte === 0x0d).length;

describe("an answer in the output", () => {
  test("survives byte for byte, apart from the line breaks between its tokens", () => {
    fc.assert(
      fc.property(jsonText, stringText, (body, customId) => {
        const line = lineFor(Buffer.from(customId), answered(200, body));
        expect(line.includes(`,"body":${body.replaceAll(/[\r\n]/g, " ")}},"error":null}`)).toBe(
          true,
        );
        const escapedId = customId.replaceAll(
          /[\u0085\u2028\u2029]/g,
          (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
        );
        expect(line.includes(`,"custom_id":${escapedId},`)).toBe(true);
      }),
      { numRuns: 500 },
    );
  });

  test("is one line of JSON that says the same", () => {
    fc.assert(
      fc.property(parsedText, stringText, fc.string(), (body, customId, requestId) => {
        const line = lineFor(Buffer.from(customId), answered(200, body, requestId));
        expect(newlinesIn(line)).toBe(1);
        expect(line.at(-1)).toBe(0x0a);
        const { id, ...rest } = parsed(line);
        expect(id).toMatch(/^batch_req_[0-9a-f]{32}$/);
        expect(JSON.stringify(rest)).toBe(
          JSON.stringify({
            custom_id: JSON.parse(customId) as unknown,
            response: {
              status_code: 200,
              request_id: requestId,
              body: JSON.parse(body) as unknown,
            },
            error: null,
          }),
        );
      }),
      { numRuns: 500 },
    );
  });

  test("gets a request id of its own when the upstream sent none", () => {
    const ids = [1, 2].map(
      () =>
        (parsed(lineFor(CUSTOM_ID, answered(200, "{}")))["response"] as { request_id: string })
          .request_id,
    );
    expect(ids[0]).toMatch(/^[0-9a-f]{32}$/);
    expect(ids[0]).not.toBe(ids[1]);
  });
});

test("an answer with line breaks is left alone and its copy is flat", () => {
  const body = Buffer.from('{\r\n"a":1\n}');
  expect(onOneLine(body).toString()).toBe('{  "a":1 }');
  expect(body.toString()).toBe('{\r\n"a":1\n}');
});

describe("a line without a usable answer", () => {
  test("shows the last refusal of an overloaded upstream with its status", () => {
    const outcome: FinalOutcome = {
      kind: "overloaded",
      status: 429,
      requestId: "r",
      body: Buffer.from('{"error":{}}'),
      retryAfterMs: 5,
    };
    expect(parsed(lineFor(CUSTOM_ID, outcome))).toMatchObject({
      response: { status_code: 429, request_id: "r", body: { error: {} } },
      error: null,
    });
  });

  test.each<[FinalOutcome, string, string]>([
    [
      { kind: "timed_out", afterMs: 600_000 },
      "request_timeout",
      "The model did not answer within 600 seconds.",
    ],
    [
      { kind: "timed_out", afterMs: 30_000, waitingFor: "first_byte" },
      "request_timeout",
      "The model did not begin to answer within 30 seconds.",
    ],
    [
      { kind: "timed_out", afterMs: 1_500, waitingFor: "more" },
      "request_timeout",
      "The model began to answer, then sent nothing more for 1.5 seconds.",
    ],
    [
      { kind: "unreachable", detail: "connection refused" },
      "upstream_unreachable",
      "connection refused",
    ],
    [{ kind: "broken", detail: 'it said "\n"' }, "upstream_error", 'it said "\n"'],
  ])("has a null response and a code: %j", (outcome, code, detail) => {
    const line = lineFor(CUSTOM_ID, outcome);
    expect(newlinesIn(line)).toBe(1);
    expect(parsed(line)).toEqual({
      id: expect.stringMatching(/^batch_req_[0-9a-f]{32}$/) as unknown,
      custom_id: "a",
      response: null,
      error: { code, message: expect.stringContaining(detail) as unknown },
    });
  });

  test.each([
    [
      BATCH_CANCELLED,
      "batch_cancelled",
      "This request was not executed because the batch was cancelled.",
    ],
    [
      BATCH_EXPIRED,
      "batch_expired",
      "This request could not be executed before the completion window expired.",
    ],
  ])("that never ran says why", (error, code, message) => {
    const line = noAnswerLine({ lineNumber: 1, customId: Buffer.from('"\\u0061"') }, error);
    expect(newlinesIn(line)).toBe(1);
    expect(parsed(line)).toMatchObject({
      custom_id: "a",
      response: null,
      error: { code, message },
    });
  });
});

test("the id of a row begins with the number of its line, and is another one each time", () => {
  const rows = [1, 2].map(() => lineFor(CUSTOM_ID, answered(200, "{}")));
  expect(rows.map(lineNumberOf)).toEqual([LINE_NUMBER, LINE_NUMBER]);
  expect(new Set(rows.map((row) => parsed(row)["id"])).size).toBe(2);
  expect(lineNumberOf(Buffer.from('{"id":"batch_req_other"}'))).toBeNull();
});

test("only answers from 200 to 299 are successes", () => {
  expect(
    [199, 200, 204, 299, 300, 400, 500].filter((status) => isSuccess(answered(status, "{}"))),
  ).toEqual([200, 204, 299]);
  expect(isSuccess({ kind: "timed_out", afterMs: 1 })).toBe(false);
});

test("a large answer stands in its row as it came, without a copy", () => {
  const body = Buffer.from(JSON.stringify({ text: "é".repeat(100_000) }));

  const pieces = outcomeLine(
    { lineNumber: 1, customId: CUSTOM_ID },
    {
      kind: "answered",
      status: 200,
      requestId: "r",
      body,
      usage: NO_USAGE,
    },
  );

  expect(pieces).toContain(body);
  const row = JSON.parse(Buffer.concat(pieces).toString()) as { response: { body: unknown } };
  expect(row.response.body).toEqual(JSON.parse(body.toString()));
  expect(Buffer.concat(pieces).toString().endsWith('},"error":null}\n')).toBe(true);
});
