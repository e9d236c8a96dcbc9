import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import { describe, expect, test } from "vitest";
import { UPLOAD_MAX_PARTS } from "../../src/contract/upload.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import {
  ask,
  clientOf,
  configWith,
  count,
  type ProjectServers,
  post,
  startProjectServers,
  together,
} from "../support/projects.ts";
import { multipart, type Part, RawConnection, rawRequest } from "../support/raw-http.ts";
import { startTestApi } from "../support/test-http.ts";
import { refusal, UploadClient } from "../support/upload-client.ts";

const postgres = forAllTests(await sharePostgres("parts of uploads"));
const api = forAllTests(await startTestApi());
const uploads = new UploadClient(api);

describe("a part", () => {
  const data = (content = "x"): Part => ({ name: "data", content, filename: "upload" });
  test.each<[string, Part[], string]>([
    ["without data", [], "'data' is a required property"],
    ["with two", [data(), data()], "Only one 'data' can be uploaded in a request."],
    [
      "under another name",
      [{ ...data(), name: "file" }],
      "Additional properties are not allowed ('file' was unexpected)",
    ],
    [
      "with something beside it",
      [data(), { name: "purpose", content: "batch" }],
      "Additional properties are not allowed ('purpose' was unexpected)",
    ],
  ])("%s is refused and leaves nothing", async (_case, parts, message) => {
    const upload = await uploads.create();
    const before = api.storedFiles();
    const answer = await rawRequest(api.url, partRequest(upload, multipart(parts)));
    expect({ ...answer, body: JSON.parse(answer.body) }).toMatchObject(refusal(message));
    expect(api.storedFiles()).toEqual(before);
  });

  test("that breaks off leaves nothing", async () => {
    const upload = await uploads.create();
    const before = api.storedFiles();
    const connection = await RawConnection.open(api.url);
    const body = multipart([data("x".repeat(100_000))], { isClosed: false });
    connection.send(partRequest(upload, body, 10_000_000));
    await expect.poll(() => api.storedFiles().length).toBe(before.length + 1);
    connection.socket.destroy();
    await expect.poll(() => api.storedFiles()).toEqual(before);
  });
});

const partRequest = (upload: string, body: string, length = body.length) =>
  [
    `POST /v1/uploads/${upload}/parts HTTP/1.1`,
    "Host: localhost",
    "Content-Type: multipart/form-data; boundary=----a-boundary",
    `Content-Length: ${length}`,
    "",
    body,
  ].join("\r\n");

/** Adds parts of one byte to an upload, as though they had come one by one. Returns their ids. */
async function seedParts({ places }: ProjectServers, upload: string, partCount: number) {
  const dataDir = String(places["data_dir"]);
  const ids = Array.from({ length: partCount }, (_, n) => `part_${n}`);
  mkdirSync(join(dataDir, "blobs", "parts"), { recursive: true });
  for (const id of ids) writeFileSync(join(dataDir, "blobs", "parts", id), "a");
  const into = "insert into upload_parts (id, upload_id, bytes, blob_key, created_at_ms)";
  const values = `'${upload}', 1, 'parts/part_' || n, 1`;
  const url = places["database_url"];
  if (typeof url === "string") {
    await query(
      url,
      `${into} select 'part_' || n, ${values} from generate_series(0, ${partCount - 1}) as n`,
    );
    return ids;
  }
  const db = new Database(join(dataDir, "batchd.sqlite"));
  db.exec(`with recursive numbers(n) as (
    select 0 union all select n + 1 from numbers where n < ${partCount - 1})
    ${into} select 'part_' || n, ${values} from numbers`);
  db.close();
  return ids;
}

describe.each([
  ["one server with SQLite", null, true],
  ["two servers with PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  test.skipIf(!canRun)(
    "an upload takes exactly as many parts as its completion can list, also side by side",
    async () => {
      await using servers = await startProjectServers(database, configWith({}));
      const [url = ""] = servers.urls;
      const bytes = UPLOAD_MAX_PARTS;
      const request = { filename: "a", purpose: "fine-tune", bytes, mime_type: "text/plain" };
      const id = (await post(url, "uploads", request)).body.id as string;
      const addPart = (to: string, upload = id) => {
        const body = new FormData();
        body.set("data", new Blob(["b"]));
        return ask(to, `uploads/${upload}/parts`, { method: "POST", body });
      };
      const first = (await addPart(url)).body.id as string;
      const seeded = await seedParts(servers, id, UPLOAD_MAX_PARTS - 11);
      const answers = await together(servers.urls, addPart, 40);
      expect([count(answers, 200), count(answers, 400)]).toEqual([10, 30]);
      expect(answers.find(({ status }) => status === 400)?.body.error).toEqual({
        message: `The upload '${id}' has 10000 parts, and may have no more. Complete it, or begin another one with larger parts.`,
        type: "invalid_request_error",
        param: "data",
        code: null,
      });
      // Others are not full.
      const other = (await post(url, "uploads", request)).body.id as string;
      expect((await addPart(url, other)).status).toBe(200);

      const last = answers.flatMap(({ status, body }) => (status === 200 ? [body.id ?? ""] : []));
      const { file } = await clientOf(url).uploads.complete(id, {
        part_ids: [first, ...seeded, ...last],
      });
      expect(file).toMatchObject({ bytes });
      const content = await clientOf(url).files.content(file?.id ?? "");
      expect(await content.text()).toBe(`b${"a".repeat(seeded.length)}${"b".repeat(10)}`);
    },
  );
});
