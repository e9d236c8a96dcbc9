/** A bucket that others use, too: another server, or a deployment or location whose prefix lies below the one of a server. */
import { cpSync, renameSync } from "node:fs";
import { join } from "node:path";
import {
  CreateMultipartUploadCommand,
  ListMultipartUploadsCommand,
  S3Client,
} from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startS3Proxy } from "../support/s3-proxy.ts";
import {
  hasS3Server,
  newPrefix,
  S3_KEYS,
  type S3Server,
  startS3Server,
} from "../support/s3-server.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

let server: S3Server;
let client: S3Client;
const Bucket = "tests";

async function unfinished(prefix: string): Promise<string[]> {
  const asked = new ListMultipartUploadsCommand({ Bucket, Prefix: prefix });
  const { Uploads: uploads = [] } = await client.send(asked);
  return uploads.map(({ Key = "" }) => Key.slice(prefix.length)).sort();
}

const contentOf = async ({ openai }: TestService, id: string) =>
  (await openai.files.content(id)).text();

describe.skipIf(!hasS3Server())("with a bucket", () => {
  beforeAll(async () => {
    server = await startS3Server();
    client = new S3Client({
      region: "us-east-1",
      endpoint: server.url,
      forcePathStyle: true,
      credentials: {
        accessKeyId: S3_KEYS.access_key_id,
        secretAccessKey: S3_KEYS.secret_access_key,
      },
    });
  });
  afterAll(async () => {
    client.destroy();
    await server[Symbol.asyncDispose]();
  });

  test("a sweep ends what its own dead writers have begun, and no upload of another deployment below its prefix", async () => {
    const prefix = newPrefix();
    const others = ["eu/files/file-1", "files-of-2025/a.tar", "lake/batch_1/output.jsonl"];
    // The bucket lists the uploads by name, so the last one goes last.
    const own = ["files/gone", "parts/gone"];
    for (const key of [...others, ...own]) {
      await client.send(new CreateMultipartUploadCommand({ Bucket, Key: prefix + key }));
    }
    await using _service = await startTestService({
      config: { storage: server.storage({ prefix }) },
    });
    await expect.poll(() => unfinished(prefix)).not.toContain("parts/gone");
    expect(await unfinished(prefix)).toEqual(others);
  });

  test("a second new server is refused at a prefix that another one has, also before it has files", async () => {
    const storage = server.storage({ prefix: newPrefix() });
    await using _first = await startTestService({ config: { storage } });
    using dir = temporaryFolder("batchd-second-");
    const dataDir = join(dir.path, "data");
    // The first refusal must leave nothing that makes the second start look like one with a database.
    for (let n = 1; n <= 2; n++) {
      await expect(startTestService({ dataDir, config: { storage } })).rejects.toThrow(
        `batchd.sqlite is missing, but a server has used s3://${Bucket}/${storage["prefix"]}`,
      );
    }
    const free = { storage: server.storage({ prefix: newPrefix() }) };
    await using _second = await startTestService({ dataDir, config: free });
  });

  test("a bucket that is away for a moment holds up no new server, and one that takes no files is said at once", async () => {
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: newPrefix(), endpoint: proxy.url });
    const path = /\.ping\?x-id=PutObject/;
    proxy.trouble = { kind: "denied", method: "PUT", path };
    await expect(startTestService({ config: { storage } })).rejects.toThrow(
      /cannot use s3:\S+ S3: AccessDenied/,
    );
    proxy.trouble = { kind: "page_found", path };
    await using first = await startTestService({ config: { storage } });
    proxy.trouble = null;
    expect((await fetch(`${first.url}/ready`)).status).toBe(200);
    await expect(startTestService({ config: { storage } })).rejects.toThrow("a server has used");
  });

  test("a server that was only tried on a folder does not take the files of another one for garbage", async () => {
    const storage = server.storage({ prefix: newPrefix() });
    await using first = await startTestService({ config: { storage } });
    const id = await first.upload(chatLines(1));
    await using tried = await startTestService();
    await tried.close();
    for (let n = 1; n <= 2; n++) {
      await expect(
        startTestService({ dataDir: tried.dataDir, config: { storage } }),
      ).rejects.toThrow(
        `batchd.sqlite knows no files, but there are files in s3://${Bucket}/${storage["prefix"]}: name the database that belongs there`,
      );
    }
    const free = { storage: server.storage({ prefix: newPrefix() }) };
    await using _again = await startTestService({ dataDir: tried.dataDir, config: free });
    expect(await contentOf(first, id)).toContain("line-1");
  });

  test("files that an operator has copied there from the folder of the server are found", async () => {
    await using tried = await startTestService();
    const id = await tried.upload(chatLines(1));
    await tried.close();
    const prefix = newPrefix();
    const blobs = join(tried.dataDir, "blobs");
    cpSync(join(blobs, "files"), join(server.bucketFolder, prefix, "files"), { recursive: true });
    renameSync(blobs, `${blobs}-old`);
    await using moved = await startTestService({
      dataDir: tried.dataDir,
      config: { storage: server.storage({ prefix }) },
    });
    expect(await contentOf(moved, id)).toContain("line-1");
  });
});
