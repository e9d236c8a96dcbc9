/** Sections 1.5 to 1.7: uploads and their parts, models, and errors. */
import assert from "node:assert/strict";
import { accepted, isSeconds } from "../expect.ts";
import { type Section, strong } from "../fact.ts";
import type { Json, Server } from "../server.ts";

const UPLOAD_KEYS = [
  "id",
  "object",
  "bytes",
  "created_at",
  "filename",
  "purpose",
  "status",
  "expires_at",
  "file",
];

const newUpload = async (main: Server): Promise<Json> =>
  accepted(
    await main.post("/v1/uploads", {
      filename: "large.jsonl",
      purpose: "batch",
      bytes: 10,
      mime_type: "text/jsonl",
    }),
  );

export const upload: Section = {
  number: "1.5",
  title: "Upload and Part",
  facts: [
    strong.http(
      "1.5-keys",
      "An upload has these keys, always: `id`, `object`, `bytes`, `created_at`, `filename`, `purpose`, `status`, `expires_at`, `file`",
      async ({ main }) => {
        assert.deepEqual(Object.keys(await newUpload(main)).sort(), UPLOAD_KEYS.toSorted());
      },
    ),
    strong.http("1.5-id", "`id` begins with `upload_`", async ({ main }) => {
      assert.match(String((await newUpload(main))["id"]), /^upload_\w+$/);
    }),
    strong.http(
      "1.5-new",
      "A new upload is `pending`, its `object` is `upload`, its `file` null",
      async ({ main }) => {
        const { status, object, file } = await newUpload(main);
        assert.deepEqual(
          { status, object, file },
          { status: "pending", object: "upload", file: null },
        );
      },
    ),
    strong.http("1.5-expires-at", "`expires_at` is `created_at` + 3600", async ({ main }) => {
      const { created_at, expires_at } = await newUpload(main);
      assert.ok(isSeconds(created_at));
      assert.equal(expires_at, Number(created_at) + 3600);
    }),
    strong.http(
      "1.5-part",
      "A part is `{id, object, created_at, upload_id}`, its `id` begins with `part_`, its `object` is `upload.part`",
      async ({ main }) => {
        const { id: upload_id } = await newUpload(main);
        const form = new FormData();
        form.set("data", new Blob(["0123456789"]));
        const part = accepted(
          await main.call("POST", `/v1/uploads/${upload_id}/parts`, { body: form }),
        );
        assert.match(String(part["id"]), /^part_\w+$/);
        assert.ok(isSeconds(part["created_at"]));
        assert.deepEqual(part, {
          id: part["id"],
          object: "upload.part",
          created_at: part["created_at"],
          upload_id,
        });
      },
    ),
  ],
};

export const model: Section = {
  number: "1.6",
  title: "Model",
  facts: [
    strong.http(
      "1.6-keys",
      "A model has `id`, `object: model`, `created` in Unix seconds and `owned_by`",
      async ({ main }) => {
        const { data } = accepted(await main.get("/v1/models")) as { data: Json[] };
        assert.ok(data.length > 0);
        for (const { id, object, created, owned_by } of data) {
          assert.deepEqual([typeof id, object, typeof owned_by], ["string", "model", "string"]);
          assert.ok(isSeconds(created));
        }
      },
    ),
    strong.http(
      "1.6-shutdown-date",
      "`shutdown_date` may be left out; if it is there it is a date or null",
      async ({ main }) => {
        const { data } = accepted(await main.get("/v1/models")) as { data: Json[] };
        for (const { shutdown_date = null } of data) {
          if (shutdown_date !== null) assert.match(String(shutdown_date), /^\d{4}-\d\d-\d\d$/);
        }
      },
    ),
  ],
};

export const errorEnvelope: Section = {
  number: "1.7",
  title: "Error envelope",
  facts: [
    strong.http(
      "1.7-keys",
      'An error is `{"error":{…}}` with `message`, `type`, `param` and `code`, all four there',
      async ({ main }) => {
        for (const path of ["/v1/files/file-x", "/v1/nowhere", "/v1/batches/x", "/v1/models/x"]) {
          const { json } = await main.get(path);
          assert.deepEqual(Object.keys(json), ["error"]);
          const keys = Object.keys(json["error"] as Json).sort();
          assert.deepEqual(keys, ["code", "message", "param", "type"]);
        }
      },
    ),
    strong.http(
      "1.7-type",
      "`type` is `invalid_request_error` for what the client got wrong",
      async ({ main }) => {
        for (const path of ["/v1/files/file-x", "/v1/nowhere", "/v1/batches/x", "/v1/models/x"]) {
          const { error } = (await main.get(path)).json as { error: Json };
          assert.equal(error["type"], "invalid_request_error");
        }
      },
    ),
  ],
};
