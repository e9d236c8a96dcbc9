import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { loadConfig, parseConfig } from "../../src/config/config.ts";
import type { Overrides } from "../../src/config/overrides.ts";
import type { Config } from "../../src/config/schema.ts";

type Environment = Readonly<Record<string, string>>;

let folder: string;
let fileCount = 0;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "batchd-config-"));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(yaml: string): string {
  const path = join(folder, `${fileCount++}.yaml`);
  writeFileSync(path, yaml);
  return path;
}

function load(yaml: string, env: Environment = {}, flags: Overrides = {}): Config {
  const loaded = loadConfig({ config: file(yaml), ...flags }, env);
  if (!loaded.ok) throw new Error(loaded.problems.join("\n"));
  return loaded.config;
}

function problemsOf(yaml: string, env: Environment = {}, flags: Overrides = {}): readonly string[] {
  const loaded = loadConfig({ config: file(yaml), ...flags }, env);
  return loaded.ok ? [] : loaded.problems;
}

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
          ...{ type: "folder", prefix: "batchd/", checksums: true, force_path_style: false },
          ...{ part_bytes: 8_388_608, timeout_seconds: 30 },
          ...{ presigned_downloads: false, presigned_seconds: 300 },
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
    const [byEnv, byFlag] = [file("data_dir: env"), file("data_dir: flag")];
    const dataDir = (flags: Overrides) => {
      const loaded = loadConfig(flags, { BATCHD_CONFIG: byEnv });
      return loaded.ok && loaded.config.data_dir;
    };
    expect(dataDir({})).toBe("env");
    expect(dataDir({ config: byFlag })).toBe("flag");
  });
});

describe("where traces go", () => {
  const endpointOf = (yaml: string, env: Environment) => load(yaml, env).tracing?.endpoint;
  const ours = "tracing: { endpoint: http://ours:4318/v1/traces }";
  const traces = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://traces/in" };
  const collector = { OTEL_EXPORTER_OTLP_ENDPOINT: "http://collector:4318/" };

  test("nowhere, unless somebody says so", () => {
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
      "upstreams[0].base_url: expected an http:// or https:// address, such as http://localhost:8000",
    ]);
  });
});

/** `${NAME}`, as it stands in a file. */
const placeholder = (name: string) => `\${${name}}`;
const [A, B, C] = ["A", "B", "C"].map(placeholder) as [string, string, string];

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

describe("everything that is wrong is reported at once, each with its path", () => {
  test("values, missing and unknown keys, variables and flags together", () => {
    const problems = problemsOf(
      `
server: { host: "", prot: 1 }
data_dir: 5
log_level: loud
limits: { max_file_bytes: 0, max_line_byte: 4 }
auth: { keys: [{ name: "a b", key: "${A}" }, { name: ci, key: "sha256:12" }] }
upstreams:
  - base_url: ftp://x
    models: [{ name: a, upstrem_model: b }, ""]
    timeout_seconds: 0
engine: { drain_grace_seconds: -1 }
nonsense: 1
`,
      {},
      { port: "eighty" },
    );
    expect(problems.map((problem) => problem.slice(0, problem.indexOf(":")))).toEqual([
      "auth.keys[0].key",
      "port",
      "server.host",
      "server.prot",
      "data_dir",
      "log_level",
      "limits.max_file_bytes",
      "limits.max_line_byte",
      "auth.keys[0].name",
      "auth.keys[1].key",
      "upstreams[0].name",
      "upstreams[0].base_url",
      "upstreams[0].models[0].upstrem_model",
      "upstreams[0].models[1]",
      "upstreams[0].timeout_seconds",
      "engine.drain_grace_seconds",
      "nonsense",
    ]);
    expect(problems).toContain("server.prot: unknown key, did you mean port?");
    expect(problems).toContain("upstreams[0].name: required");
    expect(problems).toContain('port: expected a number from 0 to 65535, got "eighty"');
  });

  test.each(["70000", "-1", "80.5", "8e3", " 80", "0x50"])("port %j is refused", (port) => {
    expect(problemsOf("", {}, { port })).toHaveLength(1);
  });

  test("two upstreams, or two keys, of one name", () => {
    expect(
      problemsOf(`
auth: { keys: [{ name: k, key: a }, { name: k, key: b }] }
upstreams:
  - { name: u, base_url: http://a, models: [m] }
  - { name: v, base_url: http://b, models: [m] }
  - { name: u, base_url: http://c, models: [m] }
`),
    ).toEqual(['upstreams: two of them are named "u"', 'auth.keys: two of them are named "k"']);
  });

  test("an empty list of keys, which would lock everybody out", () => {
    expect(problemsOf("auth: { keys: [] }")).toHaveLength(1);
    expect(problemsOf("auth: {}")).toEqual(["auth.keys: required"]);
  });

  test.each(["- a list", "text", "5"])("a file that is no mapping: %s", (yaml) => {
    expect(problemsOf(yaml)[0]).toMatch(/^config: /);
  });

  test("a file that is not there", () => {
    const path = join(folder, "nowhere.yaml");
    const loaded = loadConfig({ config: path }, {});
    expect(loaded).toMatchObject({
      ok: false,
      problems: [expect.stringContaining(`cannot read ${path}`) as string],
    });
  });

  test("a file that is not YAML, or says one thing twice", () => {
    expect(problemsOf("server: {").length).toBeGreaterThan(0);
    expect(problemsOf("data_dir: a\ndata_dir: b")).toEqual([
      expect.stringMatching(/\.yaml: Map keys must be unique at line 2, column 1$/) as string,
    ]);
  });
});

