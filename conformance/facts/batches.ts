/** Sections 2.7 to 2.12: existing batches, models, and the errors of all routes. */
import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { rawRequest } from "../../test/support/raw-http.ts";
import { KEYS } from "../context.ts";
import { accepted, idsOn, refused } from "../expect.ts";
import { type Section, strong, weak } from "../fact.ts";
import { ALIAS } from "../lines.ts";
import type { Server } from "../server.ts";

const newBatches = async (server: Server, count: number): Promise<string[]> => {
  const ids: string[] = [];
  for (let i = 0; i < count; i++) ids.push(String((await server.create("file-x")).json["id"]));
  return ids;
};

const page = async (server: Server, query: string) =>
  accepted(await server.get(`/v1/batches${query}`));

export const listBatches: Section = {
  number: "2.7",
  title: "GET /v1/batches",
  facts: [
    strong.http("2.7-newest-first", "The newest batch comes first", async ({ keyed }) => {
      const ids = await newBatches(keyed, 3);
      assert.deepEqual(idsOn(await page(keyed, "?limit=3")), ids.toReversed());
    }),
    strong.http("2.7-default-limit", "Without `limit` twenty come", async ({ keyed }) => {
      await newBatches(keyed, 21);
      const { data, has_more } = await page(keyed, "");
      assert.equal((data as unknown[]).length, 20);
      assert.equal(has_more, true);
    }),
    strong.http("2.7-limit", "`limit` may be 1 to 100", async ({ keyed }) => {
      await newBatches(keyed, 2);
      assert.equal(idsOn(await page(keyed, "?limit=1")).length, 1);
      assert.ok(idsOn(await page(keyed, "?limit=100")).length > 20);
    }),
    strong.http(
      "2.7-after",
      "`after` goes on behind that batch, without a gap or a repetition",
      async ({ keyed }) => {
        await newBatches(keyed, 5);
        const all = idsOn(await page(keyed, "?limit=100"));
        const followed: string[] = [];
        for (let query = "?limit=2"; ; query = `?limit=2&after=${followed.at(-1)}`) {
          const { has_more, ...rest } = await page(keyed, query);
          followed.push(...idsOn(rest));
          if (has_more === false) break;
        }
        assert.deepEqual(followed, all);
      },
    ),
    weak.http(
      "2.7-limit-above",
      "`limit=101`: 400, param `limit`, code `integer_above_max_value`",
      async ({ main }) => {
        refused(await main.get("/v1/batches?limit=101"), {
          status: 400,
          message:
            "Invalid 'limit': integer above maximum value. Expected a value <= 100, but got 101 instead.",
          param: "limit",
          code: "integer_above_max_value",
        });
      },
    ),
    weak.http(
      "2.7-limit-below",
      "`limit=-1`: 400, param `limit`, code `integer_below_min_value`",
      async ({ main }) => {
        refused(await main.get("/v1/batches?limit=-1"), {
          status: 400,
          message:
            "Invalid 'limit': integer below minimum value. Expected a value >= 0, but got -1 instead.",
          param: "limit",
          code: "integer_below_min_value",
        });
      },
    ),
    weak.http(
      "2.7-limit-type",
      "`limit=abc`: 400, param `limit`, code `invalid_type`",
      async ({ main }) => {
        refused(await main.get("/v1/batches?limit=abc"), {
          status: 400,
          message: "Invalid type for 'limit': expected an integer, but got a string instead.",
          param: "limit",
          code: "invalid_type",
        });
      },
    ),
    weak.http("2.7-limit-zero", "`limit=0`: 200 and an empty page", async ({ main }) => {
      assert.deepEqual(idsOn(await page(main, "?limit=0")), []);
    }),
    strong.http("2.7-projects", "Batches of another project are not listed", async ({ keyed }) => {
      await newBatches(keyed, 1);
      const blue = await keyed.get("/v1/batches", { authorization: `Bearer ${KEYS.blue}` });
      const { data } = await page(keyed, "");
      const reds = (data as { id: string }[]).map(({ id }) => id);
      assert.deepEqual(
        idsOn(blue.json).filter((id) => reds.includes(id)),
        [],
      );
    }),
  ],
};

