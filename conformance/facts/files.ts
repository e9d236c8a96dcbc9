/** Sections 2.2 to 2.5 and 7: the operations on existing files. */
import assert from "node:assert/strict";
import { accepted, idsOn, refused } from "../expect.ts";
import { type Section, strong, weak } from "../fact.ts";
import { line } from "../lines.ts";
import type { Server } from "../server.ts";

interface Dated {
  readonly id: string;
  readonly created_at: number;
}

const CONTENT = `${line("one")}\n`;

const newFile = async (server: Server, fields: Record<string, string> = {}): Promise<string> =>
  String(accepted(await server.sendFile(CONTENT, fields))["id"]);

const noSuchFile = (id: string) => ({
  status: 404,
  message: `No such File object: ${id}`,
  param: "id",
});

export const listFiles: Section = {
  number: "2.2",
  title: "GET /v1/files",
  facts: [
    strong.http("2.2-newest-first", "The newest file comes first", async ({ main }) => {
      const ids = [await newFile(main), await newFile(main), await newFile(main)];
      assert.deepEqual(idsOn(await listOf(main, "?limit=3")), ids.toReversed());
      assert.deepEqual(idsOn(await listOf(main, "?limit=3&order=desc")), ids.toReversed());
    }),
    strong.http("2.2-order", "`order=asc` puts the oldest first", async ({ main }) => {
      const ids = [await newFile(main), await newFile(main), await newFile(main)];
      const list = (await listOf(main, "?order=asc")) as { data: Dated[] };
      // Files that are made at the same time, as the results of batches are, have no order between them.
      const data = list.data.filter(({ id }) => ids.includes(id));
      assert.deepEqual(idsOn({ data }), ids);
      const times = data.map(({ created_at }) => created_at);
      assert.deepEqual(
        times,
        times.toSorted((a, b) => a - b),
      );
    }),
    strong.http("2.2-purpose", "`purpose` narrows the list", async ({ main }) => {
      const id = await newFile(main, { purpose: "vision" });
      const { data } = (await listOf(main, "?purpose=vision")) as { data: { purpose: string }[] };
      assert.ok(data.every(({ purpose }) => purpose === "vision"));
      assert.equal(idsOn(await listOf(main, "?purpose=vision"))[0], id);
    }),
    strong.http("2.2-after", "`after` goes on behind that file", async ({ main }) => {
      const [first, second] = [await newFile(main), await newFile(main)];
      assert.deepEqual(idsOn(await listOf(main, `?limit=1&after=${second}`)), [first]);
    }),
    strong.http("2.2-limit", "`limit` may be 1 to 10000", async ({ main }) => {
      assert.equal(idsOn(await listOf(main, "?limit=1")).length, 1);
      assert.ok(idsOn(await listOf(main, "?limit=10000")).length > 1);
    }),
    strong.http(
      "2.2-default-limit",
      "Without `limit` far more than the twenty of other lists come",
      async ({ main }) => {
        for (let i = 0; i < 25; i++) await newFile(main);
        const page = await listOf(main, "");
        assert.ok(idsOn(page).length >= 25);
        assert.equal(page["has_more"], false);
      },
    ),
    weak.http(
      "2.2-limit-range",
      "Another `limit`: 400 `limit must be between 1 and 10000.`",
      async ({ main }) => {
        for (const limit of ["0", "-1", "10001"]) {
          refused(await main.get(`/v1/files?limit=${limit}`), {
            status: 400,
            message: "limit must be between 1 and 10000.",
          });
        }
      },
    ),
    weak.http("2.2-after-unknown", "An unknown `after`: 404, param `after`", async ({ main }) => {
      const answer = await main.get("/v1/files?after=file-x");
      refused(answer, { status: 404, message: "No such File object: file-x", param: "after" });
    }),
  ],
};

const listOf = async (main: Server, query: string) => accepted(await main.get(`/v1/files${query}`));

export const oneFile: Section = {
  number: "2.3",
  title: "GET and DELETE /v1/files/{id}",
  facts: [
    strong.http("2.3-get", "The file is answered as at its upload", async ({ main }) => {
      const uploaded = accepted(await main.sendFile(CONTENT));
      assert.deepEqual(accepted(await main.get(`/v1/files/${uploaded["id"]}`)), uploaded);
    }),
    strong.http(
      "2.3-unknown",
      "An unknown id: 404 `No such File object: …`, param `id`",
      async ({ main }) => {
        refused(await main.get("/v1/files/file-abc"), noSuchFile("file-abc"));
      },
    ),
    strong.http(
      "2.4-delete",
      "A deleted file is gone from every route and every list",
      async ({ main }) => {
        const id = await newFile(main);
        assert.equal((await main.call("DELETE", `/v1/files/${id}`)).json["deleted"], true);
        refused(await main.get(`/v1/files/${id}`), noSuchFile(id));
        refused(await main.get(`/v1/files/${id}/content`), noSuchFile(id));
        refused(await main.call("DELETE", `/v1/files/${id}`), noSuchFile(id));
        assert.equal(idsOn(await listOf(main, "")).includes(id), false);
      },
    ),
    strong.http("2.4-unknown", "Deleting an unknown id: the same 404", async ({ main }) => {
      refused(await main.call("DELETE", "/v1/files/file-abc"), noSuchFile("file-abc"));
    }),
    strong.http(
      "2.4-delete-input",
      "Input that is deleted before it is validated fails the batch with `Cannot find file`",
      async ({ stories }) => {
        const { status, errors, input_file_id: id } = await stories.deletedInput();
        assert.equal(status, "failed");
        const { data } = errors as { data: { message: string; code: string }[] };
        assert.match(data[0]?.message ?? "", new RegExp(`^Cannot find file ${id}, or `));
      },
    ),
    strong.http(
      "2.4-delete-output",
      "A deleted output file leaves its id in the batch",
      async ({ main }) => {
        const { id, output_file_id } = await main.run([line("one")]);
        accepted(await main.call("DELETE", `/v1/files/${output_file_id}`));
        assert.equal((await main.batch(id)).output_file_id, output_file_id);
      },
    ),
  ],
};

