/** Section 4: output and error files. */
import assert from "node:assert/strict";
import { errorEnvelope } from "../../test/support/answers.ts";
import { type Section, strong, weak } from "../fact.ts";
import { line } from "../lines.ts";
import type { Row } from "../server.ts";

const byId = (rows: readonly Row[], id: string): Row => {
  const row = rows.find(({ custom_id }) => custom_id === id);
  assert.ok(row, `there is no row ${id}`);
  return row;
};

const ROW_KEYS = ["custom_id", "error", "id", "response"];

export const results: Section = {
  number: "4",
  title: "Output and error files",
  facts: [
    strong.http(
      "4-jsonl",
      "Both are JSONL, and each line ends in a newline",
      async ({ main, stories }) => {
        const { output_file_id, error_file_id } = (await stories.mixed()).final;
        for (const id of [output_file_id, error_file_id]) {
          assert.match(await main.text(id), /^(?:\{[^\n]*\}\n){2}$/);
        }
      },
    ),
    strong.http(
      "4-listed",
      "Both are listed by `/v1/files` with the purpose `batch_output`",
      async ({ main, stories }) => {
        const { output_file_id, error_file_id } = (await stories.mixed()).final;
        const { data } = (await main.get("/v1/files?purpose=batch_output")).json as {
          data: { id: string }[];
        };
        for (const id of [output_file_id, error_file_id])
          assert.ok(data.some((file) => file.id === id));
      },
    ),
    strong.http(
      "4-output-name",
      "The output file is named `<batch id>_output.jsonl`",
      async ({ main, stories }) => {
        const { id, output_file_id } = (await stories.mixed()).final;
        const { filename, bytes } = (await main.get(`/v1/files/${output_file_id}`)).json;
        assert.equal(filename, `${id}_output.jsonl`);
        assert.equal(bytes, Buffer.byteLength(await main.text(output_file_id)));
      },
    ),
    weak.http(
      "4-error-name",
      "The error file is named `<batch id>_error.jsonl`",
      async ({ main, stories }) => {
        const { id, error_file_id } = (await stories.mixed()).final;
        assert.equal(
          (await main.get(`/v1/files/${error_file_id}`)).json["filename"],
          `${id}_error.jsonl`,
        );
      },
    ),
    strong.http(
      "4-expiry",
      "Both expire 30 days after the batch ends unless told otherwise",
      async ({ main, stories }) => {
        const { output_file_id, error_file_id, finalizing_at, completed_at } = (
          await stories.mixed()
        ).final;
        for (const id of [output_file_id, error_file_id]) {
          const { created_at, expires_at } = (await main.get(`/v1/files/${id}`)).json;
          assert.equal(Number(expires_at) - Number(created_at), 2_592_000);
          // The files are made while the batch ends, which takes seconds on a busy machine.
          assert.ok(Number(created_at) >= Number(finalizing_at));
          assert.ok(Number(created_at) <= Number(completed_at));
        }
      },
    ),
    strong.http(
      "4-keys",
      "A row is `id`, `custom_id`, `response` and `error`, all four there",
      async ({ stories }) => {
        for (const { output, errors } of [
          await stories.mixed(),
          await stories.cancelledWhileRunning(),
        ]) {
          for (const row of [...output, ...errors])
            assert.deepEqual(Object.keys(row).sort(), ROW_KEYS);
        }
      },
    ),
    strong.http(
      "4-success",
      "A line that succeeded has `response` with `status_code`, `request_id` and `body`, and `error: null`",
      async ({ stories }) => {
        const row = byId((await stories.mixed()).output, "good-1");
        assert.deepEqual(Object.keys(row.response ?? {}).sort(), [
          "body",
          "request_id",
          "status_code",
        ]);
        assert.equal(row.response?.status_code, 200);
        assert.equal(row.response?.body["object"], "chat.completion");
        assert.equal(row.error, null);
      },
    ),
    strong.http(
      "4-http-failure",
      "A line that was refused has its status and the endpoint's error in `response`, and `error: null`, in the error file",
      async ({ stories }) => {
        const { errors } = await stories.mixed();
        for (const [id, status] of [
          ["bad-1", 400],
          ["bad-2", 404],
        ] as const) {
          const row = byId(errors, id);
          assert.equal(row.response?.status_code, status);
          assert.deepEqual(row.response?.body["error"], errorEnvelope(status)["error"]);
          assert.equal(row.error, null);
        }
      },
    ),
    strong.http(
      "4-only-2xx",
      "The output file has only lines answered 2xx, the error file none of them",
      async ({ stories }) => {
        const { output, errors } = await stories.mixed();
        assert.deepEqual(
          output.map(({ custom_id }) => custom_id),
          ["good-1", "good-2"],
        );
        assert.deepEqual(
          errors.map(({ custom_id }) => custom_id),
          ["bad-1", "bad-2"],
        );
        assert.ok(
          output.every(({ response }) => Math.floor((response?.status_code ?? 0) / 100) === 2),
        );
      },
    ),
    strong.http(
      "4-body",
      "The body of an answer stands there as the model server wrote it",
      async ({ main }) => {
        const { output_file_id } = await main.run([line("fragile", "[[bigint]]")]);
        const text = await main.text(output_file_id);
        for (const token of [
          "9007199254740993",
          "1E2",
          "-0",
          "\\u00e9\\/\\ud83d\\ude00",
          '"a": 0.10',
        ]) {
          assert.ok(text.includes(token), token);
        }
        assert.equal(text.split("\n").length, 2);
      },
    ),
    strong.http(
      "4-one-line",
      "A row is one line also to `splitlines` and `iter_lines` of Python, which break at U+0085, U+2028 and U+2029",
      async ({ main }) => {
        const prompts = ["a\u0085b", "a\u2028b", "a\u2029b"];
        const { output_file_id } = await main.run(prompts.map((prompt) => line(prompt, prompt)));
        const rows = (await main.text(output_file_id)).split(/[\n\u0085\u2028\u2029]/);
        assert.equal(rows.pop(), "");
        assert.deepEqual(
          rows.map((row) => (JSON.parse(row) as Row).custom_id),
          prompts,
        );
        for (const [i, row] of rows.entries()) {
          const { response } = JSON.parse(row) as Row;
          assert.ok(JSON.stringify(response?.body).includes(`echo: ${prompts[i]}`));
        }
      },
    ),
    strong.http(
      "4-row-id",
      "`id` is `batch_req_` and 32 hexadecimal digits, each time another",
      async ({ stories }) => {
        const { output, errors } = await stories.mixed();
        const ids = [...output, ...errors].map(({ id }) => id);
        for (const id of ids) assert.match(id, /^batch_req_[0-9a-f]{32}$/);
        assert.equal(new Set(ids).size, 4);
      },
    ),
    strong.http(
      "4-request-id",
      "`request_id` is a text, the model server's own when it sent one",
      async ({ stories }) => {
        for (const { response } of (await stories.clean()).output) {
          assert.match(response?.request_id ?? "", /^req-\d+$/);
        }
      },
    ),
    weak.http(
      "4-cancelled",
      "`batch_cancelled`: `response: null` and `This request was not executed because the batch was cancelled.`",
      async ({ stories }) => {
        const row = byId((await stories.cancelledWhileRunning()).errors, "waiting");
        assert.equal(row.response, null);
        assert.deepEqual(row.error, {
          code: "batch_cancelled",
          message: "This request was not executed because the batch was cancelled.",
        });
      },
    ),
    strong.test(
      "4-expired",
      "`batch_expired`: `response: null` and `This request could not be executed before the completion window expired.`",
      {
        file: "test/engine/stopping.test.ts",
        title: "when the window ends, answers are delivered and the other lines say that it ended",
      },
    ),
    strong.http(
      "4-timeout",
      "`request_timeout` for a model that does not answer, with `response: null`",
      async ({ stories }) => {
        const { final, errors } = await stories.timedOut();
        assert.equal(final.status, "completed");
        const { response, error } = byId(errors, "slow");
        assert.equal(response, null);
        assert.deepEqual(Object.keys(error ?? {}).sort(), ["code", "message"]);
        assert.equal(error?.code, "request_timeout");
      },
    ),
    strong.http(
      "4-all-failed",
      "When all lines fail the batch is `completed`, without an output file",
      async ({ stories }) => {
        const { final, errors } = await stories.allBad();
        assert.deepEqual(
          [final.status, final.output_file_id, errors.length],
          ["completed", null, 2],
        );
        assert.deepEqual(final.request_counts, { total: 2, completed: 0, failed: 2 });
      },
    ),
    strong.http(
      "4-all-good",
      "When all lines succeed there is no error file, and no empty one either",
      async ({ main, stories }) => {
        const { id, error_file_id } = (await stories.clean()).final;
        assert.equal(error_file_id, null);
        const { text } = await main.get("/v1/files?purpose=batch_output");
        assert.equal(text.includes(`${id}_error.jsonl`), false);
      },
    ),
    weak.http(
      "4-custom-id",
      "No line is without `custom_id`, and each line of the input is there once",
      async ({ stories }) => {
        const { output, errors } = await stories.mixed();
        const ids = [...output, ...errors].map(({ custom_id }) => custom_id).sort();
        assert.deepEqual(ids, ["bad-1", "bad-2", "good-1", "good-2"]);
      },
    ),
    strong.http(
      "4-endpoints",
      "Lines of every endpoint are sent to the path that they name",
      async ({ main, upstream }) => {
        const ends = [
          "completions",
          "embeddings",
          "responses",
          "moderations",
          "images/generations",
          "images/edits",
          "videos",
        ];
        for (const url of ends.map((end) => `/v1/${end}`)) {
          const prompt = `for ${url}`;
          await main.run(
            [line("a", "", { url, body: { model: "test-model", input: prompt, prompt } })],
            { endpoint: url },
          );
          assert.equal(upstream.seen.find(({ body }) => body.includes(`"${prompt}"`))?.path, url);
        }
      },
    ),
  ],
};
