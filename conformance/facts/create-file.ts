/** Section 2.1: `POST /v1/files`. */
import assert from "node:assert/strict";
import { multipart, type Part, rawRequest, uploadRequest } from "../../test/support/raw-http.ts";
import { accepted, refused } from "../expect.ts";
import { type Check, type Section, strong, weak } from "../fact.ts";
import { line } from "../lines.ts";
import type { Json, Server } from "../server.ts";

const CONTENT = `${line("one")}\n`;
const FILE: Part = { name: "file", filename: "f.jsonl", content: CONTENT };
const PURPOSE: Part = { name: "purpose", content: "batch" };

const sendParts = ({ url }: Server, parts: readonly Part[]) =>
  rawRequest(url, uploadRequest(multipart(parts))).then(({ status, body }) => ({
    status,
    text: body,
  }));

const refusesParts =
  (parts: readonly Part[], refusal: Omit<Parameters<typeof refused>[1], "status">): Check =>
  async ({ main }) =>
    refused(await sendParts(main, parts), { status: 400, ...refusal });

const expiry = (anchor: string, seconds: string): Part[] => [
  { name: "expires_after[anchor]", content: anchor },
  { name: "expires_after[seconds]", content: seconds },
];

/** OpenAI's message, which batchd follows with a hint. */
const NOT_JSONL = {
  status: 400,
  message: /^Invalid file format for Batch API\. Must be \.jsonl \(HINT: .+\)$/,
};

async function refusesContent(main: Server, content: string): Promise<void> {
  refused(await main.sendFile(content), NOT_JSONL);
}

const parsed = (answer: { status: number; text: string }): Json => {
  assert.equal(answer.status, 200, answer.text);
  return JSON.parse(answer.text) as Json;
};

