/** Section 3.3: the errors of faulty lines. */
import assert from "node:assert/strict";
import type { Context } from "../context.ts";
import { completes, faultsOf } from "../expect.ts";
import { type Check, type Section, strong, weak } from "../fact.ts";
import { chatBody, type LineChanges, line } from "../lines.ts";
import type { Server } from "../server.ts";

interface Fault {
  readonly code: string;
  readonly message: string;
  readonly param?: string;
  readonly line?: number;
}

const written = ({ code, message, param, line }: Fault) => ({
  code,
  message,
  param: param ?? null,
  line: line ?? null,
});

async function failsWith(
  server: Server,
  { lines, faults, more }: { lines: readonly string[]; faults: readonly Fault[]; more?: object },
): Promise<void> {
  assert.deepEqual(faultsOf(await server.run(lines, more)), faults.map(written));
}

/** Expects this fault at line 2 of a batch whose second line is `line`. */
const faulty =
  (changes: LineChanges | string, fault: Omit<Fault, "line">, more: object = {}): Check =>
  async ({ main }) => {
    const endpoint = (more as { endpoint?: string }).endpoint ?? "/v1/chat/completions";
    const second =
      typeof changes === "string" ? changes : line("second", "x", { url: endpoint, ...changes });
    const lines = [line("first", "Hello", { url: endpoint }), second];
    await failsWith(main, { lines, faults: [{ ...fault, line: 2 }], more });
  };

const missing = (name: string): Check =>
  faulty(
    { [name]: undefined },
    {
      code: "missing_required_parameter",
      message: `Missing required parameter: '${name}'.`,
      param: name,
    },
  );

const wholeFile =
  (
    input: (context: Context) => Promise<string>,
    fault: { code: string; message: RegExp; param?: string },
  ): Check =>
  async (context) => {
    const { json } = await context.main.create(await input(context));
    const [found, ...others] = faultsOf(await context.main.ended(String(json["id"])));
    assert.match(String(found?.["message"]), fault.message);
    const { code, param, line } = found ?? {};
    assert.deepEqual(
      { code, param, line },
      { code: fault.code, param: fault.param ?? null, line: null },
    );
    assert.deepEqual(others, []);
  };

const embeddings = { endpoint: "/v1/embeddings" };

