/** A bucket that others use, too: a deployment or a location whose prefix lies below the one of a server. */
import {
  CreateMultipartUploadCommand,
  ListMultipartUploadsCommand,
  S3Client,
} from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  hasS3Server,
  newPrefix,
  S3_KEYS,
  type S3Server,
  startS3Server,
} from "../support/s3-server.ts";
import { startTestService } from "../support/service.ts";

let server: S3Server;
let client: S3Client;
const Bucket = "tests";

async function unfinished(prefix: string): Promise<string[]> {
  const asked = new ListMultipartUploadsCommand({ Bucket, Prefix: prefix });
  const { Uploads: uploads = [] } = await client.send(asked);
  return uploads.map(({ Key = "" }) => Key.slice(prefix.length)).sort();
}

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
});
