/** Section 8: files in parts. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { accepted, isSeconds, refused } from "../expect.ts";
import { type Section, strong, weak } from "../fact.ts";
import type { Json } from "../server.ts";
import {
  CONTENT,
  complete,
  completed,
  create,
  HALVES,
  partId,
  sendPart,
  withParts,
} from "./upload-calls.ts";
import { uploadRefusals } from "./upload-refusals.ts";

const MEBIBYTE = 1024 * 1024;

export const uploads: Section = {
  number: "8",
  title: "Uploads",
  facts: [
    strong.http(
      "8-create",
      "`POST /v1/uploads` takes `filename`, `purpose`, `bytes` and `mime_type`, and echoes the first three",
      async ({ main }) => {
        const { filename, purpose, bytes, status } = accepted(await create(main));
        assert.deepEqual(
          { filename, purpose, bytes, status },
          { filename: "large.jsonl", purpose: "batch", bytes: CONTENT.length, status: "pending" },
        );
      },
    ),
    weak.http(
      "8-filename",
      "`filename` loses its folders, as in `POST /v1/files`",
      async ({ main }) => {
        const { filename } = accepted(await create(main, { filename: "../in/large.jsonl" }));
        assert.equal(filename, "large.jsonl");
      },
    ),
    strong.http(
      "8-purposes",
      "All purposes of files are taken, `user_data` and `evals` too",
      async ({ main }) => {
        for (const purpose of [
          "assistants",
          "batch",
          "fine-tune",
          "vision",
          "user_data",
          "evals",
        ]) {
          assert.equal(accepted(await create(main, { purpose }))["purpose"], purpose);
        }
      },
    ),
    strong.http("8-mime-type", "`mime_type` is free", async ({ main }) => {
      for (const mime_type of ["text/jsonl", "txt", ""])
        accepted(await create(main, { mime_type }));
    }),
    strong.http("8-max-bytes", "8 GiB may be announced, and not a byte more", async ({ main }) => {
      const bytes = 8 * 1024 * MEBIBYTE;
      accepted(await create(main, { purpose: "user_data", bytes }));
      refused(await create(main, { purpose: "user_data", bytes: bytes + 1 }), {
        status: 400,
        message: /8589934592/,
        param: "bytes",
        code: "integer_above_max_value",
      });
    }),
    weak.http(
      "8-max-batch-bytes",
      "Batch input has the same limit as in one piece, 200 MiB: more is refused when it is announced",
      async ({ main }) => {
        const bytes = 200 * MEBIBYTE;
        accepted(await create(main, { bytes }));
        refused(await create(main, { bytes: bytes + 1 }), {
          status: 400,
          message: /209715200/,
          param: "bytes",
          code: "integer_above_max_value",
        });
      },
    ),
    strong.http(
      "8-expires-after",
      "`expires_after` belongs to the file that it will become",
      async ({ main }) => {
        const expires_after = { anchor: "created_at", seconds: 3_600 };
        const { file } = await completed(main, { expires_after });
        const { created_at, expires_at } = file as Json;
        assert.equal(expires_at, Number(created_at) + 3_600);
      },
    ),
    strong.http("8-parts", "Parts are taken one by one or side by side", async ({ main }) => {
      const id = String(accepted(await create(main))["id"]);
      const parts = await Promise.all(HALVES.map((half) => partId(main, id, half)));
      assert.equal(accepted(await complete(main, id, parts))["status"], "completed");
    }),
    strong.http(
      "8-part-size",
      "A part may have 67,108,864 bytes, and not one more",
      async ({ main }) => {
        const id = String(accepted(await create(main, { bytes: 1 }))["id"]);
        const bytes = new Uint8Array(64 * MEBIBYTE + 1);
        accepted(await sendPart(main, id, bytes.subarray(1)));
        refused(await sendPart(main, id, bytes), {
          status: 400,
          message: /67108864/,
          param: "data",
        });
      },
    ),
    strong.http(
      "8-complete",
      "`complete` with the ids of the parts answers the upload as `completed`, with its file",
      async ({ main }) => {
        const { status, file } = await completed(main);
        assert.equal(status, "completed");
        const { object, purpose, bytes, filename, created_at } = file as Json;
        assert.deepEqual(
          { object, purpose, bytes, filename },
          { object: "file", purpose: "batch", bytes: CONTENT.length, filename: "large.jsonl" },
        );
        assert.ok(isSeconds(created_at));
      },
    ),
    strong.http(
      "8-order",
      "The file has the parts in the order of `part_ids`",
      async ({ main }) => {
        const { id, parts } = await withParts(main, { purpose: "fine-tune" });
        const { file } = accepted(await complete(main, id, parts.toReversed()));
        const { text } = await main.get(`/v1/files/${(file as Json)["id"]}/content`);
        assert.equal(text, HALVES.toReversed().join(""));
      },
    ),
    strong.http(
      "8-file",
      "The file is one like any other: it is found, read, and runs as a batch",
      async ({ main }) => {
        const { file } = await completed(main);
        const { id } = file as { id: string };
        assert.deepEqual(accepted(await main.get(`/v1/files/${id}`)), file);
        assert.equal((await main.get(`/v1/files/${id}/content`)).text, CONTENT);
        const { json } = await main.create(id);
        assert.equal((await main.ended(String(json["id"]))).request_counts.completed, 2);
      },
    ),
    strong.http("8-md5", "A right `md5` is taken, a wrong one refused", async ({ main }) => {
      const { id, parts } = await withParts(main);
      const wrong = await complete(main, id, parts, { md5: "0".repeat(32) });
      refused(wrong, { status: 400, message: /md5/i, param: "md5" });
      const md5 = createHash("md5").update(CONTENT).digest("hex");
      assert.equal(accepted(await complete(main, id, parts, { md5 }))["status"], "completed");
    }),
    strong.http(
      "8-cancel",
      "`cancel`, without a body, answers the upload as `cancelled`",
      async ({ main }) => {
        const { id } = accepted(await create(main));
        const answer = await main.call("POST", `/v1/uploads/${id}/cancel`);
        assert.deepEqual([accepted(answer)["status"], answer.json["file"]], ["cancelled", null]);
      },
    ),
    strong.http(
      "8-empty",
      "An upload of nothing is completed with `part_ids: []`",
      async ({ main }) => {
        const { id } = accepted(await create(main, { bytes: 0, purpose: "user_data" }));
        const { file } = accepted(await complete(main, String(id), []));
        assert.equal((file as Json)["bytes"], 0);
      },
    ),
    ...uploadRefusals,
    strong.test(
      "8-expires",
      "An upload that is not completed within an hour is `expired`, and takes nothing more",
      {
        file: "test/http/uploads.test.ts",
        title: "by the clock takes nothing more",
      },
    ),
    strong.node("8-node", "The Node client uploads, completes and cancels", async ({ main }) => {
      const { openai } = main;
      const begin = () =>
        openai.uploads.create({
          filename: "n.jsonl",
          purpose: "batch",
          bytes: CONTENT.length,
          mime_type: "txt",
        });
      const { id } = await begin();
      const data = new File([CONTENT], "any-name");
      const part = await openai.uploads.parts.create(id, { data });
      const done = await openai.uploads.complete(id, { part_ids: [part.id] });
      assert.deepEqual([done.status, done.file?.bytes], ["completed", CONTENT.length]);
      assert.equal((await openai.uploads.cancel((await begin()).id)).status, "cancelled");
    }),
    strong.python(
      "8-python-chunked",
      "`upload_file_chunked` of the Python client uploads from a path and from memory",
      "upload_file_chunked",
    ),
    strong.python(
      "8-python-md5",
      "The Python client completes with a right `md5`, and is refused with a wrong one",
      "upload_with_md5",
    ),
    strong.python(
      "8-python-empty",
      "`upload_file_chunked` uploads nothing as `part_ids: []`",
      "upload_empty_file_chunked",
    ),
  ],
};