export const lineErrors: Section = {
  number: "3.3",
  title: "Entries of errors.data",
  facts: [
    strong.http(
      "3.3-json",
      "`invalid_json_line`: `This line is not parseable as valid JSON.`",
      faulty('{"custom_id":', {
        code: "invalid_json_line",
        message: "This line is not parseable as valid JSON.",
      }),
    ),
    weak.http(
      "3.3-not-object",
      "JSON that is no object is an `invalid_json_line` too, with a hint",
      faulty("[1, 2]", {
        code: "invalid_json_line",
        message:
          "This line is not parseable as valid JSON. (HINT: It is JSON, but not an object. Each line must be one.)",
      }),
    ),
    strong.http(
      "3.3-no-custom-id",
      "`missing_required_parameter`: `Missing required parameter: 'custom_id'.`",
      missing("custom_id"),
    ),
    strong.http("3.3-no-method", "The same, of `method`", missing("method")),
    strong.http("3.3-no-url", "The same, of `url`", missing("url")),
    strong.http("3.3-no-body", "The same, of `body`", missing("body")),
    strong.http(
      "3.3-duplicate",
      "`duplicate_custom_id`, param `custom_id`, at the later of the two lines",
      faulty(
        { custom_id: "first" },
        {
          code: "duplicate_custom_id",
          message:
            "The custom_id 'first' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.",
          param: "custom_id",
        },
      ),
    ),
    strong.http(
      "3.3-url",
      "`invalid_url`: `The URL provided for this request does not match the batch endpoint.`, param `url`",
      faulty(
        { url: "/v1/embeddings" },
        {
          code: "invalid_url",
          message: "The URL provided for this request does not match the batch endpoint.",
          param: "url",
        },
      ),
    ),
    weak.http(
      "3.3-type",
      "`invalid_type` for a `custom_id` that is no text, with what it is, param `custom_id`",
      faulty(
        { custom_id: 7 },
        {
          code: "invalid_type",
          message: "Invalid type for 'custom_id': expected a string, but got an integer instead.",
          param: "custom_id",
        },
      ),
    ),
    weak.http(
      "3.3-method",
      "`invalid_method` for another method, param `method`",
      async ({ main }) => {
        const [fault] = faultsOf(await main.run([line("get", "x", { method: "GET" })]));
        assert.deepEqual(fault, {
          code: "invalid_method",
          message: "Invalid value for 'method': every request in a batch must be a 'POST'.",
          param: "method",
          line: 1,
        });
      },
    ),
    strong.http(
      "3.3-no-model",
      "`invalid_request`: `Model parameter is required.`, param `body.model`",
      faulty(
        { body: { messages: [] } },
        { code: "invalid_request", message: "Model parameter is required.", param: "body.model" },
      ),
    ),
    weak.http(
      "3.3-model-type",
      "`invalid_type` for a model that is no text, with what it is, param `body.model`",
      faulty(
        { body: chatBody("x", { model: 4 }) },
        {
          code: "invalid_type",
          message: "Invalid type for 'body.model': expected a string, but got an integer instead.",
          param: "body.model",
        },
      ),
    ),
    strong.http(
      "3.3-no-messages",
      "`invalid_request`: `Messages parameter is required.` for chats, param `body.messages`",
      faulty(
        { body: { model: "test-model" } },
        {
          code: "invalid_request",
          message: "Messages parameter is required.",
          param: "body.messages",
        },
      ),
    ),
    strong.http(
      "3.3-no-messages-elsewhere",
      "Other endpoints ask for no messages",
      async ({ main }) => {
        const body = { model: "test-model", input: "x" };
        await completes(main, [line("e", "", { url: "/v1/embeddings", body })], embeddings);
      },
    ),
    strong.http(
      "3.3-model-not-found",
      "`model_not_found`: `The provided model 'xyz' is not supported by the Batch API.`, param `body.model`",
      async ({ strict }) => {
        const lines = [line("a", "x", { body: chatBody("x", { model: "xyz" }) })];
        const message = "The provided model 'xyz' is not supported by the Batch API.";
        await failsWith(strict, {
          lines,
          faults: [{ code: "model_not_found", message, param: "body.model", line: 1 }],
        });
      },
    ),
    strong.http(
      "3.3-mismatched-model",
      "`mismatched_model` for a second model in one file, param `body.model`",
      faulty(
        { body: chatBody("x", { model: "b" }) },
        {
          code: "mismatched_model",
          message:
            "The model 'b' for this request does not match the rest of the batch. Each batch must contain requests for a single model.",
          param: "body.model",
        },
      ),
    ),
    strong.http(
      "3.3-stream",
      "`streaming_unsupported`: `Chat Completions: Streaming is not supported in the Batch API.`, param `body.stream`",
      faulty(
        { body: chatBody("x", { stream: true }) },
        {
          code: "streaming_unsupported",
          message: "Chat Completions: Streaming is not supported in the Batch API.",
          param: "body.stream",
        },
      ),
    ),
    strong.http(
      "3.3-stream-moderations",
      "`stream: true` is refused for moderations too",
      async ({ main }) => {
        const body = { model: "test-model", input: "x", stream: true };
        const batch = await main.run([line("m", "", { url: "/v1/moderations", body })], {
          endpoint: "/v1/moderations",
        });
        assert.equal(faultsOf(batch)[0]?.["code"], "streaming_unsupported");
      },
    ),
    strong.http(
      "3.3-no-file",
      "`invalid_request`: `Cannot find file …, or … does not have access to it.`, param `file_id`, no line",
      wholeFile(async () => "file-gone", {
        code: "invalid_request",
        message:
          /^Cannot find file file-gone, or (organization|project) \S+ does not have access to it\.$/,
        param: "file_id",
      }),
    ),
    weak.http(
      "3.3-empty",
      "`empty_file` for a file without requests",
      wholeFile(
        async ({ main }) => {
          // An upload checks at most a mebibyte of the first line, so it accepts this file.
          const { json } = await main.sendFile(`${" ".repeat(1024 * 1024 + 1)}\n`);
          return String(json["id"]);
        },
        {
          code: "empty_file",
          message:
            /^The input file is empty\. Please ensure that the batch contains at least one request\.$/,
        },
      ),
    ),
    weak.http("3.3-too-many", "Too many lines: one entry without a line", async ({ strict }) => {
      const faults = faultsOf(await strict.run([1, 2, 3, 4, 5].map((n) => line(`${n}`))));
      assert.deepEqual(
        faults.map(({ code, line }) => ({ code, line })),
        [{ code: "too_many_requests", line: null }],
      );
    }),
    strong.http(
      "3.3-body-faults-run",
      "Other faults of a body pass validation and fail their line when it is run",
      async ({ main }) => {
        const body = chatBody("[[status 400]]", { max_tokens: -1 });
        const batch = await main.run([line("a", "", { body })]);
        assert.equal(batch.status, "completed");
        assert.deepEqual(batch.request_counts, { total: 1, completed: 0, failed: 1 });
      },
    ),
    weak.http(
      "3.3-bom",
      "A byte order mark makes line 1 an `invalid_json_line`",
      async ({ main }) => {
        const id = String((await main.sendFile(`\ufeff${line("a")}\n`)).json["id"]);
        const { json } = await main.create(id);
        const faults = faultsOf(await main.ended(String(json["id"])));
        assert.deepEqual(
          faults.map(({ code, line }) => [code, line]),
          [["invalid_json_line", 1]],
        );
      },
    ),
    weak.http(
      "3.3-blank-lines",
      "Blank lines are skipped and counted, and the last line needs no newline",
      async ({ main }) => {
        const upload = await main.sendFile(`\n${line("a")}\r\n  \n{\n${line("b")}`);
        const { json } = await main.create(String(upload.json["id"]));
        const faults = faultsOf(await main.ended(String(json["id"])));
        assert.deepEqual(
          faults.map((fault) => fault["line"]),
          [4],
        );
      },
    ),
  ],
};
