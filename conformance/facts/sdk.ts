/** Sections 10.3 to 10.7: pages, retries, errors and polling with the official clients. */
import assert from "node:assert/strict";
import OpenAI from "openai";
import { accepted } from "../expect.ts";
import { type Section, strong } from "../fact.ts";
import { line } from "../lines.ts";
import { type Json, type Server, until } from "../server.ts";

const CONTENT = `${line("one")}\n`;

async function refusalOf(promise: Promise<unknown>): Promise<InstanceType<typeof OpenAI.APIError>> {
  const error = await promise.then(
    () => null,
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof OpenAI.APIError, String(error));
  return error;
}

/** Creates a client that counts its requests. */
function counting(main: Server) {
  const counter = { requests: 0 };
  const client = new OpenAI({
    baseURL: `${main.url}/v1`,
    apiKey: "sk-not-needed",
    maxRetries: 2,
    fetch: (input, init) => {
      counter.requests++;
      return fetch(input as string, init as RequestInit);
    },
  });
  return { client, counter };
}

const collect = async (ids: AsyncIterable<{ id: string }>): Promise<string[]> => {
  const found: string[] = [];
  for await (const { id } of ids) found.push(id);
  return found;
};

export const pagination: Section = {
  number: "10.3",
  title: "Pagination",
  facts: [
    strong.node(
      "10.3-node-batches",
      "The Node client walks through all batches, each once",
      async ({ main }) => {
        const made: unknown[] = [];
        for (let i = 0; i < 5; i++) made.push(accepted(await main.create("file-x"))["id"]);
        const seen = await collect(main.openai.batches.list({ limit: 2 }));
        assert.deepEqual(seen.slice(0, 5), made.toReversed());
        assert.equal(new Set(seen).size, seen.length);
      },
    ),
    strong.node("10.3-node-files", "and through all files, with its filters", async ({ main }) => {
      const made: unknown[] = [];
      for (let i = 0; i < 5; i++)
        made.push(accepted(await main.sendFile("x", { purpose: "evals" }))["id"]);
      const filters = { limit: 2, purpose: "evals", order: "asc" } as const;
      assert.deepEqual((await collect(main.openai.files.list(filters))).slice(-5), made);
    }),
    strong.python(
      "10.3-python-batches",
      "The Python client walks through all batches, each once",
      "pages",
    ),
    strong.python("10.3-python-files", "and through all files, with its filters", "file_pages"),
    strong.http(
      "10.3-repeated-query",
      "All parameters of the first page, with `after` added, make the second",
      async ({ main }) => {
        for (let i = 0; i < 3; i++) accepted(await main.sendFile("x", { purpose: "vision" }));
        const query = "limit=1&order=desc&purpose=vision";
        const first = accepted(await main.get(`/v1/files?${query}`));
        const second = accepted(await main.get(`/v1/files?${query}&after=${first["last_id"]}`));
        const [{ purpose, id } = {}] = second["data"] as Json[];
        assert.equal(purpose, "vision");
        assert.notEqual(id, first["last_id"]);
      },
    ),
  ],
};

export const retries: Section = {
  number: "10.4",
  title: "Retries",
  facts: [
    strong.node(
      "10.4-conflict-node",
      "The Node client asks once, not three times, whether a finished batch may be cancelled",
      async ({ main, stories }) => {
        const { final } = await stories.clean();
        const { client, counter } = counting(main);
        assert.ok(
          (await refusalOf(client.batches.cancel(final.id))) instanceof OpenAI.ConflictError,
        );
        assert.equal(counter.requests, 1);
      },
    ),
    strong.python("10.4-conflict-python", "and the Python client too", "conflict_is_not_retried"),
    strong.node(
      "10.4-refusals-node",
      "Other refusals are not repeated either",
      async ({ main }) => {
        const { client, counter } = counting(main);
        await refusalOf(client.batches.retrieve("batch_x"));
        await refusalOf(client.batches.retrieve("nonsense"));
        assert.equal(counter.requests, 2);
      },
    ),
  ],
};