export const createFile: Section = {
  number: "2.1",
  title: "POST /v1/files",
  facts: [
    strong.http("2.1-status", "The status is 200, not 201", async ({ main }) => {
      assert.equal((await main.sendFile(CONTENT)).status, 200);
    }),
    strong.http(
      "2.1-purposes",
      "Six purposes are taken: `assistants`, `batch`, `fine-tune`, `vision`, `user_data`, `evals`",
      async ({ main }) => {
        for (const purpose of [
          "assistants",
          "batch",
          "fine-tune",
          "vision",
          "user_data",
          "evals",
        ]) {
          assert.equal(accepted(await main.sendFile(CONTENT, { purpose }))["purpose"], purpose);
        }
      },
    ),
    strong.raw("2.1-file-first", "The file may stand before its purpose", async ({ main }) => {
      assert.equal(parsed(await sendParts(main, [FILE, PURPOSE]))["bytes"], CONTENT.length);
    }),
    strong.raw("2.1-file-last", "The file may stand behind its purpose", async ({ main }) => {
      assert.equal(parsed(await sendParts(main, [PURPOSE, FILE]))["bytes"], CONTENT.length);
    }),
    strong.http(
      "2.1-expires-after",
      "`expires_after[anchor]` and `expires_after[seconds]` set when the file expires, from 3600 to 2592000 seconds",
      async ({ main }) => {
        for (const seconds of [3_600, 2_592_000]) {
          const fields = {
            "expires_after[anchor]": "created_at",
            "expires_after[seconds]": `${seconds}`,
          };
          const { created_at, expires_at } = accepted(await main.sendFile(CONTENT, fields));
          assert.equal(expires_at, Number(created_at) + seconds);
        }
      },
    ),
    strong.raw(
      "2.1-expires-anchor",
      "No other anchor than `created_at` is taken",
      async ({ main }) => {
        const answer = await sendParts(main, [PURPOSE, ...expiry("last_active_at", "3600"), FILE]);
        refused(answer, {
          status: 400,
          message: "Invalid value: 'last_active_at'. Value must be 'created_at'.",
          param: "expires_after[anchor]",
          code: "invalid_value",
        });
      },
    ),
    strong.raw("2.1-expires-range", "3599 and 2592001 seconds are refused", async ({ main }) => {
      const param = "expires_after[seconds]";
      const short = await sendParts(main, [PURPOSE, ...expiry("created_at", "3599"), FILE]);
      refused(short, {
        status: 400,
        message: `Invalid '${param}': integer below minimum value. Expected a value >= 3600, but got 3599 instead.`,
        param,
        code: "integer_below_min_value",
      });
      const long = await sendParts(main, [PURPOSE, ...expiry("created_at", "2592001"), FILE]);
      refused(long, {
        status: 400,
        message: `Invalid '${param}': integer above maximum value. Expected a value <= 2592000, but got 2592001 instead.`,
        param,
        code: "integer_above_max_value",
      });
    }),
    strong.raw(
      "2.1-purpose-missing",
      "Without purpose: 400 `'purpose' is a required property`",
      refusesParts([FILE], { message: "'purpose' is a required property" }),
    ),
    weak.raw(
      "2.1-file-missing",
      "Without file: 400 `'file' is a required property`",
      refusesParts([PURPOSE], { message: "'file' is a required property" }),
    ),
    strong.raw(
      "2.1-purpose-unknown",
      "Another purpose: 400 that lists the six in the order of OpenAI, param `purpose`",
      refusesParts([{ name: "purpose", content: "xyz" }, FILE], {
        message:
          "'xyz' is not one of ['fine-tune', 'assistants', 'batch', 'user_data', 'vision', 'evals'] - 'purpose'",
        param: "purpose",
      }),
    ),
    strong.raw(
      "2.1-field-unknown",
      "Another field: 400 `Additional properties are not allowed ('xyz' was unexpected)`",
      refusesParts([PURPOSE, { name: "xyz", content: "1" }, FILE], {
        message: "Additional properties are not allowed ('xyz' was unexpected)",
      }),
    ),
    strong.raw(
      "2.1-expires-json",
      "`expires_after` as one part without brackets: 400, as an unknown field, and a hint",
      refusesParts([PURPOSE, { name: "expires_after", content: "{}" }, FILE], {
        message:
          "Additional properties are not allowed ('expires_after' was unexpected) (HINT: Send a field for each member: expires_after[anchor], expires_after[seconds].)",
      }),
    ),
    strong.http(
      "2.1-not-jsonl",
      "Batch input whose first line is not JSON: 400 `Invalid file format for Batch API. Must be .jsonl`, and a hint",
      ({ main }) => refusesContent(main, "just notes\n"),
    ),
    strong.http("2.1-empty", "An empty file as batch input: the same 400", ({ main }) =>
      refusesContent(main, ""),
    ),
    weak.http("2.1-pretty", "JSON over several lines as batch input: the same 400", ({ main }) =>
      refusesContent(main, JSON.stringify({ custom_id: "a" }, null, 2)),
    ),
    strong.http(
      "2.1-first-line-only",
      "Only the first line is looked at: a broken second one uploads",
      async ({ main }) => {
        accepted(await main.sendFile(`${CONTENT}{"broken":\n`));
      },
    ),
    strong.http("2.1-any-json", "A line that is JSON but no request uploads", async ({ main }) => {
      accepted(await main.sendFile('{"custom_id":"a"}\n'));
    }),
    weak.http(
      "2.1-any-extension",
      "The name says nothing: right content uploads as `notes.txt`",
      async ({ main }) => {
        const { filename } = accepted(await main.sendFile(CONTENT, { filename: "notes.txt" }));
        assert.equal(filename, "notes.txt");
      },
    ),
    weak.raw(
      "2.1-encoded-name",
      "A name in words of RFC 2047, as Spring sends one that is not ASCII, is read",
      async ({ main }) => {
        const file = { ...FILE, filename: "=?UTF-8?Q?gr=C3=B6=C3=9Fe.jsonl?=" };
        assert.equal(parsed(await sendParts(main, [PURPOSE, file]))["filename"], "größe.jsonl");
      },
    ),
    strong.http(
      "2.1-not-utf8",
      "Batch input that is not UTF-8: 400 `Invalid file for Batch API. Must be utf-8 encoded`",
      async ({ main }) => {
        const latin1 = new Uint8Array(Buffer.from('{"custom_id":"é"}\n', "latin1"));
        refused(await main.sendFile(latin1), {
          status: 400,
          message: "Invalid file for Batch API. Must be utf-8 encoded",
        });
      },
    ),
    strong.http("2.1-other-content", "Other purposes take any bytes", async ({ main }) => {
      const bytes = new Uint8Array([0, 255, 10, 13, 128]);
      assert.equal(accepted(await main.sendFile(bytes, { purpose: "user_data" }))["bytes"], 5);
    }),
    strong.http(
      "2.1-too-large",
      "More bytes than allowed: 400 `File is too large.`, with the limit",
      async ({ strict }) => {
        refused(await strict.sendFile(`${line("x", "x".repeat(5_000))}\n`), {
          status: 400,
          message: /^File is too large\. It may have at most \d+ bytes/,
        });
      },
    ),
    strong.test("2.1-max-bytes", "Unless told otherwise 209,715,200 bytes are allowed", {
      file: "test/config/config.test.ts",
      title: "the server starts with defaults, upstreams and keys left out",
    }),
  ],
};
