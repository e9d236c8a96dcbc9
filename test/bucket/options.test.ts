/** What an operator says about a bucket reaches it: encryption, the style of its address, credentials of the machine. */
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test, vi } from "vitest";
import { S3Blobs } from "../../src/blobs/s3.ts";
import type { S3Options } from "../../src/blobs/s3-client.ts";
import { systemClock } from "../../src/clock.ts";

const MIB = 1024 * 1024;

/** Takes every write, keeps its headers, and has nothing to read. */
async function startRecorder() {
  const seen: { readonly asked: string; readonly headers: IncomingHttpHeaders }[] = [];
  const server = createServer((request, response) => {
    seen.push({ asked: `${request.method} ${request.url}`, headers: request.headers });
    request.resume();
    const body = request.url?.includes("?uploads")
      ? "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
      : "";
    request.once("end", () => response.writeHead(200, { etag: '"e"' }).end(body));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = async () => {
    server.close();
    server.closeAllConnections();
  };
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { seen, url, [Symbol.asyncDispose]: close };
}

const openBlobs = (overrides: Partial<S3Options>) =>
  new S3Blobs(
    {
      bucket: "buck",
      prefix: "p/",
      region: "eu-central-1",
      forcePathStyle: true,
      credentials: { accessKeyId: "id", secretAccessKey: "key", sessionToken: "the-token" },
      sendsChecksums: true,
      partBytes: 5 * MIB,
      timeoutMs: 5_000,
      ...overrides,
    },
    systemClock,
  );

test("every object is written with the encryption that is configured, in the path of its bucket and with the session token", async () => {
  await using recorder = await startRecorder();
  const encryption = { algorithm: "aws:kms", kmsKeyId: "alias/ours" } as const;
  const blobs = openBlobs({ endpoint: recorder.url, encryption });
  await blobs.putBytes("small", [Buffer.from("x")]);
  await blobs.ping().catch(() => {});
  const pieces = async function* () {
    yield Buffer.alloc(6 * MIB);
  };
  await blobs.put("large", pieces()).catch(() => {});
  const parts = [6 * MIB, 6 * MIB].map((bytes, i) => ({ key: `part-${i}`, bytes }));
  await blobs.join("joined", parts, pieces()).catch(() => {});
  await blobs.close();
  const creating = recorder.seen.filter(({ asked }) => /PutObject|\?uploads/.test(asked));
  expect(creating.map(({ asked }) => asked.split("?")[0])).toEqual([
    "PUT /buck/p/small",
    "PUT /buck/p/.ping",
    "POST /buck/p/large",
    "POST /buck/p/joined",
  ]);
  for (const { headers } of creating) {
    expect(headers).toMatchObject({
      "x-amz-server-side-encryption": "aws:kms",
      "x-amz-server-side-encryption-aws-kms-key-id": "alias/ours",
      "x-amz-security-token": "the-token",
    });
  }
});

test.each([
  [{}, "https://buck.s3.eu-central-1.amazonaws.com/p/a"],
  [{ endpoint: "http://s3.example:9000" }, "http://buck.s3.example:9000/p/a"],
  [{ endpoint: "http://s3.example:9000", forcePathStyle: true }, "http://s3.example:9000/buck/p/a"],
])("with %j an object has the address %s", async (options, address) => {
  const blobs = openBlobs({ forcePathStyle: false, linkSeconds: 60, ...options });
  const link = await blobs.linkTo("a", { contentType: "x/y", contentDisposition: "inline" });
  expect(link?.split("?")[0]).toBe(address);
  await blobs.close();
});

test("without a key the credentials of the machine are asked for, and their token is sent", async () => {
  await using recorder = await startRecorder();
  const credentials = { AccessKeyId: "role-key", SecretAccessKey: "x", Token: "role-token" };
  const role = createServer((_request, response) => {
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ ...credentials, Expiration: "2099-01-01T00:00:00Z" }));
  }).listen(0, "127.0.0.1");
  await once(role, "listening");
  const url = `http://127.0.0.1:${(role.address() as AddressInfo).port}/role`;
  vi.stubEnv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
  const blobs = openBlobs({ endpoint: recorder.url, credentials: undefined });
  await blobs.putBytes("a", [Buffer.from("x")]);
  expect(recorder.seen[0]?.headers).toMatchObject({
    authorization: expect.stringContaining("Credential=role-key/"),
    "x-amz-security-token": "role-token",
  });
  await blobs.close();
  vi.unstubAllEnvs();
  role.close();
  role.closeAllConnections();
});
