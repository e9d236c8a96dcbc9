/** What README.md, CONTRIBUTING.md and docs/ say about this repository is so: links, commands and configurations. */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, globSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import manifest from "../package.json" with { type: "json" };
import { parseConfig } from "../src/config/config.ts";
import { parsePipeline } from "../src/config/pipeline.ts";
import { ConfigFile } from "../src/config/schema.ts";
import { WAITING_REASONS } from "../src/contract/batch-extension.ts";
import { ACTIONS } from "../src/http/audit.ts";
import { killAtTestEnd } from "./support/leftovers.ts";
import { listening } from "./support/listening.ts";
import { COMPILE_CACHE } from "./support/process.ts";

const ROOT = fileURLToPath(new URL("../", import.meta.url));
const PAGES = globSync(["*.md", "docs/**/*.md"], { cwd: ROOT }).toSorted();

const textOf = (page: string) => readFileSync(join(ROOT, page), "utf8");

const inBackticks = (text: string) =>
  [...text.matchAll(/`([^`\n]+)`/g)].map(([, inside]) => inside ?? "");

const blocks = (text: string, language: string) =>
  [...text.matchAll(new RegExp(`^\`\`\`${language}\n([\\s\\S]*?)^\`\`\``, "gm"))].map(
    ([, block]) => block ?? "",
  );

/** The headings of a page as GitHub names them in links. */
const anchorsOf = (page: string) =>
  [...textOf(page).matchAll(/^#+ (.+)$/gm)].map(([, heading = ""]) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N} _-]/gu, "")
      .replaceAll(" ", "-"),
  );

describe("links", () => {
  test.each(PAGES)("those of %s lead to a file, and to a heading in it", (page) => {
    const broken = [...textOf(page).matchAll(/\]\(([^)\s]+)\)/g)]
      .map(([, target = ""]) => target)
      .filter((target) => !/^https?:/.test(target))
      .filter((target) => {
        const [path = "", anchor] = target.split("#");
        const file = path === "" ? page : join(dirname(page), path);
        if (!existsSync(join(ROOT, file))) return true;
        return anchor !== undefined && !anchorsOf(file).includes(anchor);
      });
    expect(broken).toEqual([]);
  });
});

/** Words and beginnings that make a reader stop. */
const OBSCURE = /\b(?:[Ww]hoever|[Nn]obody|that of)\b|(?:^|[.:;|] |- )Of /;

test.each(PAGES)("%s is in plain words", (page) => {
  const lines = textOf(page)
    .split("\n")
    .filter((line) => OBSCURE.test(line));
  expect(lines).toEqual([]);
});

