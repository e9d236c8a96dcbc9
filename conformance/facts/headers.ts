/** Sections 10.1 and 10.2: the headers of answers and of requests. */
import assert from "node:assert/strict";
import { createReadStream, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toFile } from "openai";
import {
  BOUNDARY,
  multipart,
  RawConnection,
  rawRequest,
  uploadRequest,
} from "../../test/support/raw-http.ts";
import { accepted, refused } from "../expect.ts";
import { type Section, strong, weak } from "../fact.ts";
import { line } from "../lines.ts";
import type { Json, Server } from "../server.ts";

const CONTENT = `${line("one")}\n`;

const CREATE = {
  input_file_id: "file-x",
  endpoint: "/v1/embeddings",
  completion_window: "24h",
};

const ROUTES: readonly (readonly [method: string, path: string])[] = [
  ["GET", "/v1/files"],
  ["GET", "/v1/batches"],
  ["GET", "/v1/models"],
  ["GET", "/v1/files/file-x"],
  ["POST", "/v1/batches"],
  ["DELETE", "/v1/batches"],
  ["GET", "/v1/nowhere"],
  ["GET", "/nowhere"],
  ["GET", "/health"],
];

/** Creates a batch that waits for an answer. The check must cancel it. */
async function cancellable(main: Server): Promise<string> {
  const { id } = await main.submit([line("slow", "[[hang]]")]);
  return id;
}

const request = (lines: readonly string[], body = "") => [...lines, "", body].join("\r\n");

async function cancelsWith(main: Server, headers: readonly string[], body = ""): Promise<void> {
  const id = await cancellable(main);
  const start = [`POST /v1/batches/${id}/cancel HTTP/1.1`, "Host: localhost"];
  const answer = await rawRequest(main.url, request([...start, ...headers], body));
  assert.equal(answer.status, 200, answer.body);
  assert.equal((JSON.parse(answer.body) as Json)["status"], "cancelling");
}

/** Returns the file that an upload by hand has made. */
async function stored(main: Server, upload: string): Promise<Json> {
  const { status, body } = await rawRequest(main.url, upload);
  assert.equal(status, 200, body);
  return JSON.parse(body) as Json;
}

export const responseHeaders: Section = {
  number: "10.1",
  title: "Response headers",
  facts: [
    strong.http(
      "10.1-json",
      "`Content-Type` is `application/json`, without a charset, on every JSON answer",
      async ({ main }) => {
        for (const [method, path] of ROUTES) {
          const { headers } = await main.call(method, path);
          assert.equal(headers.get("content-type"), "application/json", `${method} ${path}`);
        }
      },
    ),
    strong.http(
      "10.1-request-id",
      "`x-request-id` is `req_` and 32 hexadecimal digits on every answer, each time another",
      async ({ main }) => {
        const ids: string[] = [];
        for (const [method, path] of ROUTES) {
          const id = (await main.call(method, path)).headers.get("x-request-id") ?? "";
          assert.match(id, /^req_[0-9a-f]{32}$/);
          ids.push(id);
        }
        assert.equal(new Set(ids).size, ids.length);
      },
    ),
    strong.http("10.1-request-id-download", "also on downloads", async ({ main }) => {
      const { id } = accepted(await main.sendFile(CONTENT));
      const { headers } = await main.get(`/v1/files/${id}/content`);
      assert.match(headers.get("x-request-id") ?? "", /^req_[0-9a-f]{32}$/);
    }),
    strong.http("10.1-version", "`openai-version` is `2020-10-01`", async ({ main }) => {
      for (const [method, path] of ROUTES) {
        assert.equal((await main.call(method, path)).headers.get("openai-version"), "2020-10-01");
      }
    }),
    strong.http(
      "10.1-processing-ms",
      "`openai-processing-ms` is a whole number",
      async ({ main }) => {
        for (const [method, path] of ROUTES) {
          const { headers } = await main.call(method, path);
          assert.match(headers.get("openai-processing-ms") ?? "", /^\d+$/);
        }
      },
    ),
    strong.http(
      "10.1-nosniff",
      "`x-content-type-options` is `nosniff`, also on downloads",
      async ({ main }) => {
        const { id } = accepted(await main.sendFile(CONTENT));
        for (const [method, path] of [...ROUTES, ["GET", `/v1/files/${id}/content`] as const]) {
          const { headers } = await main.call(method, path);
          assert.equal(headers.get("x-content-type-options"), "nosniff", `${method} ${path}`);
        }
      },
    ),
    strong.raw("10.1-keep-alive", "Connections are kept open", async ({ main }) => {
      const answer = await rawRequest(main.url, request(["GET /v1/files HTTP/1.1", "Host: a"]));
      assert.match(answer.headers["connection"] ?? "keep-alive", /keep-alive/i);
    }),
  ],
};

