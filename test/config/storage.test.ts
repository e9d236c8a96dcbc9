import { expect, test } from "vitest";
import { parseConfig } from "../../src/config/config.ts";
import { redactConfig } from "../../src/config/redact-config.ts";
import { configSecrets } from "../../src/config/secrets.ts";
import { configWith, problemsWith } from "../support/yaml-config.ts";

const S3 = { type: "s3", bucket: "b", region: "eu-central-1" };
const KEY = { access_key_id: "AKIAEXAMPLE", secret_access_key: "example-secret-4711" };

const problemsOf = (storage: object) => problemsWith({ storage });

test("a bucket needs nothing but its name", () => {
  expect(problemsOf({ type: "s3", bucket: "b" })).toEqual([]);
});

test.each([
  [{ type: "s3" }, "storage.bucket: required with storage.type s3"],
  [{ bucket: "b" }, "storage.bucket: only with storage.type s3"],
  [{ presigned_downloads: true }, "storage.presigned_downloads: only with storage.type s3"],
  [{ ...S3, bukcet: "b" }, "storage.bukcet: unknown key, did you mean bucket?"],
  [{ ...S3, access_key_id: "a" }, "storage: access_key_id and secret_access_key go together"],
  [{ ...S3, session_token: "t" }, "storage.session_token: only with access_key_id"],
  [{ ...S3, kms_key_id: "k" }, "storage.kms_key_id: only with server_side_encryption aws:kms"],
  [{ ...S3, prefix: "no-end" }, "storage.prefix: expected a path"],
  [{ ...S3, prefix: "/begin/" }, "storage.prefix: expected a path"],
  [{ ...S3, endpoint: "http://u:p@h" }, "storage.endpoint: leave user name and password out"],
  [{ ...S3, part_bytes: "1MB" }, "storage.part_bytes: expected from 5242880"],
])("%j is refused with the reason", (storage, problem) => {
  expect(problemsOf(storage)).toEqual([expect.stringContaining(problem)]);
});

test("parts are large enough for the largest upload", () => {
  const limits = { max_upload_bytes: "1TB" };
  const refused = parseConfig({ storage: S3, limits });
  expect(refused).toMatchObject({ problems: [expect.stringContaining("at least 100000000")] });
  expect(parseConfig({ storage: { ...S3, part_bytes: "100MB" }, limits }).ok).toBe(true);
});

test("the access key is a secret: it is not printed, and the log does not show it", () => {
  const config = configWith({ storage: { ...S3, ...KEY, session_token: "example-token-0815" } });
  expect(configSecrets(config)).toEqual(["example-secret-4711", "example-token-0815"]);
  const printed = redactConfig(config);
  expect(printed).not.toMatch(/example-secret-4711|example-token-0815/);
  expect(JSON.parse(printed).storage).toMatchObject({ bucket: "b", access_key_id: "AKIAEXAMPLE" });
});