test("a key may be given as its SHA-256", () => {
  const digest = `sha256:${"aB".repeat(32)}`;
  expect(load(`auth: { keys: [{ name: ci, key: "${digest}" }] }`).auth?.keys[0]?.key).toBe(digest);
});

describe("webhooks", () => {
  const endpoint = (values: string) =>
    `webhooks: { endpoints: [{ name: a, url: "https://a.example/hook", secret: s, ${values} }] }`;

  test("an endpoint takes its secret from the environment, and may ask for some events of a project", () => {
    const yaml = endpoint("").replace(
      "secret: s,",
      `secret: "${A}", events: [batch.failed], project: p`,
    );
    expect(load(yaml, { A: "whsec_c2VjcmV0cw==" }).webhooks.endpoints).toEqual([
      {
        name: "a",
        url: "https://a.example/hook",
        secret: "whsec_c2VjcmV0cw==",
        events: ["batch.failed"],
        project: "p",
      },
    ]);
  });

  test.each([
    ["evnts: [batch.failed]", "evnts: unknown key"],
    ["events: []", "events: "],
    ["events: [batch.finalizing]", "events[0]: "],
    ["project: a b", "project: use letters"],
  ])("%s is refused", (values, problem) => {
    expect(problemsOf(endpoint(values))).toEqual([
      expect.stringContaining(`webhooks.endpoints[0].${problem}`) as string,
    ]);
  });

  test.each([
    "",
    "hook.example",
    "ftp://hook.example",
    "https://me:pw@hook.example",
    "https://me@x",
  ])("the address %j is refused", (url) => {
    expect(problemsOf(endpoint("").replace("https://a.example/hook", url))).toEqual([
      expect.stringMatching(/^webhooks\.endpoints\[0\]\.url: /) as string,
    ]);
  });

  test.each([
    "",
    " s3cr3t",
    "s3cr3t\n",
    "whsec_",
    "whsec_s3cr3t",
    "whsec_s3cr3t!=",
    "whsec_s3-r3_==",
  ])("the secret %j is refused, without being shown", (secret) => {
    const problems = problemsOf(endpoint("").replace("secret: s,", `secret: "${A}"`), {
      A: secret,
    });
    expect(problems.length).toBeGreaterThan(0);
    expect(problems.every((each) => each.startsWith("webhooks.endpoints[0].secret: "))).toBe(true);
    expect(problems.join()).not.toContain("s3");
  });

  test.each(["localhost", "hooks.internal", "10.0.0.7", "::1", "[fd00::7]"])(
    "the private host %s can be allowed",
    (host) => {
      const { webhooks } = load(`webhooks: { allow_private_hosts: ["${host}"] }`);
      expect(webhooks.allow_private_hosts).toEqual([host]);
    },
  );

  test.each([
    "",
    "http://localhost",
    "localhost:80",
    "10.0.0.0/8",
    "a b",
    "me@host",
    "[::1",
    "host?",
  ])("the private host %j is refused", (host) => {
    expect(problemsOf(`webhooks: { allow_private_hosts: ["${host}"] }`)).toEqual([
      expect.stringContaining("webhooks.allow_private_hosts[0]: expected a host name") as string,
    ]);
  });

  test("two endpoints of one name are refused", () => {
    const one = "{ name: a, url: http://a, secret: s }";
    expect(problemsOf(`webhooks: { endpoints: [${one}, ${one}] }`)).toEqual([
      'webhooks.endpoints: two of them are named "a"',
    ]);
  });
});

