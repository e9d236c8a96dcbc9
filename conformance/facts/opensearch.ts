/** OpenSearch ML Commons as a client: its calls byte by byte, and its reading of the answers. */
import assert from "node:assert/strict";
import { type RawAnswer, RawConnection, rawRequest } from "../../test/support/raw-http.ts";
import type { Context } from "../context.ts";
import { accepted } from "../expect.ts";
import { type Section, strong } from "../fact.ts";
import { line } from "../lines.ts";
import type { Batch, Json, Server } from "../server.ts";

const KNOWN_STATUSES = [200, 400, 401, 404, 405, 409, 413, 422, 429, 500, 503];

/** ML Commons always sends a Content-Type and a Content-Length, also on GET, and few other headers. */
const mlCommonsCall = (method: string, path: string, body = ""): string =>
  [
    `${method} ${path} HTTP/1.1`,
    "Host: 203.0.113.10:8080",
    "Authorization: Bearer sk-local",
    "Content-Type: application/json",
    `Content-Length: ${Buffer.byteLength(body)}`,
    "",
    body,
  ].join("\r\n");

const ask = ({ url }: Server, method: string, path: string, body = ""): Promise<RawAnswer> =>
  rawRequest(url, mlCommonsCall(method, path, body));

function jobIn({ status, body }: RawAnswer): Batch {
  assert.equal(status, 200, body);
  return JSON.parse(body) as Batch;
}

const createBody = (file: string, endpoint = "/v1/chat/completions") =>
  `{ "input_file_id": "${file}", "endpoint": "${endpoint}", "completion_window": "24h" }`;

async function newJob({ main }: Context, path = "/openai/v1/batches"): Promise<Batch> {
  const file = await main.upload([line("slow", "[[hang]]")]);
  return jobIn(await ask(main, "POST", path, createBody(file)));
}

/** The patterns, in the order in which ML Commons searches the text for them. */
const STATES: readonly (readonly [state: string, pattern: RegExp])[] = [
  ["CANCELLING", /(stopping|cancelling)/i],
  ["CANCELLED", /(stopped|cancelled)/i],
  ["COMPLETED", /(complete|completed|partiallyCompleted)/i],
  ["EXPIRED", /(expired|timeout)/i],
  ["FAILED", /(failed)/i],
];
const stateOf = ({ status }: Batch) =>
  STATES.find(([, pattern]) => pattern.test(status))?.[0] ?? "RUNNING";

/** Texts that change the path of its code when an answer contains them. */
const RISKY_KEYS = [
  "stream",
  "response_filter",
  "charset",
  "http_body",
  "name",
  "input_processors",
  "skip_validating_missing_parameters",
  "Status",
  "TransformJobStatus",
  "TransformJobArn",
];

const isAscii = (text: string) => /^[ -~\n]*$/.test(text);

