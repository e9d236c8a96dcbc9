import { describe, expect, test } from "vitest";
import { loadConfig } from "../../src/config/config.ts";
import type { Overrides } from "../../src/config/overrides.ts";
import type { Config } from "../../src/config/schema.ts";
import { A, B, C, configFile, type Environment, load, problemsOf } from "../support/yaml-config.ts";

/** What an upstream gets that only says where it is and what it serves; `max_concurrency` aside. */
const UPSTREAM_DEFAULTS = {
  batch_share: 0.25,
  check_models: false,
  priority: 0,
  weight: 1,
  min_concurrency: 1,
  headers: {},
  extra_body: {},
  defaults: {},
  keep_alive: true,
  connect_timeout_seconds: 10,
  timeout_seconds: 600,
};

describe("without any configuration", () => {
  test("the server starts with defaults, upstreams and keys left out", () => {
    expect(loadConfig({}, {})).toEqual({
      ok: true,
      config: {
        server: { host: "127.0.0.1", port: 8080, allowed_hosts: [] },
        data_dir: "./data",
        storage: {
          type: "folder",
          prefix: "batchd/",
          checksums: true,
          force_path_style: false,
          part_bytes: 8_388_608,
          timeout_seconds: 30,
          presigned_downloads: false,
          presigned_seconds: 300,
        },
        database: { pool_size: 10, listen: true },
        log_level: "info",
        projects: [],
        locations: [],
        prices: [],
        limits: {
          max_file_bytes: 209_715_200,
          max_upload_bytes: 8_589_934_592,
          max_requests_per_batch: 50_000,
          max_embedding_inputs_per_batch: 50_000,
          max_line_bytes: 33_554_432,
          max_answer_bytes: 67_108_864,
          memory_bytes: 536_870_912,
          allow_mixed_models: false,
          completion_windows: ["24h"],
        },
        upstreams: [],
        webhooks: { endpoints: [], allow_private_hosts: [] },
        deliveries: { allow_private_hosts: [], client_buckets: true },
        engine: { drain_grace_seconds: 20, lease_seconds: 30, stop_grace_seconds: 30 },
      },
    });
  });

  test("an empty file and one with only comments are the same as none", () => {
    expect(load("")).toEqual(load("# later\n"));
    expect(loadConfig({}, {})).toEqual({ ok: true, config: load("") });
  });
});

test("a full file is taken as it stands, with defaults where it says nothing", () => {
  const config = load(`
server: { host: 0.0.0.0, port: 0 }
data_dir: /var/lib/batchd
auth: { keys: [{ name: ci, key: secret, project: search }, { name: me, key: other }] }
upstreams:
  - name: gpu-1
    base_url: http://10.0.0.5:8000/v1
    models:
      - llama-3-8b
      - { name: gpt-4o-mini, upstream_model: meta-llama/Llama-3.1-8B-Instruct }
      - "*"
    max_concurrency: 256
`);
  expect(config.server).toEqual({ host: "0.0.0.0", port: 0, allowed_hosts: [] });
  expect(config.auth?.keys.map((key) => key.project)).toEqual(["search", "default"]);
  expect(config.upstreams).toEqual([
    {
      name: "gpu-1",
      base_url: "http://10.0.0.5:8000/v1",
      models: [
        "llama-3-8b",
        { name: "gpt-4o-mini", upstream_model: "meta-llama/Llama-3.1-8B-Instruct" },
        "*",
      ],
      max_concurrency: 256,
      ...UPSTREAM_DEFAULTS,
    },
  ]);
});

test("several models in a batch, and a default one, are there when the file says so", () => {
  const config = load("limits: { allow_mixed_models: true }\ndefault_model: small-chat\n");
  expect([config.limits.allow_mixed_models, config.default_model]).toEqual([true, "small-chat"]);
  expect(load("").default_model).toBeUndefined();
  const wrong = problemsOf('limits: { allow_mixed_models: "yes" }\ndefault_model: ""\n');
  expect(wrong).toEqual([
    expect.stringMatching(/^limits\.allow_mixed_models: /),
    expect.stringMatching(/^default_model: /),
  ]);
});

test("completion windows are hours or days, 24h among them", () => {
  const load3 = load("limits: { completion_windows: [24h, 72h, 7d] }");
  expect(load3.limits.completion_windows).toEqual(["24h", "72h", "7d"]);
  for (const wrong of ["[24h, 1w]", "[24h, 31d]", "[24h, 0h]", "[72h]", "[]", "24h"]) {
    expect(problemsOf(`limits: { completion_windows: ${wrong} }`), wrong).toEqual([
      expect.stringMatching(/^limits\.completion_windows/),
    ]);
  }
});

describe("flags beat environment beats file", () => {
  const yaml = "server: { host: file, port: 1 }\ndata_dir: file\n";
  const env = { BATCHD_HOST: "env", BATCHD_PORT: "2", BATCHD_DATA_DIR: "env" };
  const picked = ({ server, data_dir }: Config) => [server.host, server.port, data_dir];

  test("the file alone", () => expect(picked(load(yaml))).toEqual(["file", 1, "file"]));

  test("the environment over the file", () =>
    expect(picked(load(yaml, env))).toEqual(["env", 2, "env"]));

  test("flags over both", () => {
    const flags = { host: "flag", port: "3", dataDir: "flag" };
    expect(picked(load(yaml, env, flags))).toEqual(["flag", 3, "flag"]);
  });

  test("each value for itself", () => {
    expect(picked(load(yaml, { BATCHD_PORT: "2" }, { host: "flag" }))).toEqual(["flag", 2, "file"]);
  });

  test("an empty variable is no variable", () => {
    expect(picked(load(yaml, { BATCHD_HOST: "", BATCHD_PORT: "" }))).toEqual(["file", 1, "file"]);
  });

  test("the file itself is named by the flag before the environment", () => {
    using byEnv = configFile("data_dir: env");
    using byFlag = configFile("data_dir: flag");
    const dataDir = (flags: Overrides) => {
      const loaded = loadConfig(flags, { BATCHD_CONFIG: byEnv.path });
      return loaded.ok && loaded.config.data_dir;
    };
    expect(dataDir({})).toBe("env");
    expect(dataDir({ config: byFlag.path })).toBe("flag");
  });
});