export const oneBatch: Section = {
  number: "2.8",
  title: "GET and cancel /v1/batches/{id}",
  facts: [
    strong.http(
      "2.8-get",
      "A batch that is final is answered the same each time",
      async ({ main, stories }) => {
        const { final } = await stories.clean();
        assert.deepEqual(accepted(await main.get(`/v1/batches/${final.id}`)), final);
      },
    ),
    strong.http(
      "2.8-unknown",
      "An unknown id: 404 `No batch found with id '…'.`, param and code null",
      async ({ main }) => {
        for (const id of ["batch_0123456789abcdef0123456789abcdef", "batch-nonexistent-xyz"]) {
          const message = `No batch found with id '${id}'.`;
          refused(await main.get(`/v1/batches/${id}`), { status: 404, message });
          refused(await main.call("POST", `/v1/batches/${id}/cancel`), { status: 404, message });
        }
      },
    ),
    strong.http(
      "2.8-bad-id",
      "An id that does not begin with `batch`: 400, param `batch_id`, code `invalid_value`",
      async ({ main }) => {
        const refusal = {
          status: 400,
          message: "Invalid 'batch_id': 'invalid'. Expected an ID that begins with 'batch'.",
          param: "batch_id",
          code: "invalid_value",
        };
        refused(await main.call("POST", "/v1/batches/invalid/cancel"), refusal);
        refused(await main.get("/v1/batches/invalid"), refusal);
      },
    ),
    strong.http("2.9-cancel", "Cancelling answers 200 with the batch", async ({ stories }) => {
      const { before, cancelling } = await stories.cancelledWhileRunning();
      assert.equal(accepted(cancelling)["id"], before.id);
    }),
  ],
};

export const models: Section = {
  number: "2.11",
  title: "GET /v1/models",
  facts: [
    strong.http(
      "2.11-list",
      "Models are listed under the names that clients use",
      async ({ main }) => {
        const ids = idsOn(accepted(await main.get("/v1/models")));
        for (const id of ["test-model", "org/model:tag", ALIAS]) assert.ok(ids.includes(id), id);
      },
    ),
    strong.http("2.11-get", "A model is found by its name", async ({ main }) => {
      assert.equal(accepted(await main.get("/v1/models/test-model"))["id"], "test-model");
    }),
    strong.node(
      "2.11-slashes",
      "A name with `/` and `:` is found percent-encoded",
      async ({ main }) => {
        assert.equal((await main.openai.models.retrieve("org/model:tag")).id, "org/model:tag");
      },
    ),
    strong.http("2.11-slashes-plain", "and as it stands", async ({ main }) => {
      assert.equal(accepted(await main.get("/v1/models/org/model:tag"))["id"], "org/model:tag");
    }),
    strong.http(
      "2.11-unknown",
      "An unknown model: 404 `The model '…' does not exist`, param `model`, code `model_not_found`",
      async ({ main }) => {
        refused(await main.get("/v1/models/ft:123"), {
          status: 404,
          message: "The model 'ft:123' does not exist",
          param: "model",
          code: "model_not_found",
        });
      },
    ),
    strong.http("2.11-delete", "Deleting an unknown model: the same 404", async ({ main }) => {
      refused(await main.call("DELETE", "/v1/models/ft:123"), {
        status: 404,
        message: "The model 'ft:123' does not exist",
        param: "model",
        code: "model_not_found",
      });
    }),
  ],
};