describe("commands", () => {
  test("every script of npm that a page names is one", () => {
    const named = PAGES.flatMap((page) =>
      [...textOf(page).matchAll(/npm run ([\w:]+)/g)].map(([, name = ""]) => name),
    );
    expect(named.length).toBeGreaterThan(20);
    expect(named.filter((name) => !(name in manifest.scripts))).toEqual([]);
  });

  test("every file that a command of a page names is there", () => {
    const named = PAGES.flatMap((page) =>
      [...textOf(page).matchAll(/npx (?:node|vitest run) ([\w./-]+)/g)].map(
        ([, path = ""]) => path,
      ),
    );
    expect(named.length).toBeGreaterThan(3);
    expect(named.filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
  });

  test.each(PAGES)("every source file that %s names is there", (page) => {
    const named = inBackticks(textOf(page)).filter((text) => /^[\w./-]+\/[\w.-]+\.ts$/.test(text));
    const isThere = (path: string) => ["", "src"].some((at) => existsSync(join(ROOT, at, path)));
    expect(named.filter((path) => !isThere(path))).toEqual([]);
  });

  test("every place that CONTRIBUTING.md sends people to is there", () => {
    const paths = inBackticks(textOf("CONTRIBUTING.md")).filter(
      (text) => /^[\w.]*\/?[\w./-]*(?:\/|\.\w+)$/.test(text) && /[/.]/.test(text),
    );
    expect(paths.length).toBeGreaterThan(20);
    expect(paths.filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
  });
});

const SCRIPTS = [
  "bench/bench.ts",
  "conformance/run.ts",
  "examples/demo-model-server.ts",
  "test/chaos/run.ts",
];
test.each(SCRIPTS)("%s says its options, and what is wrong with another one", (script) => {
  const run = (option: string) =>
    spawnSync(process.execPath, [join(ROOT, script), option], {
      encoding: "utf8",
      env: { ...process.env, NODE_COMPILE_CACHE: COMPILE_CACHE },
    });
  const asked = run("--help");
  expect(asked).toMatchObject({ status: 0, stderr: "" });
  expect(asked.stdout).toMatch(/^np[mx] /);
  const wrong = run("--nope");
  expect(wrong).toMatchObject({ status: 1, stdout: "" });
  expect(wrong.stderr).toMatch(/^Unknown option '--nope'/);
  expect(wrong.stderr.endsWith(`\n${asked.stdout}`)).toBe(true);
});

test("the demo model server says that its port is taken", async () => {
  const other = createServer();
  const port = `${await listening(other)}`;
  const args = [join(ROOT, "examples/demo-model-server.ts"), "--port", port];
  expect(spawnSync(process.execPath, args, { encoding: "utf8" })).toMatchObject({
    status: 1,
    stdout: "",
    stderr: expect.stringMatching(new RegExp(`^cannot listen on port ${port}: .*EADDRINUSE.*\n$`)),
  });
});

test("the demo model server says what is wrong with messages that it does not take", async () => {
  const server = spawn(process.execPath, [
    join(ROOT, "examples/demo-model-server.ts"),
    "--port",
    "0",
  ]);
  killAtTestEnd(server);
  const [said] = (await once(server.stdout, "data")) as [Buffer];
  const url = /http:\S+/.exec(said.toString())?.[0];
  for (const messages of [
    "Hi",
    [null],
    [{ role: "user", content: [{ type: "text", text: "Hi" }] }],
  ]) {
    const body = JSON.stringify({ model: "demo-model", messages });
    const answer = await fetch(`${url}/chat/completions`, { method: "POST", body });
    expect([answer.status, await answer.json()]).toMatchObject([
      400,
      { error: { param: "messages" } },
    ]);
  }
});

test("docs/clients.md names every reason for which a batch waits", () => {
  const row = textOf("docs/clients.md")
    .split("\n")
    .find((line) => line.startsWith("| `waiting` |"));
  expect(inBackticks(row ?? "")).toEqual(expect.arrayContaining([...WAITING_REASONS]));
});

test("docs/projects.md names every action of the audit log", () => {
  const names = Object.values(ACTIONS).filter((name) => name !== null);
  expect(inBackticks(textOf("docs/projects.md"))).toEqual(expect.arrayContaining(names));
});

test("README.md has at most 200 lines", () => {
  expect(textOf("README.md").split("\n").length).toBeLessThanOrEqual(200);
});

describe("configurations", () => {
  /** Secrets of the form that every key of the configuration takes, one for each variable. */
  const withSecrets = (yaml: string) =>
    yaml.replaceAll(/\$\{(\w+)\}/g, (_, name: string) => `sk-0123456789-${name.padEnd(26, "x")}`);
  const isOurs = (value: unknown) =>
    Object.keys(value as object).every((key) => key in ConfigFile.shape);
  const problemsOf = (values: unknown) => {
    const parsed = parseConfig(values);
    return parsed.ok ? [] : parsed.problems;
  };

  test("the server takes every configuration that a page shows", () => {
    const shown = PAGES.flatMap((page) =>
      blocks(textOf(page), "yaml").map((yaml) => ({ page, values: parse(withSecrets(yaml)) })),
    ).filter(({ values }) => isOurs(values));
    expect(shown.length).toBeGreaterThan(5);
    expect(
      shown.flatMap(({ page, values }) => problemsOf(values).map((each) => [page, each])),
    ).toEqual([]);
  });

  const [pipelines, configurations] = ["examples/pipelines/*.yaml", "examples/**/*.yaml"].map(
    (pattern) => globSync(pattern, { cwd: ROOT }),
  ) as [string[], string[]];

  test.each(pipelines)("%s is a pipeline", (path) => {
    expect(parsePipeline(textOf(path))).toMatchObject({ steps: expect.any(Array) });
  });

  const others = configurations.filter((path) => !pipelines.includes(path));
  test.each(others)("the server takes %s", (path) => {
    expect(problemsOf(parse(withSecrets(textOf(path))))).toEqual([]);
  });

  /** The least that lists of mappings need, so that an example can stand in them. */
  const LEAST = {
    upstreams: { name: "a", base_url: "http://localhost/v1", models: ["*"] },
    "upstreams.schedule.windows": { from: "00:00", to: "24:00" },
    "upstreams.schedule": { windows: [{ from: "00:00", to: "24:00" }] },
    "webhooks.endpoints": { name: "a", url: "http://example.com", secret: "whsec" },
    storage: {
      type: "s3",
      bucket: "b",
      access_key_id: "a",
      secret_access_key: "sk-0123456789",
      server_side_encryption: "aws:kms",
    },
    "auth.keys": { name: "a", key: "sk-0123456789" },
    projects: { name: "a" },
    locations: {
      name: "a",
      kind: "s3",
      access: "read",
      bucket: "b",
      server_side_encryption: "aws:kms",
      access_key_id: "a",
      secret_access_key: "sk-0123456789",
    },
    "locations.projects": { name: "a", kind: "folder", access: "read", path: "/mnt" },
    ...Object.fromEntries(
      ["repository", "username", "password", "ssh_key_file", "max_file_bytes"].map((key) => [
        `locations.${key}`,
        {
          name: "a",
          kind: "git",
          access: "read",
          repository: "https://example.com/a",
          ...(["username", "password"].includes(key) && {
            username: "a",
            password: "sk-0123456789",
          }),
        },
      ]),
    ),
    ...Object.fromEntries(
      ["url", "token"].map((key) => [
        `locations.${key}`,
        {
          name: "a",
          kind: "oxen",
          access: "read",
          url: "http://oxen:3000",
          repository: "ns/name",
        },
      ]),
    ),
    "locations.path": { name: "a", kind: "folder", access: "read" },
    prices: { model: "*", currency: "USD" },
  } as Record<string, object>;

  /** A configuration in which the key at this path has this value. */
  function configWith(steps: readonly string[], value: unknown, above = ""): unknown {
    const [step = "", ...rest] = steps;
    const name = step.replace("[]", "");
    const path = above === "" ? name : `${above}.${name}`;
    if (rest.length === 0) return { [name]: value };
    const least = (path === "locations" && LEAST[`locations.${rest[0]}`]) || LEAST[path];
    const inside = { ...least, ...(configWith(rest, value, path) as object) };
    return { [name]: step.endsWith("[]") ? [inside] : inside };
  }

  const examples = [
    ...textOf("docs/configuration.md").matchAll(/^\| `([\w.[\]]+)` .* Example: `([^`]+)` \|$/gm),
  ].map(([, path = "", example = ""]) => [path, example] as const);

  test("docs/configuration.md has examples", () => expect(examples.length).toBeGreaterThan(15));

  test.each(examples)("%s may be %s", (path, example) => {
    const value = parse(withSecrets(example));
    expect(problemsOf(configWith(path.split("."), value))).toEqual([]);
  });
});