describe("where traces go", () => {
  const endpointOf = (yaml: string, env: Environment) => load(yaml, env).tracing?.endpoint;
  const ours = "tracing: { endpoint: http://ours:4318/v1/traces }";
  const traces = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://traces/in" };
  const collector = { OTEL_EXPORTER_OTLP_ENDPOINT: "http://collector:4318/" };

  test("nowhere, unless the configuration says so", () => {
    expect(endpointOf("", {})).toBeUndefined();
    expect(endpointOf("", { OTEL_EXPORTER_OTLP_ENDPOINT: "" })).toBeUndefined();
  });

  test("the file says it, or else the variables that OpenTelemetry has for it", () => {
    expect(endpointOf(ours, { ...traces, ...collector })).toBe("http://ours:4318/v1/traces");
    expect(endpointOf("", { ...traces, ...collector })).toBe("http://traces/in");
    expect(endpointOf("", collector)).toBe("http://collector:4318/v1/traces");
  });

  test("as protobuf, unless the file or the variables of OpenTelemetry say JSON", () => {
    const protocolOf = (yaml: string, env: Environment) => load(yaml, env).tracing?.protocol;
    const json = { OTEL_EXPORTER_OTLP_PROTOCOL: "http/json" };
    const ofTraces = { OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: "http/protobuf" };
    expect(protocolOf(ours, {})).toBe("http/protobuf");
    expect(protocolOf(ours, json)).toBe("http/json");
    expect(protocolOf("", { ...collector, ...json })).toBe("http/json");
    expect(protocolOf("", { ...collector, ...json, ...ofTraces })).toBe("http/protobuf");
    const inFile = "tracing: { endpoint: http://ours:4318/v1/traces, protocol: http/protobuf }";
    expect(protocolOf(inFile, json)).toBe("http/protobuf");
    expect(load("", json).tracing).toBeUndefined();
    expect(problemsOf(ours, { OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" })).toEqual([
      "tracing.protocol: expected http/protobuf or http/json: gRPC is not spoken",
    ]);
  });

  test("a variable that is no address is refused like one in the file", () => {
    const env = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "localhost" };
    expect(problemsOf("", env)).toEqual([expect.stringContaining("tracing.endpoint")]);
    expect(problemsOf("tracing: { endpoint: localhost }")).toEqual(problemsOf("", env));
  });
});

describe("the shorthand for one upstream", () => {
  const shorthand = {
    name: "upstream",
    base_url: "http://gpu:8000/v1",
    models: ["*"],
    max_concurrency: 64,
    ...UPSTREAM_DEFAULTS,
  };

  test("serves every model, by flag and by environment", () => {
    expect(load("", {}, { upstream: "http://gpu:8000/v1" }).upstreams).toEqual([shorthand]);
    expect(load("", { BATCHD_UPSTREAM: "http://gpu:8000/v1" }).upstreams).toEqual([shorthand]);
  });

  test("comes beside the upstreams of the file", () => {
    const config = load(
      "upstreams: [{ name: a, base_url: http://a, models: [m] }]",
      {},
      {
        upstream: "http://gpu:8000/v1",
      },
    );
    expect(config.upstreams.map((upstream) => upstream.name)).toEqual(["a", "upstream"]);
  });

  test("is refused when it is no address", () => {
    expect(problemsOf("", {}, { upstream: "gpu:8000" })).toEqual([
      "upstream: expected an http:// or https:// address, such as http://localhost:8000/v1",
    ]);
  });
});

describe("a name in dollar and braces takes from the environment", () => {
  test("anywhere in a text, several times, at any depth", () => {
    const config = load(
      `data_dir: "${A}/data/${B}"\nauth: { keys: [{ name: ci, key: "${C}" }] }\n`,
      { A: "/srv", B: "t1", C: "s3cr3t:[#" },
    );
    expect(config.data_dir).toBe("/srv/data/t1");
    expect(config.auth?.keys[0]?.key).toBe("s3cr3t:[#");
  });

  test("and what comes from there is not looked at again", () => {
    expect(load(`data_dir: ${A}`, { A: B, B: "b" }).data_dir).toBe(B);
  });

  test("a variable that is not set is reported with the place that asks for it", () => {
    expect(problemsOf(`data_dir: ${A}/${B}\nauth: { keys: [{ name: ci, key: "${C}" }] }`)).toEqual([
      "data_dir: the environment variable A is not set",
      "data_dir: the environment variable B is not set",
      "auth.keys[0].key: the environment variable C is not set",
    ]);
  });

  test("a dollar without braces is a dollar", () => {
    expect(load("data_dir: $HOME/a$b").data_dir).toBe("$HOME/a$b");
  });
});

test("a key may be given as its SHA-256", () => {
  const digest = `sha256:${"aB".repeat(32)}`;
  expect(load(`auth: { keys: [{ name: ci, key: "${digest}" }] }`).auth?.keys[0]?.key).toBe(digest);
});
