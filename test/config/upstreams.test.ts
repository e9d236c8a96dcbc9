import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { loadConfig } from "../../src/config/config.ts";
import { redactConfig } from "../../src/config/redact-config.ts";
import type { Config } from "../../src/config/schema.ts";
import { privateAuthority } from "../support/certificates.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { configWith, problemsWith } from "../support/yaml-config.ts";

const dir = forAllTests(temporaryFolder("batchd-config-")).path;
const certificate = (await privateAuthority()).cert;

const withUpstream = (keys: object) => ({
  upstreams: [{ name: "u", base_url: "http://h/v1", models: ["*"], ...keys }],
});
const configOf = (keys: object) => configWith(withUpstream(keys));

test("fields of a body are taken as they stand in the file, whatever they are", () => {
  const fields = { stop: ["\n"], metadata: { a: null }, seed: 7, user: "u", logprobs: false };
  const config = configOf({ extra_body: fields, defaults: fields });
  expect(config.upstreams[0]).toMatchObject({ extra_body: fields, defaults: fields });
});

describe("what no request could be sent with is refused", () => {
  test.each([
    [{ azure: {} }, "upstreams[0].azure.api_version: required"],
    [{ azure: { api_version: "2024/10" } }, "azure.api_version: expected a version as 2024-10-21"],
    [{ headers: { "a b": "c" } }, "upstreams[0].headers.a b"],
    [{ headers: { a: "b\nc" } }, "upstreams[0].headers.a: expected printable ASCII"],
    [{ headers: { Host: "h" } }, "upstreams[0].headers.Host"],
    [{ extra_body: { model: "m" } }, "extra_body: the model is named under models"],
    [{ defaults: { model: "m" } }, "defaults: the model is named under models"],
    [
      { proxy: "socks5://h:1" },
      "proxy: expected an http:// or https:// address, such as http://localhost:8000",
    ],
    [{ connect_timeout_seconds: 0 }, "upstreams[0].connect_timeout_seconds"],
    [{ first_byte_timeout_seconds: -1 }, "upstreams[0].first_byte_timeout_seconds"],
    [{ idle_timeout_seconds: 90_000 }, "upstreams[0].idle_timeout_seconds"],
  ])("%j", (keys, problem) => {
    const problems = problemsWith(withUpstream(keys));
    expect(problems).toHaveLength(1);
    expect(problems[0]).toContain(problem);
  });
});

describe("a file with authorities", () => {
  const load = (caFile: string) => {
    const config = join(dir, "batchd.yaml");
    writeFileSync(
      config,
      `upstreams:\n  - { name: a, base_url: http://a/v1, models: [m] }\n  - { name: b, base_url: https://b/v1, models: [m], ca_file: ${caFile} }\n`,
    );
    return loadConfig({ config }, {});
  };
  const fileWith = (contents: string) => {
    const path = join(dir, "ca.pem");
    writeFileSync(path, contents);
    return path;
  };

  test("is taken when it holds certificates, with anything around them", () => {
    const path = fileWith(`# ours\n${certificate}\n# again\n${certificate}`);
    expect(load(path)).toMatchObject({ ok: true });
  });

  test("that is not there is a problem of the configuration", () => {
    const path = join(dir, "missing.pem");
    expect(load(path)).toEqual({
      ok: false,
      problems: [expect.stringContaining(`upstreams[1].ca_file: cannot read ${path}: ENOENT`)],
    });
  });

  test("that is a folder is one too", () => {
    expect(load(dir)).toMatchObject({ problems: [expect.stringContaining("EISDIR")] });
  });

  test("without a certificate, or with one that is damaged, is one too", () => {
    const path = fileWith("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    expect(load(path)).toEqual({
      ok: false,
      problems: [`upstreams[1].ca_file: there is no certificate in PEM in ${path}`],
    });
    fileWith(`${certificate}\n${certificate.replace(/^M/m, "A")}`);
    expect(load(path)).toEqual({
      ok: false,
      problems: [`upstreams[1].ca_file: a certificate in ${path} is damaged`],
    });
  });
});

describe("a configuration that is shown", () => {
  test("hides headers, and credentials in addresses", () => {
    const shown = redactConfig(
      configOf({
        base_url: "https://ann:secret-1@h.example/v1?api-version=secret-0&sig=secret-2",
        api_key: "secret-3",
        headers: { "X-Api-Token": "secret-4", authorization: "Bearer secret-5" },
        proxy: "http://secret-6:p@ss@proxy:3128",
        extra_body: { auth: { token: "secret-7" }, seed: 7, stop: ["secret-8", 5] },
        defaults: { user: "secret-9", logprobs: false },
      }),
    );
    expect(shown).not.toContain("secret");
    expect((JSON.parse(shown) as Config).upstreams[0]).toMatchObject({
      base_url: "https://…@h.example/v1?api-version=…&sig=…",
      api_key: "…",
      headers: { "X-Api-Token": "…", authorization: "…" },
      proxy: "http://…@proxy:3128",
      extra_body: { auth: { token: "…" }, seed: 7, stop: ["…", 5] },
      defaults: { user: "…", logprobs: false },
    });
  });

  test("shows everything else as it is", () => {
    const config = configOf({
      base_url: "https://h.example/a@b/v1",
      defaults: { temperature: 0.5, n: 1 },
    });
    expect(JSON.parse(redactConfig(config))).toEqual(JSON.parse(JSON.stringify(config)));
  });
});