export const commonErrors: Section = {
  number: "2.12",
  title: "Errors of all routes",
  facts: [
    strong.http(
      "2.12-no-key",
      "No key: 401 `Missing bearer or basic authentication in header`",
      async ({ keyed }) => {
        const answer = await fetch(`${keyed.url}/v1/files`);
        refused(
          { status: answer.status, text: await answer.text() },
          {
            status: 401,
            message: "Missing bearer or basic authentication in header",
          },
        );
      },
    ),
    strong.http(
      "2.12-wrong-key",
      "A wrong key: 401 `Incorrect API key provided: …`, code `invalid_api_key`, and the key is masked",
      async ({ keyed }) => {
        const key = "sk-this-is-nobodys-key-at-all";
        const answer = await keyed.get("/v1/files", { authorization: `Bearer ${key}` });
        refused(answer, {
          status: 401,
          message: /^Incorrect API key provided: sk-t\*+-all\. /,
          code: "invalid_api_key",
        });
        assert.equal(answer.text.includes(key), false);
      },
    ),
    strong.http(
      "2.12-basic-key",
      "A key as the password of basic authentication, as `curl -u :KEY` sends it, is as good as a bearer token",
      async ({ keyed }) => {
        const authorization = `Basic ${btoa(`:${KEYS.red}`)}`;
        accepted(await keyed.get("/v1/files", { authorization }));
      },
    ),
    strong.http(
      "2.12-basic-routes",
      "A key is asked for on every route of the API",
      async ({ keyed }) => {
        for (const path of ["/v1/files", "/v1/batches", "/v1/models", "/v1/files/file-x/content"]) {
          assert.equal((await fetch(keyed.url + path)).status, 401, path);
        }
      },
    ),
    strong.http(
      "2.12-unknown-path",
      "An unknown path: 404 `Invalid URL (GET /v1/foo)`, param and code null",
      async ({ main }) => {
        refused(await main.get("/v1/foo"), { status: 404, message: "Invalid URL (GET /v1/foo)" });
      },
    ),
    strong.http(
      "2.12-wrong-method",
      "A wrong method: 405 `Not allowed to POST on /v1/models. …`, param and code null",
      async ({ main }) => {
        refused(await main.call("POST", "/v1/models"), {
          status: 405,
          message:
            "Not allowed to POST on /v1/models. (HINT: Perhaps you meant to use a different HTTP method?)",
        });
      },
    ),
    strong.http(
      "2.12-not-json",
      "A body that is not JSON: 400 `We could not parse the JSON body of your request. (HINT: …`",
      async ({ main }) => {
        for (const body of ["{", "", "not json", "{'a': 1}"]) {
          refused(await main.call("POST", "/v1/batches", { body }), {
            status: 400,
            message: /^We could not parse the JSON body of your request\. \(HINT: .*\)$/,
          });
        }
      },
    ),
    weak.http(
      "2.12-content-type",
      "JSON under another content type is read all the same",
      async ({ main }) => {
        const body = JSON.stringify({
          input_file_id: "file-x",
          endpoint: "/v1/embeddings",
          completion_window: "24h",
        });
        const headers = { "content-type": "text/plain" };
        accepted(await main.call("POST", "/v1/batches", { body, headers }));
      },
    ),
    weak.http(
      "2.12-file-as-json",
      "An upload that is no form: 400 that names the content type",
      async ({ main }) => {
        refused(await main.post("/v1/files", {}), { status: 400, message: /application\/json/ });
      },
    ),
    weak.http(
      "2.12-compressed",
      "A body under a `Content-Encoding`: 400 that names it, for JSON and for forms",
      async ({ main }) => {
        const form = { "content-type": "multipart/form-data; boundary=x" };
        for (const [path, type] of [
          ["/v1/batches", {}],
          ["/v1/files", form],
        ] as const) {
          const headers = { ...type, "content-encoding": "gzip" };
          refused(await main.call("POST", path, { body: gzipSync("{}"), headers }), {
            status: 400,
            message: /'Content-Encoding: gzip'/,
            param: "Content-Encoding",
          });
        }
      },
    ),
    weak.http(
      "2.12-body-too-large",
      "A JSON body beyond all measure: 413 in the envelope",
      async ({ main }) => {
        const answer = await main.post("/v1/batches", { foo: "x".repeat(2_000_000) });
        refused(answer, { status: 413, message: /larger than/ });
      },
    ),
    strong.raw(
      "2.12-no-html",
      "What is not even HTTP is refused in the envelope, not in HTML",
      async ({ main }) => {
        for (const text of [
          "GET / HTTP/9.9\r\n\r\n",
          "hello\r\n\r\n",
          "GET /v1/files HTTP/1.1\r\nno colon\r\n\r\n",
        ]) {
          const { status, headers, body } = await rawRequest(main.url, text);
          refused({ status, text: body }, { status: 400, message: /valid HTTP/ });
          assert.equal(headers["content-type"], "application/json");
        }
      },
    ),
    strong.test("2.12-server-error", "A fault of the server has the type `server_error`", {
      file: "test/http/app.test.ts",
      title: "is a 500 that tells the client only an id, under which the log has the cause",
    }),
  ],
};
