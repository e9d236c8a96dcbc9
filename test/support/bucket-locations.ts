import { join } from "node:path";
import { ListMultipartUploadsCommand, S3Client } from "@aws-sdk/client-s3";
import { systemClock } from "../../src/clock.ts";
import { S3Location, type S3LocationOptions } from "../../src/locations/s3/s3.ts";
import { filesBelow } from "./files-below.ts";
import { aFile, patternOf } from "./parcels.ts";
import { S3_KEYS, type S3Server, startS3Server } from "./s3-server.ts";

export const CREDENTIALS = {
  accessKeyId: S3_KEYS.access_key_id,
  secretAccessKey: S3_KEYS.secret_access_key,
};
export const MIB = 1024 * 1024;
export const BUCKET = "tests";

/** A result that is sent in four parts. */
export const largeFile = () => aFile("output.jsonl", patternOf(30 * MIB + 4));

export class BucketLocations implements AsyncDisposable {
  readonly client: S3Client;
  readonly #server: S3Server;
  #prefixCount = 0;

  private constructor(server: S3Server) {
    this.#server = server;
    this.client = new S3Client({
      region: "us-east-1",
      endpoint: server.url,
      forcePathStyle: true,
      credentials: CREDENTIALS,
    });
  }

  static async start(): Promise<BucketLocations> {
    return new BucketLocations(await startS3Server());
  }

  get url(): string {
    return this.#server.url;
  }

  openAt(prefix: string, overrides: Partial<S3LocationOptions> = {}): S3Location {
    return new S3Location({
      name: "lake",
      bucket: BUCKET,
      prefix,
      region: "us-east-1",
      endpoint: this.#server.url,
      forcePathStyle: true,
      credentials: CREDENTIALS,
      sendsChecksums: true,
      timeoutMs: 30_000,
      clock: systemClock,
      ...overrides,
    });
  }

  newPrefix(): string {
    return `p${this.#prefixCount++}/`;
  }

  filesBelow(folder: string): Map<string, Buffer> {
    return filesBelow(join(this.#server.bucketFolder, folder));
  }

  /** The keys of the uploads that have begun and not ended. */
  async unfinished(prefix: string): Promise<string[]> {
    const query = { Bucket: BUCKET, Prefix: prefix };
    const { Uploads: uploads = [] } = await this.client.send(
      new ListMultipartUploadsCommand(query),
    );
    return uploads.map(({ Key = "" }) => Key.slice(prefix.length)).sort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.client.destroy();
    await this.#server[Symbol.asyncDispose]();
  }
}
