/**
 * Builds versitygw, the S3 server of the tests, with Go: `npm run build:s3`. The sources come through the proxy of Go
 * modules. The binary stays in `node_modules/.cache` until the next `npm ci`. The first build takes some minutes,
 * a later one some seconds, thanks to the cache of Go.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { S3_SERVER, S3_SERVER_MODULE } from "../test/support/s3-server.ts";

function build(): number {
  if (existsSync(S3_SERVER)) return 0;
  mkdirSync(dirname(S3_SERVER), { recursive: true });
  const folder = mkdtempSync(`${S3_SERVER}-`);
  try {
    const env = { ...process.env, GOBIN: folder, GOFLAGS: "-buildvcs=false" };
    const args = ["install", "-trimpath", S3_SERVER_MODULE];
    const { status, error } = spawnSync("go", args, { env, stdio: "inherit" });
    if (error !== undefined) process.stderr.write(`no Go here: ${error.message}\n`);
    if (status !== 0) return 1;
    renameSync(join(folder, "versitygw"), S3_SERVER);
    return 0;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exitCode = build();