export const opensearch: Section = {
  number: "12",
  title: "OpenSearch ML Commons",
  facts: [
    strong.raw(
      "12-create",
      "`batch_predict` is answered 200 with a JSON object that is `validating`",
      async (context) => assert.equal((await newJob(context)).status, "validating"),
    ),
    strong.raw(
      "12-paths",
      "The routes are the same under `/v1` and under `/openai/v1`",
      async (context) => {
        const { id } = await newJob(context, "/v1/batches");
        assert.equal(jobIn(await ask(context.main, "GET", `/openai/v1/batches/${id}`)).id, id);
      },
    ),
    strong.raw(
      "12-slashes",
      "Doubled slashes and one at the end are tolerated",
      async (context) => {
        const { id } = await newJob(context, "/openai/v1/batches/");
        assert.equal(jobIn(await ask(context.main, "GET", `/openai/v1/batches//${id}`)).id, id);
        assert.equal(
          jobIn(await ask(context.main, "POST", `/openai/v1/batches//${id}/cancel`)).id,
          id,
        );
      },
    ),
    strong.raw(
      "12-escaped-slashes",
      "Escaped slashes in the body are JSON like any other",
      async ({ main }) => {
        const body = createBody("file-x", "\\/v1\\/embeddings");
        assert.equal(
          jobIn(await ask(main, "POST", "/openai/v1/batches", body))["endpoint"],
          "/v1/embeddings",
        );
      },
    ),
    strong.raw(
      "12-quick",
      "Creating is answered at once, while batches before it are still validated",
      async ({ stories }) => {
        assert.equal(await stories.statusBeforeNext(), "validating");
      },
    ),
    strong.raw("12-status", "`batch_predict_status` with `Content-Length: 0`", async (context) => {
      const { id } = await newJob(context);
      assert.equal(jobIn(await ask(context.main, "GET", `/openai/v1/batches/${id}`)).id, id);
    }),
    strong.raw(
      "12-status-body",
      "and with a body, which is read and ignored: the connection goes on",
      async (context) => {
        const { id } = await newJob(context);
        using connection = await RawConnection.open(context.main.url);
        for (let i = 0; i < 3; i++) {
          connection.send(mlCommonsCall("GET", `/openai/v1/batches/${id}`, "{}"));
          assert.equal(jobIn(await connection.answer()).id, id);
        }
      },
    ),
    strong.raw(
      "12-polling",
      "Polling is never refused: 500 times on one connection",
      async (context) => {
        const { final } = await context.stories.clean();
        using connection = await RawConnection.open(context.main.url);
        for (let i = 0; i < 500; i++) {
          connection.send(mlCommonsCall("GET", `/openai/v1/batches/${final.id}`));
          assert.equal((await connection.answer()).status, 200);
        }
      },
    ),
    strong.raw(
      "12-cancel",
      "`cancel_batch_predict` with an empty body under a JSON content type is answered exactly 200",
      async (context) => {
        const { id } = await newJob(context);
        assert.equal(
          (await ask(context.main, "POST", `/openai/v1/batches/${id}/cancel`)).status,
          200,
        );
      },
    ),
    strong.raw("12-cancel-object", "and with the body `{}`", async (context) => {
      const { id } = await newJob(context);
      const answer = await ask(context.main, "POST", `/openai/v1/batches/${id}/cancel`, "{}");
      assert.equal(answer.status, 200);
    }),
    strong.http("12-ids", "Ids are made of `[A-Za-z0-9_-]`", async ({ stories }) => {
      const { id, output_file_id, error_file_id, input_file_id } = (await stories.mixed()).final;
      for (const each of [id, output_file_id, error_file_id, input_file_id]) {
        assert.match(String(each), /^[A-Za-z0-9_-]+$/);
      }
    }),
    strong.http(
      "12-states",
      "Each status is the task state that it should be",
      async ({ stories }) => {
        const { created, cancelling, before, final } = await stories.cancelledWhileRunning();
        const states = [created, before, cancelling.json as Batch, final].map(stateOf);
        assert.deepEqual(states, ["RUNNING", "RUNNING", "CANCELLING", "CANCELLED"]);
        assert.equal(stateOf((await stories.mixed()).final), "COMPLETED");
        assert.equal(stateOf((await stories.faulty()).final), "FAILED");
      },
    ),
    strong.http(
      "12-parameters",
      "No text at the top of a batch has a name that switches its code paths",
      async ({ stories }) => {
        for (const { final } of [await stories.clean(), await stories.faulty()]) {
          assert.deepEqual(
            Object.keys(final).filter((key) => RISKY_KEYS.includes(key)),
            [],
          );
        }
      },
    ),
    strong.http(
      "12-duplicate-keys",
      "No key of an answer stands there twice",
      async ({ main, stories }) => {
        const { text, json } = await main.get(`/v1/batches/${(await stories.clean()).final.id}`);
        const keys = text.match(/"\w+":/g) ?? [];
        assert.equal(keys.length, JSON.stringify(json).match(/"\w+":/g)?.length);
      },
    ),
    strong.http(
      "12-ascii",
      "JSON is ASCII: other characters are escaped, in answers and in errors",
      async ({ main }) => {
        const metadata = { name: "Ünïcode \u{1f600} \u2028" };
        const created = await main.create("file-x", { metadata });
        assert.ok(isAscii(created.text));
        assert.deepEqual(accepted(created)["metadata"], metadata);
        assert.ok(isAscii((await main.get("/v1/files/ä\u{1f600}")).text));
      },
    ),
    strong.raw(
      "12-content-length",
      "Small answers have a Content-Length and are not chunked",
      async (context) => {
        const { headers, body } = await ask(context.main, "GET", "/openai/v1/batches?limit=1");
        assert.equal(headers["content-length"], String(body.length));
        assert.equal(headers["transfer-encoding"], undefined);
      },
    ),
    strong.raw("12-no-compression", "Nothing is compressed unless asked for", async ({ main }) => {
      const { headers } = await ask(main, "GET", "/openai/v1/files");
      assert.equal(headers["content-encoding"], undefined);
    }),
    strong.raw(
      "12-errors",
      "A refusal is one line of JSON with a status that ML Commons knows, never a redirect",
      async ({ main }) => {
        const answers = [
          await ask(main, "GET", "/openai/v1/batches/batch_x"),
          await ask(main, "GET", "/openai/v1/batches/x"),
          await ask(main, "POST", "/openai/v1/batches", "{"),
          await ask(main, "POST", "/openai/v1/batches", "{}"),
          await ask(main, "POST", "/openai/v1/embeddings", "{}"),
          await ask(main, "PUT", "/openai/v1/batches", "{}"),
          await ask(main, "GET", "/openai"),
        ];
        for (const { status, headers, body } of answers) {
          assert.ok(KNOWN_STATUSES.includes(status) && status >= 400, String(status));
          assert.equal(headers["content-type"], "application/json");
          assert.equal(body.includes("\n"), false);
          assert.ok("error" in (JSON.parse(body) as Json));
        }
      },
    ),
    strong.raw(
      "12-no-auth",
      "A server without keys asks for none, as version 2.19.0 needs",
      async ({ main }) => {
        const answer = await rawRequest(
          main.url,
          "GET /openai/v1/batches HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n",
        );
        assert.equal(answer.status, 200);
      },
    ),
    strong.raw(
      "12-idle",
      "A connection is kept for at least 65 seconds between calls",
      async ({ main }) => {
        const { headers } = await ask(main, "GET", "/openai/v1/batches?limit=1");
        const seconds = /timeout=(\d+)/.exec(headers["keep-alive"] ?? "")?.[1];
        assert.ok(Number(seconds) >= 65, `keep-alive: ${headers["keep-alive"]}`);
      },
    ),
    strong.http(
      "12-rows",
      "Rows are lines without a blank one, the whole answer in each as it came, and failed ones in the error file alone",
      async ({ main, stories }) => {
        const { output_file_id, error_file_id } = (await stories.mixed()).final;
        for (const text of [await main.text(output_file_id), await main.text(error_file_id)]) {
          assert.equal(text.split("\n").slice(0, -1).includes(""), false);
        }
        assert.equal((await main.text(output_file_id)).includes("bad-"), false);
      },
    ),
    strong.http(
      "12-input",
      "The input file of a batch stays there to be read",
      async ({ main, stories }) => {
        const { input_file_id } = (await stories.clean()).final;
        assert.equal((await main.get(`/v1/files/${input_file_id}/content`)).status, 200);
      },
    ),
    strong.test(
      "12-connectors",
      "Connectors as published take a batch from its creation to its end",
      {
        file: "test/http/opensearch.test.ts",
        title: "the calls of version 2.19, byte for byte",
      },
    ),
    strong.test("12-ingestion", "and their results become documents with embeddings", {
      file: "test/http/opensearch.test.ts",
      title: "lead from the upload to documents with embeddings",
    }),
  ],
};