test("values that never were in a file are held to the same rules", () => {
  expect(parseConfig({ server: { port: 0 } })).toMatchObject({ ok: true });
  expect(parseConfig({ server: { prot: 0 } })).toEqual({
    ok: false,
    problems: ["server.prot: unknown key, did you mean port?"],
  });
});

describe("sizes and durations", () => {
  const limitOf = (size: string) => load(`limits: { max_upload_bytes: ${size} }`).limits;
  const graceOf = (time: string) => load(`engine: { drain_grace_seconds: ${time} }`).engine;

  test.each([
    ["200MB", 200_000_000],
    ["200MiB", 209_715_200],
    ["1.1GB", 1_100_000_000],
    ["2 gib", 2_147_483_648],
    ["512B", 512],
    ["64kb", 64_000],
    ["209715200", 209_715_200],
    ['"209715200"', 209_715_200],
  ])("%s is a size", (size, bytes) => expect(limitOf(size).max_upload_bytes).toBe(bytes));

  test.each([
    ["30s", 30],
    ["500ms", 0.5],
    ["2m", 120],
    ["0.5h", 1_800],
    ["45", 45],
    ["1.5", 1.5],
    ['"45"', 45],
  ])("%s is a duration", (time, seconds) =>
    expect(graceOf(time).drain_grace_seconds).toBe(seconds),
  );

  test("they may come from the environment", () => {
    const config = load(`limits: { max_file_bytes: "${A}" }`, { A: "1MB" });
    expect(config.limits.max_file_bytes).toBe(1_000_000);
  });

  test.each(["200M", "200 megs", "MB", "-1MB", "1e6", "1,5MB", "0.5B", "0", "9999999TB"])(
    "%s is refused as a size, with what is accepted",
    (size) => {
      expect(problemsOf(`limits: { max_upload_bytes: "${size}" }`)).toEqual([
        "limits.max_upload_bytes: expected from 1 to 9007199254740991 bytes: a plain number, or one with a unit, such as 200MB (decimal) or 200MiB (binary)",
      ]);
    },
  );

  test.each(["30sec", "-5s", "2h", "1:30"])("%s is refused as a duration", (time) => {
    expect(problemsOf(`engine: { drain_grace_seconds: "${time}" }`)).toEqual([
      "engine.drain_grace_seconds: expected at most an hour: a plain number of seconds, or one with a unit, such as 500ms, 30s, 10m, 2h or 1d",
    ]);
  });
});

describe("a key that is not known comes with the one that was probably meant", () => {
  test.each([
    ["limts: {}", "limts: unknown key, did you mean limits?"],
    ["server: { hots: a }", "server.hots: unknown key, did you mean host?"],
    [
      "upstreams: [{ name: a, base_url: http://a/v1, models: [m], maxConcurrency: 3 }]",
      "upstreams[0].maxConcurrency: unknown key, did you mean max_concurrency?",
    ],
    [
      "upstreams: [{ name: a, base_url: http://a/v1, models: [{ name: m, nam: m }] }]",
      "upstreams[0].models[0].nam: unknown key, did you mean name?",
    ],
    ["server: { completely_else: a }", "server.completely_else: unknown key"],
  ])("%s", (yaml, problem) => expect(problemsOf(yaml)).toContain(problem));
});
