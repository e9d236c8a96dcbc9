import { createHash } from "node:crypto";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { loadConfig, parseConfig } from "../../src/config/config.ts";
import { A, problemsOf } from "../support/yaml-config.ts";

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

  test("a value of another type, in words, with the keys that belong there", () => {
    expect(
      problemsOf(`
auth: { keys: { name: ci } }
upstreams:
  - http://localhost:8000/v1
  - { name: gpu, base_url: "http://gpu", models: llama }
  - null
server: 5
`),
    ).toEqual([
      "server: expected keys with values (host, port, allowed_hosts), got a number",
      "auth.keys: expected a list, got keys with values",
      "upstreams[0]: expected keys with values (name, base_url, api_key, azure, …), got a text",
      "upstreams[1].models: expected a list, got a text",
      "upstreams[2]: expected keys with values (name, base_url, api_key, azure, …), got nothing",
    ]);
  });

  test("a number, a text or a list beyond its bounds, in words", () => {
    expect(
      problemsOf(`
server: { host: "" }
log_level: loud
locations: [{ name: a, kind: git, access: read, repository: /r, author_name: "<" }]
upstreams:
  - { name: a, base_url: "http://a", models: [], max_concurrency: 200000, headers: { "a b": c }, extra_body: { "": 1 } }
  - { name: b, base_url: "http://b", models: ["*"], max_concurrency: 0, min_concurrency: 1.5 }
`),
    ).toEqual([
      "server.host: expected a text, got an empty one",
      "log_level: expected one of debug, info, warn, error, silent",
      "locations[0].author_name: expected a text in one line without < and >",
      "upstreams[0].models: expected a list with entries, got none",
      "upstreams[0].max_concurrency: expected at most 100000, got 200000",
      "upstreams[0].headers.a b: expected the name of a header",
      "upstreams[0].extra_body.: expected a text, got an empty one",
      "upstreams[1].min_concurrency: expected a whole number, got 1.5",
      "upstreams[1].max_concurrency: expected at least 1, got 0",
    ]);
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

  test("one key in two entries, which may have different projects", () => {
    const digest = createHash("sha256").update("same").digest("hex").toUpperCase();
    expect(
      problemsOf(`
auth:
  keys:
    - { name: a, key: same, project: alpha }
    - { name: b, key: other, project: beta }
    - { name: c, key: "sha256:${digest}", project: gamma }
`),
    ).toEqual(['auth.keys: "a" and "c" are one key']);
  });

  test("an empty list of keys, which would lock everybody out", () => {
    expect(problemsOf("auth: { keys: [] }")).toHaveLength(1);
    expect(problemsOf("auth: {}")).toEqual(["auth.keys: required"]);
  });

  test.each(["- a list", "text", "5"])("a file that is no mapping: %s", (yaml) => {
    expect(problemsOf(yaml)[0]).toMatch(/^config: /);
  });

  test("a file that is not there", () => {
    const path = join(tmpdir(), "batchd-nowhere.yaml");
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

test.each([
  "upstreams: [{ name: a, base_url: http://a/v1, models: [*] }]",
  "prices: [{ model: *-embed, input: '1', currency: USD }]",
])("a star without quotes is told to need them: %s", (yaml) => {
  expect(problemsOf(yaml)).toEqual([
    expect.stringContaining('(a text that begins with * needs quotes, as in "*")') as string,
  ]);
});

const INDENTED_MORE = "is the next line indented more than this one?";
const UNLIKE_OTHERS = "is this line indented as the ones that it belongs to?";

test.each([
  ["server:\n host: a\n  port: 1", 2, INDENTED_MORE],
  ["upstreams:\n  - name: a\n      models: [m]", 2, INDENTED_MORE],
  [
    "auth:\n  keys:\n    - { name: ci }\n    - name: b: c",
    4,
    'A text with ": " in it needs quotes',
  ],
  ["server:\n  host: a\n port: 1", 3, UNLIKE_OTHERS],
  ["upstreams:\n  - name: a\n   models: [m]", 3, UNLIKE_OTHERS],
  ["server:\n  port:1", null, "(a colon needs a space behind it)"],
])(
  "a line that is not indented or divided as YAML needs it has one problem, with a mend: %j",
  (yaml, line, mend) => {
    const problems = problemsOf(yaml);
    expect(problems).toEqual([expect.stringContaining(mend)]);
    if (line !== null) expect(problems[0]).toContain(`at line ${line},`);
  },
);

test("a list in the place of a mapping has one problem, whatever the names in it", () => {
  expect(problemsOf("server:\n  - { toString: port }")).toEqual([
    expect.stringContaining("got a list"),
  ]);
});

const NEEDS_QUOTES = `a variable needs quotes, as in "\${NAME}")`;

test.each([`auth: { keys: [{ name: ci, key: ${A} }] }`, `server: { allowed_hosts: [${A}] }`])(
  "a variable without quotes in braces is told to need them: %s",
  (yaml) => {
    expect(problemsOf(yaml)).toContainEqual(expect.stringContaining(NEEDS_QUOTES));
  },
);

test("a second document in the file is named as such", () => {
  expect(problemsOf("server: { port: 1 }\n---\nserver: { port: 2 }")).toEqual([
    expect.stringContaining("one document only") as string,
  ]);
});

test("a missing comma is no variable without quotes", () => {
  const problems = problemsOf(`auth: { keys: [{ name: a, key: "${A}" } { name: b, key: b }] }`);
  expect(problems).toContainEqual(expect.stringContaining("Unexpected flow-map-start"));
  expect(problems.join()).not.toContain(NEEDS_QUOTES);
});

test("values that never were in a file are held to the same rules", () => {
  expect(parseConfig({ server: { port: 0 } })).toMatchObject({ ok: true });
  expect(parseConfig({ server: { prot: 0 } })).toEqual({
    ok: false,
    problems: ["server.prot: unknown key, did you mean port?"],
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
    ["port: 80", "port: unknown key, did you mean server.port?"],
    ["max_line_bytes: 80", "max_line_bytes: unknown key, did you mean limits.max_line_bytes?"],
    // Webhooks and deliveries both have it.
    ["allow_private_hosts: [a]", "allow_private_hosts: unknown key"],
    ["server: { completely_else: a }", "server.completely_else: unknown key"],
  ])("%s", (yaml, problem) => expect(problemsOf(yaml)).toContain(problem));
});

test("a secret that an empty variable leaves empty is named as empty", () => {
  const yaml = `
auth: { keys: [{ name: ci, key: "${A}" }] }
webhooks: { endpoints: [{ name: a, url: "http://a", secret: "${A}" }] }
`;
  expect(problemsOf(yaml, { A: "" })).toEqual([
    "auth.keys[0].key: expected printable ASCII without spaces or line breaks, got an empty text",
    "webhooks.endpoints[0].secret: expected text without spaces or line breaks around it, got an empty text",
  ]);
});
