import { createHash } from "node:crypto";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { rmSync, truncateSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { CLAIM_MS } from "../../src/api/idempotency.ts";
import { UploadObject } from "../../src/contract/upload.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { RawConnection } from "../support/raw-http.ts";
import { type Replica, startReplicas } from "../support/replicas.ts";
import { startTestApi, type Wire, wireOf } from "../support/test-http.ts";
import { CONTENT, refusal, UploadClient } from "../support/upload-client.ts";

const api = forAllTests(await startTestApi());
const uploads = new UploadClient(api);

describe("a completed upload", () => {
  test("is a file like any other, of the parts in the order that is asked for", async () => {
    const id = await uploads.create();
    const [third, first, second] = await Promise.all([
      uploads.addPart(id, CONTENT.slice(200)),
      uploads.addPart(id, CONTENT.slice(0, 90)),
      uploads.addPart(id, CONTENT.slice(90, 200)),
    ]);
    const nudges = api.nudges();
    const { status, body } = await uploads.complete(id, [first, second, third]);
    expect(status).toBe(200);
    expect(body).toMatchObject({ id, status: "completed", object: "upload" });
    expect(UploadObject.strict().safeParse(body).success).toBe(true);
    const file = body.file as Wire;
    expect(file).toEqual({
      object: "file",
      id: expect.stringMatching(/^file-/),
      purpose: "batch",
      filename: "input.jsonl",
      bytes: CONTENT.length,
      created_at: expect.any(Number),
      expires_at: file.created_at + 2_592_000,
      status: "processed",
      status_details: null,
    });
    expect((await uploads.contentOf(file.id)).toString()).toBe(CONTENT);
    expect(await (await api.fetch(`/v1/files/${file.id}`)).json()).toEqual(file);
    expect(api.nudges()).toBe(nudges + 1);
    const etag = (await api.fetch(`/v1/files/${file.id}/content`)).headers.get("etag");
    expect(etag).toBe(`"${createHash("sha256").update(CONTENT).digest("hex")}"`);
  });

  test("leaves out the parts that are not listed", async () => {
    const id = await uploads.create();
    await uploads.addPart(id, "a part that went wrong");
    const { body } = await uploads.complete(id, [await uploads.addPart(id, CONTENT)]);
    expect((await uploads.contentOf(body.file?.id ?? "")).toString()).toBe(CONTENT);
  });

  test("may be empty, unless it is for a batch", async () => {
    const empty = await uploads.create({ purpose: "user_data", bytes: 0 });
    expect((await uploads.complete(empty, [])).body).toMatchObject({
      status: "completed",
      file: { bytes: 0, expires_at: null },
    });
    const input = await uploads.create({ bytes: 0 });
    expect(await uploads.complete(input, [])).toMatchObject(
      refusal(/^Invalid file format for Batch API\. Must be \.jsonl \(HINT: The file is empty\./),
    );
  });

  test("may be larger than a file in one piece, unless it is for a batch", async () => {
    await using small = await startTestApi({ limits: { maxFileBytes: 100 } });
    const announce = (purpose: string, bytes: number) => {
      const body = JSON.stringify({ filename: "a", mime_type: "b", purpose, bytes });
      return small.fetch("/v1/uploads", { method: "POST", body });
    };
    expect((await announce("user_data", 101)).status).toBe(200);
    expect((await announce("batch", 100)).status).toBe(200);
    const refused = await announce("batch", 101);
    expect([refused.status, (await wireOf(refused)).error]).toEqual([
      400,
      {
        message:
          "Invalid 'bytes': integer above maximum value. Expected a value <= 100, but got 101 instead.",
        type: "invalid_request_error",
        param: "bytes",
        code: "integer_above_max_value",
      },
    ]);
  });
});

describe("an upload is not completed, and stays pending,", () => {
  /** Holds the refusal against what is expected, and completes the upload after all. */
  async function expectRefused(
    attempt: (upload: { id: string; parts: string[] }) => Promise<unknown>,
    expected: object,
  ) {
    const upload = await uploads.pending();
    const before = api.storedFiles();
    expect(await attempt(upload)).toMatchObject(expected);
    expect(api.storedFiles()).toEqual(before);
    expect((await uploads.complete(upload.id, upload.parts)).status).toBe(200);
  }

  test("with too few bytes, or too many", async () => {
    const bytesDiffer = refusal(
      /^The parts have \d+ bytes together, but the upload was created for \d+ bytes\.$/,
      "part_ids",
    );
    await expectRefused(({ id, parts }) => uploads.complete(id, parts.slice(1)), bytesDiffer);
    const { id, parts } = await uploads.pending();
    const tooMany = [...parts, await uploads.addPart(id, "x")];
    expect(await uploads.complete(id, tooMany)).toMatchObject(bytesDiffer);
    expect((await uploads.complete(id, parts)).status).toBe(200);
  });

  test("with a part twice", async () => {
    await expectRefused(
      ({ id, parts }) => uploads.complete(id, [...parts, ...parts]),
      refusal(/^The part 'part_\w+' is listed more than once\.$/, "part_ids"),
    );
  });

  test("with a part of another upload, or of none", async () => {
    const other = await uploads.pending();
    for (const stranger of [other.parts[0] ?? "", "part_x"]) {
      await expectRefused(
        ({ id, parts }) => uploads.complete(id, [stranger, ...parts.slice(1)]),
        refusal(/^The part 'part_\w+' does not belong to the upload 'upload_\w+'\.$/, "part_ids"),
      );
    }
  });

  test("with a part whose content is gone or damaged: it is named, and may be added again", async () => {
    const damages = [rmSync, (path: string) => truncateSync(path, 10)];
    for (const damage of damages) {
      const {
        id,
        parts: [first = "", second = ""],
      } = await uploads.pending();
      damage(join(api.dataDir, "blobs", "parts", first));
      expect(await uploads.complete(id, [first, second])).toMatchObject(
        refusal(
          `The content of the part '${first}' is gone or damaged in the storage of this server. Add it again, and list the new part.`,
          "part_ids",
        ),
      );
      expect(api.log.filter((line) => line.includes(`"blob":"parts/${first}"`))).toEqual([
        expect.stringContaining('"event":"part.lost"'),
      ]);
      const again = await uploads.addPart(id, CONTENT.slice(0, 100));
      expect((await uploads.complete(id, [again, second])).status).toBe(200);
    }
  });

  test("with another MD5, but with the right one in either case", async () => {
    await expectRefused(
      ({ id, parts }) => uploads.complete(id, parts, { md5: "0".repeat(32) }),
      refusal(/^The MD5 of the parts together is '[0-9a-f]{32}', but the request says/, "md5"),
    );
    const md5 = createHash("md5").update(CONTENT).digest("hex");
    for (const each of [md5, md5.toUpperCase(), null]) {
      const { id, parts } = await uploads.pending();
      expect((await uploads.complete(id, parts, { md5: each })).status).toBe(200);
    }
  });

  test("with content that no upload of batch input may have", async () => {
    await expectRefused(
      ({ id, parts }) => uploads.complete(id, parts.toReversed()),
      refusal(/^Invalid file format for Batch API\. Must be \.jsonl \(HINT: Line 1 is not JSON\./),
    );
  });

  test.each([
    ["nothing", "", "We could not parse the JSON body of your request. (HINT: The body is empty,"],
    ["no JSON", "{", "We could not parse the JSON body of your request. (HINT: This API expects"],
    ["no parts", "{}", "Missing required parameter: 'part_ids'."],
    ["parts that are no list", '{"part_ids":"a"}', "Invalid type for 'part_ids'"],
    ["parts that are no ids", '{"part_ids":[1]}', "Invalid type for 'part_ids.0'"],
    ["more values than can be parsed at once", "[".repeat(500_000), "too many values"],
  ])("with %s in the body", async (_case, body, message) => {
    await expectRefused(({ id }) => uploads.post(`/${id}/complete`, body), {
      status: 400,
      body: { error: { message: expect.stringContaining(message) } },
    });
  });
});

describe("a completion that waits for another one of its upload", () => {
  test("is counted in memory, and given up with its client", async () => {
    const { id, parts } = await uploads.pending();
    const fault = new Error("the disk is gone");
    const begun = Promise.withResolvers<void>();
    const released = Promise.withResolvers<void>();
    let joinCount = 0;
    const join = api.blobs.join;
    api.blobs.join = async () => {
      joinCount++;
      begun.resolve();
      await released.promise;
      throw fault;
    };
    const first = uploads.complete(id, parts);
    await begun.promise;
    const responses: ServerResponse[] = [];
    const onRequest = (message: unknown) =>
      responses.push((message as { readonly response: ServerResponse }).response);
    subscribe("http.server.request.start", onRequest);
    using gone = await RawConnection.open(api.url);
    const others = Array.from({ length: 2_000 }, (_, i) => `part_${i}`);
    const body = JSON.stringify({ part_ids: [...parts, ...others] });
    gone.send(
      `POST /v1/uploads/${id}/complete HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    await expect.poll(() => api.heldBytes()).toBeGreaterThan(body.length);
    unsubscribe("http.server.request.start", onRequest);
    const closed = once(responses[0] as ServerResponse, "close");
    gone.socket.destroy();
    await closed;
    const last = uploads.complete(id, parts);
    released.resolve();
    expect([(await first).status, (await last).status]).toEqual([500, 500]);
    expect(joinCount).toBe(2);
    expect(api.heldBytes()).toBe(0);
    api.blobs.join = join;
    expect((await uploads.complete(id, parts)).status).toBe(200);
  });
});

test("a completion that loses its key to its repetition at another replica leads its client to the answer of that one", async () => {
  await using replicas = await startReplicas();
  const { a, b } = replicas;
  const { uploads } = a.service.openai;
  const fields = { filename: "f", purpose: "user_data", bytes: 1, mime_type: "a/b" } as const;
  const { id } = await uploads.create(fields);
  const part_ids = [(await uploads.parts.create(id, { data: new File(["a"], "p") })).id];
  const headers = { "Idempotency-Key": "once" };
  const completeAt = ({ service }: Replica) =>
    service.openai.uploads.complete(id, { part_ids }, { headers });
  a.blobs.puts.close("files/");
  const first = completeAt(a).catch((error: unknown) => error);
  await a.blobs.puts.reached();
  b.clock.advance(CLAIM_MS + 1);
  const completed = await completeAt(b);
  a.blobs.puts.open();
  expect(await first).toMatchObject({ status: 409, code: "idempotency_key_in_use" });
  expect(await completeAt(a)).toEqual(completed);
});