export const content: Section = {
  number: "2.5",
  title: "GET /v1/files/{id}/content",
  facts: [
    strong.http("2.5-bytes", "The bytes come back as they were sent", async ({ main }) => {
      const odd = `${CONTENT}\r\n  {"π": "\\u00e9"}  \n\n`;
      const { id } = accepted(await main.sendFile(odd));
      assert.equal((await main.get(`/v1/files/${id}/content`)).text, odd);
    }),
    strong.http("2.5-type", "`Content-Type` is `application/octet-stream`", async ({ main }) => {
      const { headers } = await main.get(`/v1/files/${await newFile(main)}/content`);
      assert.equal(headers.get("content-type"), "application/octet-stream");
    }),
    strong.http(
      "2.5-disposition",
      '`Content-Disposition` is `attachment; filename="…"`',
      async ({ main }) => {
        const id = await newFile(main, { filename: "name.jsonl" });
        const { headers } = await main.get(`/v1/files/${id}/content`);
        assert.equal(headers.get("content-disposition"), 'attachment; filename="name.jsonl"');
      },
    ),
    strong.http(
      "2.5-accept",
      "Whatever `Accept` says, `application/binary` too, there is no 406",
      async ({ main }) => {
        const id = await newFile(main);
        for (const accept of ["application/binary", "text/html", "image/png;q=0.1"]) {
          assert.equal((await main.get(`/v1/files/${id}/content`, { accept })).status, 200);
        }
      },
    ),
    strong.http(
      "2.5-unknown",
      "An unknown id: 404 `No such File object: …`, param `id`",
      async ({ main }) => {
        refused(await main.get("/v1/files/file-abc/content"), noSuchFile("file-abc"));
      },
    ),
    strong.http(
      "2.5-readable",
      "Purposes `batch`, `batch_output` and `fine-tune` can be read",
      async ({ main, stories }) => {
        const { output_file_id } = (await stories.clean()).final;
        const ids = [
          await newFile(main),
          await newFile(main, { purpose: "fine-tune" }),
          output_file_id,
        ];
        for (const id of ids) assert.equal((await main.get(`/v1/files/${id}/content`)).status, 200);
      },
    ),
    strong.http(
      "2.5-unreadable",
      "Purposes `assistants`, `user_data`, `vision` and `evals` cannot: 400 `Not allowed to download files of purpose: …`",
      async ({ main }) => {
        for (const purpose of ["assistants", "user_data", "vision", "evals"]) {
          const id = await newFile(main, { purpose });
          refused(await main.get(`/v1/files/${id}/content`), {
            status: 400,
            message: `Not allowed to download files of purpose: ${purpose}`,
          });
        }
      },
    ),
  ],
};

export const fileSemantics: Section = {
  number: "7",
  title: "Files semantics",
  facts: [
    weak.http(
      "7-purpose",
      "Input of another purpose fails the batch: `invalid_request`, param `file_id`",
      async ({ main }) => {
        const id = await newFile(main, { purpose: "user_data" });
        const { status, errors } = await main.ended(String((await main.create(id)).json["id"]));
        assert.equal(status, "failed");
        const { data } = errors as { data: Record<string, unknown>[] };
        assert.deepEqual(
          data.map(({ code, param, line }) => ({ code, param, line })),
          [{ code: "invalid_request", param: "file_id", line: null }],
        );
      },
    ),
    strong.http("7-reuse", "One input file can feed several batches", async ({ main }) => {
      const id = await newFile(main);
      const created = [await main.create(id), await main.create(id)].map(({ json }) => json);
      for (const { id: batch, input_file_id } of created) {
        assert.equal(input_file_id, id);
        assert.equal((await main.ended(String(batch))).status, "completed");
      }
    }),
    strong.http(
      "7-projects",
      "A file of another project is treated like an unknown id",
      async ({ keyed }) => {
        const id = await newFile(keyed);
        accepted(await keyed.get(`/v1/files/${id}`));
        const blue = { authorization: "Bearer sk-conformance-blue-0002" };
        refused(await keyed.get(`/v1/files/${id}`, blue), noSuchFile(id));
      },
    ),
    weak.test("7-expired", "After it expires a file is treated like an unknown id", {
      file: "test/engine/housekeeping/expiry.test.ts",
      title: "a file is gone at the instant it expires, before any request has looked for it",
    }),
    weak.test(
      "7-expired-input",
      "A batch of an expired file fails as if there had never been one",
      {
        file: "test/engine/housekeeping/expiry.test.ts",
        title: "a batch of an expired file fails as if there had never been one",
      },
    ),
  ],
};
