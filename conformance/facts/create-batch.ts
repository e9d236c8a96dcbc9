/** Section 2.6: `POST /v1/batches`. */
import assert from "node:assert/strict";
import { accepted, faultsOf, refused } from "../expect.ts";
import { type Check, type Section, strong, weak } from "../fact.ts";
import { line } from "../lines.ts";

const ENDPOINTS = [
  "/v1/chat/completions",
  "/v1/completions",
  "/v1/embeddings",
  "/v1/responses",
  "/v1/moderations",
  "/v1/images/generations",
  "/v1/images/edits",
  "/v1/videos",
];

type Refusal = Omit<Parameters<typeof refused>[1], "status">;

/** Expects a 400 for a request that is good but for these changes. */
const refuses =
  (changes: object, refusal: Refusal): Check =>
  async ({ main }) =>
    refused(await main.create("file-x", changes), { status: 400, ...refusal });

const pairs = (count: number) =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`key-${i}`, "value"]));

const missing =
  (name: string): Check =>
  async ({ main }) => {
    const body = { input_file_id: "f", endpoint: "/v1/embeddings", completion_window: "24h" };
    refused(await main.post("/v1/batches", { ...body, [name]: undefined }), {
      status: 400,
      message: `Missing required parameter: '${name}'.`,
      param: name,
      code: "missing_required_parameter",
    });
  };

const expiry = (seconds: unknown, anchor = "created_at") => ({
  output_expires_after: { anchor, seconds },
});

