/** A server in a process of its own, whose clock is wrong, with its files in a bucket. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { hasS3Server, newPrefix, startS3Server } from "../support/s3-server.ts";
import { serve } from "../support/serve.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { clockWrongBy } from "../support/wrong-clock.ts";

const server = hasS3Server() ? forAllTests(await startS3Server()) : null;

const HOUR_MS = 3_600_000;

/** Reads a date such as `20260105T080000Z`. */
function minutesSince(date: string): number {
  const iso = date.replace(/^(....)(..)(..T..)(..)(..Z)$/, "$1-$2-$3:$4:$5");
  return Math.abs(Date.now() - Date.parse(iso)) / 60_000;
}

describe.skipIf(server === null).each([
  { name: "behind", ms: -HOUR_MS },
  { name: "ahead", ms: HOUR_MS },
])("where the clock of the server is an hour $name", ({ ms }) => {
  test("a download follows its link to the bucket", async () => {
    using folder = temporaryFolder("batchd-wrong-clock-");
    const path = join(folder.path, "batchd.yaml");
    const storage = server!.storage({
      prefix: newPrefix(),
      presigned_downloads: true,
      presigned_seconds: "2m",
    });
    // JSON is YAML too.
    writeFileSync(path, JSON.stringify({ data_dir: join(folder.path, "data"), storage }));
    const args = ["--port", "0", "--config", path];
    const { server: batchd, url, openai } = await serve(args, clockWrongBy(ms));
    await using _ = batchd;
    const file = new File(['{"a":1}\n'], "any.jsonl");
    const { id } = await openai.files.create({ file, purpose: "batch" });
    const answer = await fetch(`${url}/v1/files/${id}/content`, { redirect: "manual" });
    const link = answer.headers.get("location") ?? "";
    expect([answer.status, link]).toEqual([302, expect.stringContaining(server!.url)]);
    // A link of a clock that is ahead would be valid for an hour more than the operator wants.
    const signedAt = new URL(link).searchParams.get("X-Amz-Date");
    expect(minutesSince(signedAt ?? "")).toBeLessThan(2);
    const followed = await fetch(link);
    expect([followed.status, await followed.text()]).toEqual([200, '{"a":1}\n']);
  });
});