export const errors: Section = {
  number: "10.5",
  title: "Errors in the clients",
  facts: [
    strong.node(
      "10.5-classes",
      "The Node client's classes: 400, 401, 404 and 409",
      async ({ main, keyed, stories }) => {
        const { openai } = main;
        const { id } = (await stories.clean()).final;
        const pairs = [
          [OpenAI.BadRequestError, () => openai.batches.retrieve("nonsense")],
          [OpenAI.AuthenticationError, () => keyed.client("sk-wrong").batches.list()],
          [OpenAI.NotFoundError, () => openai.files.retrieve("file-x")],
          [OpenAI.ConflictError, () => openai.batches.cancel(id)],
        ] as const;
        for (const [kind, call] of pairs) assert.ok((await refusalOf(call())) instanceof kind);
      },
    ),
    strong.node(
      "10.5-fields",
      "Its errors have `code`, `param`, `type`, `message` and the request id",
      async ({ main }) => {
        const error = await refusalOf(main.openai.batches.retrieve("nonsense"));
        const { code, param, type, requestID } = error;
        assert.deepEqual(
          [code, param, type],
          ["invalid_value", "batch_id", "invalid_request_error"],
        );
        assert.match(error.message, /^400 Invalid 'batch_id'/);
        assert.match(String(requestID), /^req_/);
      },
    ),
    strong.python(
      "10.5-python",
      "The Python client's classes, with type and request id",
      "error_classes",
    ),
    strong.python(
      "10.5-python-more",
      "also 422, 413 and a refused download that was to be streamed, and a timeout is one",
      "more_error_classes",
    ),
    strong.python("10.5-python-key", "The Python client's error for a wrong key", {
      name: "wrong_key",
      args: async ({ keyed }) => ({ keyed_url: keyed.url }),
    }),
    strong.node(
      "10.5-request-id",
      "Answers expose `x-request-id` as `_request_id`",
      async ({ main }) => {
        const page = await main.openai.batches.list({ limit: 1 }).withResponse();
        assert.match(String(page.request_id), /^req_/);
        const file = await main.openai.files.create({
          file: new File([CONTENT], "f"),
          purpose: "batch",
        });
        assert.match(String(file._request_id), /^req_/);
      },
    ),
    strong.python("10.5-python-request-id", "and the Python client too", "request_id"),
    strong.python(
      "10.5-python-raw",
      "`with_raw_response` and `with_streaming_response` give the status, the headers and the object, and the next page",
      "raw_responses",
    ),
  ],
};

export const polling: Section = {
  number: "10.6",
  title: "Whole flows of the clients",
  facts: [
    strong.node(
      "10.6-node",
      "The Node client uploads, creates, polls and reads a batch",
      async ({ main }) => {
        const { openai } = main;
        const { id, created_at, expires_at } = await openai.files.create({
          file: new File([CONTENT], "f"),
          purpose: "batch",
          expires_after: { anchor: "created_at", seconds: 3_600 },
        });
        assert.equal(expires_at, created_at + 3_600);
        const created = await openai.batches.create({
          input_file_id: id,
          endpoint: "/v1/chat/completions",
          completion_window: "24h",
          metadata: { by: "node" },
        });
        const retrieve = () => openai.batches.retrieve(created.id);
        const batch = await until("the batch", retrieve, ({ status }) => status === "completed");
        assert.deepEqual(batch.metadata, { by: "node" });
        const output = await (await openai.files.content(batch.output_file_id ?? "")).text();
        assert.equal((JSON.parse(output) as Json)["custom_id"], "one");
      },
    ),
    strong.python("10.6-python", "The Python client does", "whole_batch"),
    strong.python("10.6-python-async", "The asynchronous Python client does", "asynchronous"),
    strong.node("10.6-wait-node", "`files.waitForProcessing` ends at once", async ({ main }) => {
      const { id } = await main.openai.files.create({
        file: new File([CONTENT], "f"),
        purpose: "batch",
      });
      // With these it fails if it has to look a second time.
      const wait = { pollInterval: 1, maxWait: 0 };
      assert.equal((await main.openai.files.waitForProcessing(id, wait)).status, "processed");
    }),
    strong.python("10.6-wait-python", "`files.wait_for_processing` does", "wait_for_processing"),
    strong.python(
      "10.6-content-python",
      "The Python client reads content whole, in pieces, and into a file",
      "content_helpers",
    ),
    strong.python(
      "10.6-lines-python",
      "The Python client reads results line by line, with `iter_lines` and `splitlines`, whatever answers say",
      "content_lines",
    ),
    strong.python(
      "10.6-models-python",
      "The Python client finds and lists models, with slashes in their names",
      "models",
    ),
  ],
};

export const leniency: Section = {
  number: "10.7",
  title: "Typed clients",
  facts: [
    strong.http(
      "10.7-integers",
      "Numbers are integers on the wire, without a fraction or an exponent",
      async ({ main, stories }) => {
        const { final } = await stories.clean();
        const { text } = await main.get(`/v1/batches/${final.id}`);
        const numbers =
          text.replaceAll(/"(?:[^"\\]|\\.)*"/g, "").match(/[\d.eE+-]*\d[\d.eE+-]*/g) ?? [];
        assert.ok(numbers.length > 8);
        for (const number of numbers) assert.match(number, /^\d+$/);
      },
    ),
    strong.http("10.7-null", "What is unset is null, never an empty text", async ({ stories }) => {
      for (const { created, final } of [await stories.clean(), await stories.faulty()]) {
        for (const batch of [created, final]) {
          assert.equal(Object.values(batch).includes(""), false);
        }
      }
    }),
  ],
};