export const clientRequests: Section = {
  number: "10.2",
  title: "What clients send",
  facts: [
    strong.http(
      "10.2-stainless",
      "`x-stainless-*`, `OpenAI-Organization` and `OpenAI-Project` headers change nothing",
      async ({ main }) => {
        const headers = {
          "x-stainless-lang": "python",
          "x-stainless-retry-count": "2",
          "x-stainless-read-timeout": "600",
          "openai-organization": "org-x",
          "openai-project": "proj_y",
        };
        accepted(await main.get("/v1/batches", headers));
      },
    ),
    strong.http(
      "10.2-no-idempotency",
      "Without an `Idempotency-Key` the same create makes two batches",
      async ({ main }) => {
        const [first, second] = [await main.create("file-x"), await main.create("file-x")];
        assert.notEqual(accepted(first)["id"], accepted(second)["id"]);
      },
    ),
    strong.http(
      "10.2-idempotency",
      "With one it makes one, and answers the same again",
      async ({ main }) => {
        const headers = { "idempotency-key": "conformance-1" };
        const first = await main.post("/v1/batches", CREATE, headers);
        const second = await main.post("/v1/batches", CREATE, headers);
        assert.deepEqual(accepted(second), accepted(first));
        assert.equal(second.headers.get("idempotent-replayed"), "true");
      },
    ),
    weak.http(
      "10.2-idempotency-reused",
      "The same key with another request: 422, param `Idempotency-Key`",
      async ({ main }) => {
        const headers = { "idempotency-key": "conformance-2" };
        accepted(await main.post("/v1/batches", CREATE, headers));
        const other = { ...CREATE, metadata: { a: "b" } };
        refused(await main.post("/v1/batches", other, headers), {
          status: 422,
          message: /'conformance-2'/,
          param: "Idempotency-Key",
          code: "idempotency_key_reused",
        });
      },
    ),
    weak.test(
      "10.2-idempotency-in-use",
      "The same key while the first request is carried out: 409 that asks to come again",
      {
        file: "test/http/idempotency.test.ts",
        title: "while a request is under way, its repetition is asked to come again",
      },
    ),
    strong.raw(
      "10.2-cancel-python",
      "Cancel with a JSON content type and no body at all",
      ({ main }) =>
        cancelsWith(main, ["Content-Type: application/json", "Accept: application/json"]),
    ),
    strong.raw("10.2-cancel-node", "Cancel without a content type", ({ main }) =>
      cancelsWith(main, []),
    ),
    strong.raw(
      "10.2-cancel-ruby",
      "Cancel with a JSON content type and `Content-Length: 0`",
      ({ main }) => cancelsWith(main, ["Content-Type: application/json", "Content-Length: 0"]),
    ),
    strong.raw("10.2-get-json", "A GET with a JSON content type", async ({ main }) => {
      const lines = ["GET /v1/batches HTTP/1.1", "Host: a", "Content-Type: application/json"];
      assert.equal((await rawRequest(main.url, request(lines))).status, 200);
    }),
    strong.raw(
      "10.2-delete-json",
      "A DELETE with a JSON content type and no body",
      async ({ main }) => {
        const { id } = accepted(await main.sendFile(CONTENT));
        const lines = [
          `DELETE /v1/files/${id} HTTP/1.1`,
          "Host: a",
          "Content-Type: application/json",
        ];
        assert.equal((await rawRequest(main.url, request(lines))).status, 200);
      },
    ),
    strong.node(
      "10.2-node-stream",
      "The Node client's read stream: the file first, chunked, no Content-Length",
      async ({ main, folder }) => {
        const path = join(folder, "stream.jsonl");
        writeFileSync(path, CONTENT.repeat(5_000));
        const file = await main.openai.files.create({
          file: createReadStream(path),
          purpose: "batch",
        });
        assert.deepEqual([file.filename, file.bytes], ["stream.jsonl", CONTENT.length * 5_000]);
      },
    ),
    strong.node(
      "10.2-node-file",
      "The Node client's `File`, with `expires_after`",
      async ({ main }) => {
        const file = await main.openai.files.create({
          file: new File([CONTENT], "f.jsonl"),
          purpose: "batch",
          expires_after: { anchor: "created_at", seconds: 3_600 },
        });
        assert.equal(file.expires_at, file.created_at + 3_600);
      },
    ),
    strong.node(
      "10.2-node-unnamed",
      "The Node client's bytes without a name are named `unknown_file`",
      async ({ main }) => {
        const file = await main.openai.files.create({
          file: await toFile(Buffer.from(CONTENT)),
          purpose: "batch",
        });
        assert.equal(file.filename, "unknown_file");
      },
    ),
    strong.python("10.2-python-path", "The Python client's path: the file last", "upload_path"),
    strong.python(
      "10.2-python-bytes",
      "The Python client's raw bytes are named `upload`",
      "upload_bytes",
    ),
    strong.python("10.2-python-memory", "The Python client's `BytesIO`", "uploads_from_memory"),
    strong.python("10.2-python-expiry", "The Python client's `expires_after`", "upload_expiry"),
    strong.python("10.2-python-cancel", "The Python client's cancel", "cancel"),
    strong.python(
      "10.2-python-delete",
      "The Python client's delete, and what it says of a file that is gone",
      "delete",
    ),
    strong.raw(
      "10.2-ruby-multipart",
      "The Ruby client's part: an empty `Content-Type`, and `Content-Transfer-Encoding: binary`",
      async ({ main }) => {
        const headers = [
          "Content-Type: ",
          "Content-Transfer-Encoding: binary",
          `Content-Length: ${CONTENT.length}`,
        ];
        const body = multipart([
          { name: "file", filename: "r.jsonl", content: CONTENT, headers },
          { name: "purpose", content: "batch" },
        ]);
        const { status, body: text } = await rawRequest(main.url, uploadRequest(body));
        assert.equal(status, 200, text);
        assert.equal((JSON.parse(text) as Json)["bytes"], CONTENT.length);
      },
    ),
    weak.raw(
      "10.2-dotnet-multipart",
      "The form of .NET: names without quotes, a boundary in quotes, and the name of the file twice, the exact one as `filename*`",
      async ({ main }) => {
        const body = [
          `--${BOUNDARY}`,
          "Content-Type: text/plain; charset=utf-8",
          "Content-Disposition: form-data; name=purpose",
          "",
          "batch",
          `--${BOUNDARY}`,
          "Content-Type: application/octet-stream",
          "Content-Disposition: form-data; name=file; filename=\"=?utf-8?B?w7wuanNvbmw=?=\"; filename*=utf-8''%C3%BC.jsonl",
          "",
          `${CONTENT}\r\n--${BOUNDARY}--\r\n`,
        ].join("\r\n");
        const type = `multipart/form-data; boundary="${BOUNDARY}"`;
        const file = await stored(main, uploadRequest(body, { type }));
        assert.deepEqual([file["filename"], file["bytes"]], ["ü.jsonl", CONTENT.length]);
      },
    ),
    weak.raw(
      "10.2-rust-multipart",
      "The form of Rust's `reqwest`: a file whose name is not ASCII has `filename*` alone",
      async ({ main }) => {
        const body = multipart([
          { name: "purpose", content: "batch" },
          { name: "file", content: CONTENT },
        ]).replace('name="file"', `name="file"; filename*=utf-8''my%20%C3%BC.jsonl`);
        assert.equal((await stored(main, uploadRequest(body)))["filename"], "my ü.jsonl");
      },
    ),
    strong.raw(
      "10.2-curl-unnamed",
      "The form of `curl -F 'file=<-'`: a file without a name is named `upload`",
      async ({ main }) => {
        const body = multipart([
          { name: "purpose", content: "batch" },
          { name: "file", content: CONTENT },
        ]);
        assert.equal((await stored(main, uploadRequest(body)))["filename"], "upload");
      },
    ),
    strong.raw(
      "10.2-java-h2c",
      "The offer of HTTP/2 in each request of Java's `HttpClient` is ignored, and its connection goes on",
      async ({ main }) => {
        const offer = [
          "Connection: Upgrade, HTTP2-Settings",
          "Upgrade: h2c",
          "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        ];
        const body = multipart([
          { name: "purpose", content: "batch" },
          { name: "file", filename: "j.jsonl", content: CONTENT },
        ]);
        using connection = await RawConnection.open(main.url);
        const [start = "", ...head] = uploadRequest(body).split("\r\n");
        for (let i = 0; i < 2; i++) {
          connection.send([start, ...offer, ...head].join("\r\n"));
          assert.equal((await connection.answer()).status, 200);
        }
      },
    ),
    strong.raw(
      "10.2-expect",
      "`Expect: 100-continue`, as curl sends it with large files, is answered with 100 before the body comes",
      async ({ main }) => {
        const body = multipart([
          { name: "purpose", content: "batch" },
          { name: "file", filename: "e.jsonl", content: CONTENT },
        ]);
        using connection = await RawConnection.open(main.url);
        const head = uploadRequest("", { length: body.length });
        connection.send(head.replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n"));
        assert.equal((await connection.answer()).status, 100);
        connection.send(body);
        assert.equal((await connection.answer()).status, 200);
      },
    ),
    strong.raw(
      "10.2-chunked",
      "An upload in small chunks without a Content-Length",
      async ({ main }) => {
        const body = multipart([
          { name: "file", filename: "c.jsonl", content: CONTENT },
          { name: "purpose", content: "batch" },
        ]);
        const chunks = body
          .match(/[\s\S]/g)
          ?.map((piece) => `${piece.length.toString(16)}\r\n${piece}\r\n`);
        const head = [
          "POST /v1/files HTTP/1.1",
          "Host: a",
          "Transfer-Encoding: chunked",
          `Content-Type: multipart/form-data; boundary=${BOUNDARY}`,
        ];
        const answer = await rawRequest(main.url, request(head, `${chunks?.join("")}0\r\n\r\n`));
        assert.equal(answer.status, 200, answer.body);
      },
    ),
    strong.http("10.2-key-order", "The keys of a body may come in any order", async ({ main }) => {
      accepted(
        await main.post("/v1/batches", {
          completion_window: "24h",
          endpoint: "/v1/embeddings",
          input_file_id: "file-x",
        }),
      );
    }),
  ],
};
