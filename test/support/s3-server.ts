/** Starts versitygw, a real S3 server, in a process and on a folder of its own. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { killAtTestEnd } from "./leftovers.ts";
import { freePort } from "./postgres.ts";
import { leaveOut } from "./programs.ts";

const VERSION = "v1.8.0";
export const S3_SERVER_MODULE = `github.com/versity/versitygw/cmd/versitygw@${VERSION}`;
/** It is built by `npm run build:s3`. */
export const S3_SERVER = fileURLToPath(
  new URL(`../../node_modules/.cache/batchd/versitygw-${VERSION}`, import.meta.url),
);

export const S3_KEYS = { access_key_id: "batchd-tests", secret_access_key: "not-a-real-secret-0" };
const BUCKET = "tests";

export const hasS3Server = () =>
  existsSync(S3_SERVER) ||
  leaveOut("the tests on S3", `${S3_SERVER}: install Go and run \`npm run build:s3\``);

export interface S3Server extends AsyncDisposable {
  readonly url: string;
  /** Each object is a file below it. */
  readonly bucketFolder: string;
  /** Returns the `storage` of a configuration. An override of `endpoint` puts a proxy in front. */
  storage(overrides?: Record<string, unknown>): Record<string, unknown>;
}

/** Returns a prefix that no test has used, nor the first try of this one: what is there belongs to another database. */
export const newPrefix = () => `${randomUUID()}/`;

export async function startS3Server(): Promise<S3Server> {
  const root = mkdtempSync(join(tmpdir(), "batchd-s3-"));
  const bucketFolder = join(root, "data", BUCKET);
  // A folder is a bucket.
  mkdirSync(bucketFolder, { recursive: true });
  mkdirSync(join(root, "sidecar"));
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const child = await launch(root, port);
  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, "exit");
    child.kill("SIGKILL");
    await exited;
  };
  return {
    url,
    bucketFolder,
    storage: (overrides = {}) => ({
      type: "s3",
      bucket: BUCKET,
      region: "us-east-1",
      endpoint: url,
      force_path_style: true,
      ...S3_KEYS,
      ...overrides,
    }),
    async [Symbol.asyncDispose]() {
      await kill();
      rmSync(root, { recursive: true, force: true });
    },
  };
}

/** Finds a free port, because the server cannot say which port the system has given it. */
async function launch(root: string, port: number): Promise<ChildProcess> {
  // The sidecar folder replaces extended attributes, which not every file system has.
  const posix = ["posix", "--sidecar", join(root, "sidecar"), join(root, "data")];
  const options = ["--port", `127.0.0.1:${port}`, "--keep-alive", "--quiet", "--health", "/health"];
  const child = spawn(S3_SERVER, [...options, ...posix], {
    env: {
      ROOT_ACCESS_KEY_ID: S3_KEYS.access_key_id,
      ROOT_SECRET_ACCESS_KEY: S3_KEYS.secret_access_key,
    },
    stdio: ["ignore", "ignore", "pipe"],
  });
  killAtTestEnd(child);
  let complaint = "";
  child.stderr?.on("data", (text: Buffer) => {
    complaint += text.toString();
  });
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the S3 server did not start:\n${complaint}`);
    const isUp = await fetch(`http://127.0.0.1:${port}/health`).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isUp) return child;
    await sleep(20);
  }
}