export const createBatch: Section = {
  number: "2.6",
  title: "POST /v1/batches",
  facts: [
    strong.http(
      "2.6-created",
      "The status is 200 and the batch is `validating`, whatever the input file",
      async ({ main }) => {
        assert.equal(accepted(await main.create("file-x"))["status"], "validating");
      },
    ),
    strong.http("2.6-endpoints", "Eight endpoints are taken", async ({ main }) => {
      for (const endpoint of ENDPOINTS) {
        assert.equal(accepted(await main.create("file-x", { endpoint }))["endpoint"], endpoint);
      }
    }),
    strong.http(
      "2.6-no-sync-lookup",
      "An unknown `input_file_id` is no HTTP error: the batch fails later",
      async ({ stories }) => {
        const { created, final } = await stories.missingInput();
        assert.deepEqual([created.status, final.status], ["validating", "failed"]);
      },
    ),
    weak.http(
      "2.6-input-id",
      "An `input_file_id` that does not begin with `file`: 400 that says so, code `invalid_value`",
      refuses(
        { input_file_id: "wrong-id" },
        {
          message: "Invalid 'input_file_id': 'wrong-id'. Expected an ID that begins with 'file'.",
          param: "input_file_id",
          code: "invalid_value",
        },
      ),
    ),
    weak.http(
      "2.6-input-id-length",
      "An `input_file_id` of more than 64 characters: 400, code `string_above_max_length`",
      refuses(
        { input_file_id: `file-${"x".repeat(60)}` },
        {
          message:
            "Invalid 'input_file_id': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.",
          param: "input_file_id",
          code: "string_above_max_length",
        },
      ),
    ),
    strong.http(
      "2.6-bad-endpoint",
      "Another endpoint: 400 that lists the supported ones in OpenAI's order, param `endpoint`, code `invalid_value`",
      refuses(
        { endpoint: "/v1/invalid" },
        {
          message:
            "Invalid value: '/v1/invalid'. Supported values are: '/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/responses', '/v1/moderations', '/v1/images/generations', '/v1/images/edits', and '/v1/videos'.",
          param: "endpoint",
          code: "invalid_value",
        },
      ),
    ),
    strong.http(
      "2.6-endpoint-type",
      "An endpoint that is no text: 400 that says what it is, whatever it is",
      async (context) => {
        for (const [endpoint, kind] of [
          [7, "an integer"],
          [{ toString: "x" }, "an object"],
        ]) {
          await refuses(
            { endpoint },
            {
              message: `Invalid type for 'endpoint': expected a string, but got ${kind} instead.`,
              param: "endpoint",
              code: "invalid_type",
            },
          )(context);
        }
      },
    ),
    strong.http(
      "2.6-bad-window",
      "Another `completion_window` (`1h`, `48h`, empty): 400, param `completion_window`",
      async (context) => {
        for (const window of ["1h", "48h", ""]) {
          await refuses(
            { completion_window: window },
            {
              message: `Invalid value: '${window}'. Value must be '24h'.`,
              param: "completion_window",
              code: "invalid_value",
            },
          )(context);
        }
      },
    ),
    weak.http(
      "2.6-no-input",
      "Without `input_file_id`: 400 `Missing required parameter: 'input_file_id'.`, code `missing_required_parameter`",
      missing("input_file_id"),
    ),
    weak.http(
      "2.6-no-endpoint",
      "Without `endpoint`: the same, of `endpoint`",
      missing("endpoint"),
    ),
    weak.http("2.6-no-window", "Without `completion_window` it is `24h`", async ({ main }) => {
      const created = accepted(await main.create("file-x", { completion_window: undefined }));
      assert.equal(created["completion_window"], "24h");
    }),
    strong.http(
      "2.6-metadata-type",
      "A value of `metadata` that is no text: 400 that says which and what it is, code `invalid_type`",
      refuses(
        { metadata: { tags: ["a"] } },
        {
          message: "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
          param: "metadata.tags",
          code: "invalid_type",
        },
      ),
    ),
    weak.http(
      "2.6-metadata-pairs",
      "More than 16 pairs: 400, param `metadata`, code `object_above_max_properties`",
      refuses(
        { metadata: pairs(17) },
        {
          message:
            "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, but got an object with 17 properties instead.",
          param: "metadata",
          code: "object_above_max_properties",
        },
      ),
    ),
    weak.http(
      "2.6-metadata-value",
      "A value of more than 512 characters: 400, param `metadata.k`, code `string_above_max_length`",
      refuses(
        { metadata: { k: "x".repeat(600) } },
        {
          message:
            "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, but got a string with length 600 instead.",
          param: "metadata.k",
          code: "string_above_max_length",
        },
      ),
    ),
    strong.http(
      "2.6-metadata-key",
      "A key of more than 64 characters: 400, code `string_above_max_length`",
      refuses(
        { metadata: { ["k".repeat(65)]: "v" } },
        {
          message:
            "Invalid 'metadata': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.",
          param: "metadata",
          code: "string_above_max_length",
        },
      ),
    ),
    strong.http(
      "2.6-metadata-limits",
      "16 pairs, keys of 64 and values of 512 characters are taken",
      async ({ main }) => {
        const metadata = { ...pairs(15), ["k".repeat(64)]: "😀".repeat(512) };
        assert.deepEqual(accepted(await main.create("file-x", { metadata }))["metadata"], metadata);
      },
    ),
    strong.http("2.6-metadata-null", "`metadata: null` is as good as none", async ({ main }) => {
      assert.equal(accepted(await main.create("file-x", { metadata: null }))["metadata"], null);
    }),
    weak.http(
      "2.6-unknown-field",
      "Another field: 400 `Unknown parameter: 'foo'.`, param `foo`, code `unknown_parameter`",
      refuses(
        { foo: 1 },
        { message: "Unknown parameter: 'foo'.", param: "foo", code: "unknown_parameter" },
      ),
    ),
    strong.http(
      "2.6-output-expiry",
      "`output_expires_after` of 3600 to 2592000 seconds is taken; less, more and another anchor are refused",
      async (context) => {
        for (const seconds of [3_600, 2_592_000]) {
          accepted(await context.main.create("file-x", expiry(seconds)));
        }
        const param = "output_expires_after.seconds";
        await refuses(expiry(3_599), {
          message: `Invalid '${param}': integer below minimum value. Expected a value >= 3600, but got 3599 instead.`,
          param,
          code: "integer_below_min_value",
        })(context);
        await refuses(expiry(2_592_001), {
          message: `Invalid '${param}': integer above maximum value. Expected a value <= 2592000, but got 2592001 instead.`,
          param,
          code: "integer_above_max_value",
        })(context);
        await refuses(expiry(3_600, "other"), {
          message: "Invalid value: 'other'. Value must be 'created_at'.",
          param: "output_expires_after.anchor",
          code: "invalid_value",
        })(context);
      },
    ),
    strong.http(
      "2.6-output-expiry-anchor",
      "It counts from the creation of the result files, and holds for both",
      async ({ main }) => {
        const lines = [line("good"), line("bad", "[[status 400]]")];
        const { output_file_id, error_file_id } = await main.run(lines, expiry(7_200));
        for (const id of [output_file_id, error_file_id]) {
          const { created_at, expires_at } = (await main.get(`/v1/files/${id}`)).json;
          assert.equal(expires_at, Number(created_at) + 7_200);
        }
      },
    ),
    strong.http("2.6-max-lines", "More lines than allowed fail the batch", async ({ strict }) => {
      const tooMany = await strict.run([1, 2, 3, 4].map((n) => line(`line-${n}`)));
      assert.equal(tooMany.status, "failed");
      assert.equal((await strict.run([1, 2, 3].map((n) => line(`line-${n}`)))).status, "completed");
    }),
    strong.test(
      "2.6-default-limits",
      "Unless told otherwise 50,000 lines and 50,000 inputs to embed are allowed",
      {
        file: "test/config/config.test.ts",
        title: "the server starts with defaults, upstreams and keys left out",
      },
    ),
    strong.http(
      "2.6-max-inputs",
      "Inputs to embed are counted over all lines, and too many fail the batch",
      async ({ strict }) => {
        const embed = (id: string, input: unknown) =>
          line(id, "", { url: "/v1/embeddings", body: { model: "test-model", input } });
        const endpoint = { endpoint: "/v1/embeddings" };
        const five = [embed("a", ["1", "2", "3"]), embed("b", ["4", "5"])];
        assert.deepEqual(faultsOf(await strict.run(five, endpoint)), [
          {
            code: "too_many_inputs",
            message:
              "The input file holds 5 inputs. The requests of an embeddings batch may hold at most 4 together.",
            param: null,
            line: null,
          },
        ]);
        const four = [embed("a", ["1", "2", "3"]), embed("b", "4")];
        assert.equal((await strict.run(four, endpoint)).status, "completed");
      },
    ),
  ],
};
