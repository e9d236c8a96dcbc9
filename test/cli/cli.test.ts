import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { runCommand } from "../support/command.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

let dir = "";
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "batchd-cli-"));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

const serve = (...args: string[]) => new BatchdProcess(["serve", "--port", "0", ...args]);

describe("batchd serve", () => {
  test("says where it listens, and leaves with 0 on SIGTERM", async () => {
    await using server = serve("--data-dir", join(dir, "plain"));
    const url = await server.listening();
    expect((await fetch(`${url}/health`)).status).toBe(200);
    expect((await fetch(`${url}/ready`)).status).toBe(200);

    const exit = await server.kill("SIGTERM");

    expect(exit).toMatchObject({ code: 0, signal: null });
  });

  test("tells in one line that the port is taken", async () => {
    await using first = serve("--data-dir", join(dir, "first"));
    const port = new URL(await first.listening()).port;

    const exit = await serve("--port", port, "--data-dir", join(dir, "second")).exited();

    expect(exit).toMatchObject({ code: 1, stdout: "" });
    expect(exit.stderr).toMatch(/^batchd: .*port.*\n$/);
    expect(exit.stderr).toContain(port);
  });

  test("tells in one line that another process has the data folder", async () => {
    await using first = serve("--data-dir", join(dir, "shared"));
    await first.listening();

    const exit = await serve("--data-dir", join(dir, "shared")).exited();

    expect(exit.code).toBe(1);
    expect(exit.stderr).toMatch(
      /^batchd: another batchd is using the data folder .* --data-dir.*\n$/,
    );
  });

  test("tells in one line that the data folder cannot be written", async () => {
    const exit = await runCommand(["serve", "--port", "0", "--data-dir", "/proc/batchd"]);

    expect(exit.code).toBe(1);
    expect(exit.stderr).toMatch(/^batchd: cannot write to the data folder \/proc\/batchd: .*\n$/);
  });

  test("tells every problem of a wrong configuration with its path", async () => {
    const config = join(dir, "wrong.yaml");
    await writeFile(
      config,
      "server: { prot: 1 }\nupstreams:\n  - name: a\n    base_url: ftp://x\n    models: []\n",
    );

    const exit = await runCommand(["serve", "--config", config]);

    expect(exit.code).toBe(1);
    expect(exit.stderr).toContain("the configuration has 3 problems:");
    for (const path of ["server.prot", "upstreams[0].base_url", "upstreams[0].models"]) {
      expect(exit.stderr).toContain(`  - ${path}: `);
    }
  });

  test("takes no text for a secret that a shell would take for a variable", async () => {
    const config = join(dir, "shell-variables.yaml");
    await writeFile(
      config,
      `auth: { keys: [{ name: ci, key: $CI_KEY }, { name: ops, key: "\${OPS_KEY:-none}" }, { name: b, key: $ecret }] }\n`,
    );

    expect(await runCommand(["check", "--config", config])).toMatchObject({
      code: 1,
      stdout: "",
      stderr: `batchd: the configuration has 2 problems:
  - auth.keys[0].key: a variable is written \${NAME}, and not $NAME
  - auth.keys[1].key: after "\${" stands the name of a variable alone, as in \${NAME}: there are no defaults
`,
    });
  });

  test("names the flag whose address is none, and no entry of a list that is nowhere written", async () => {
    expect(await runCommand(["serve", "--upstream", "localhost:8000"])).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(
        /^batchd: the configuration has a problem: upstream: expected an http:.* address, such as .*\n$/,
      ) as string,
    });
  });

  test("warns that everybody has access when it listens beyond this machine, until a key is made", async () => {
    const folder = ["--data-dir", join(dir, "open")];
    const warning = "every client that can reach 0.0.0.0 can read and run everything";
    const stderrOf = async () => {
      await using server = serve("--host", "0.0.0.0", ...folder);
      await server.listening();
      server.signal("SIGHUP");
      await server.logged("config.reloaded");
      return (await server.kill("SIGTERM")).stderr;
    };
    // At its start, and at the reload.
    expect((await stderrOf()).split(warning)).toHaveLength(3);
    expect(await runCommand(["keys", "create", "--name", "ci", ...folder])).toMatchObject({
      code: 0,
    });
    expect(await stderrOf()).not.toContain(warning);
  });

  test("refuses a role that one process with SQLite cannot have", async () => {
    const exit = await runCommand(["serve", "--role", "worker"]);

    expect(exit.code).toBe(1);
    expect(exit.stderr).toMatch(/^batchd: --role worker needs a database/);
  });

  test("takes its options from the environment, and flags win", async () => {
    await using server = new BatchdProcess(["serve", "--port", "0"], {
      BATCHD_PORT: "nonsense",
      BATCHD_DATA_DIR: join(dir, "environment"),
    });

    expect(await server.listening()).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
  });

  test("finishes what is in flight after SIGTERM, and leaves at once at the second signal", async () => {
    await using upstream = await startUpstream();
    await using server = serve("--upstream", upstream.url, "--data-dir", join(dir, "busy"));
    const openai = new OpenAI({ baseURL: `${await server.listening()}/v1`, apiKey: "none" });
    const file = new File([chatLines(1, () => "[[hang]]").join("\n")], "hang.jsonl");
    const { id: input_file_id } = await openai.files.create({ file, purpose: "batch" });
    await createBatch(openai, input_file_id);
    await upstream.reached(1);

    server.signal("SIGTERM");
    await server.logged("server.stopping");
    const exit = await server.kill("SIGINT");

    expect(exit).toMatchObject({ code: 130, signal: null });
  });
});

test("batchd check warns of a data folder in a folder that is named ~", async () => {
  const { code, stderr } = await runCommand(["check", "--data-dir", "~/batchd"]);
  const made = join(process.cwd(), "~/batchd");
  expect(stderr).toContain(
    `warning: the data folder is ${made}, as only a shell takes ~ for another`,
  );
  expect(code).toBe(0);
});

test("batchd check prints the configuration without its secrets", async () => {
  const config = join(dir, "secret.yaml");
  await writeFile(
    config,
    "auth: { keys: [{ name: ci, key: sk-very-secret }] }\nupstreams: [{ name: a, base_url: http://a/v1, api_key: sk-also, models: [m] }]\nwebhooks: { endpoints: [{ name: h, url: http://h, secret: sk-too }] }\n",
  );

  const exit = await runCommand(["check", "--config", config]);

  expect(exit.code).toBe(0);
  expect(JSON.parse(exit.stdout)).toMatchObject({ upstreams: [{ name: "a", models: ["m"] }] });
  expect(exit.stdout).not.toContain("sk-");
  const asJson = await runCommand(["check", "--json", "--config", config]);
  const { config: found, warnings } = JSON.parse(asJson.stdout);
  expect([asJson.code, found]).toEqual([0, JSON.parse(exit.stdout)]);
  expect(warnings).toEqual([expect.stringMatching(/^the upstream a does not answer/)]);
  expect(asJson.stdout + asJson.stderr).not.toContain("sk-");
});

test("batchd migrate prepares a data folder and leaves", async () => {
  const exit = await runCommand(["migrate", "--data-dir", join(dir, "new")]);

  expect(exit).toMatchObject({ code: 0, stderr: "" });
  expect(exit.stdout).toMatch(/is up to date\n$/);
});

test("each command of operators has examples and exit codes in its help", async () => {
  const commands = [
    ...["serve", "check", "migrate", "migrate-to", "openapi"].map((name) => [name]),
    ...["create", "list", "revoke"].map((name) => ["keys", name]),
    ...["create", "list", "delete"].map((name) => ["projects", name]),
  ];
  for (const command of commands) {
    const { code, stdout } = await runCommand([...command, "--help"]);
    expect(code).toBe(0);
    expect(stdout, command.join(" ")).toMatch(/\nExamples:\n {2}\S.*\n {6}\S/);
    expect(stdout, command.join(" ")).toMatch(/\nExit codes:\n {2}0 +\S/);
    // Examples use options that exist.
    const examples = stdout.slice(stdout.indexOf("Examples:"), stdout.indexOf("Exit codes:"));
    for (const [option] of examples.matchAll(/--[a-z-]+/g)) expect(stdout).toContain(`  ${option}`);
  }
});

test.each([
  ["list", ["0", "1", "130"]],
  ["validate", ["0", "1", "4", "130"]],
])("the help of batchd %s names each code with which it ends", async (command, codes) => {
  const { stdout } = await runCommand([command, "--help"]);
  const named = stdout.slice(stdout.indexOf("Exit codes:")).matchAll(/^ {2}(\d+) /gm);
  expect([...named].map(([, code]) => code)).toEqual(codes);
});

test("the help of a command of a group is shown, and of an unknown one it is an error", async () => {
  const known = await runCommand(["help", "keys", "create"]);
  expect(known).toMatchObject({ code: 0, stderr: "" });
  expect(known.stdout).toContain("Usage: batchd keys create");
  for (const names of ["nope", "keys nope"]) {
    const unknown = await runCommand(["help", ...names.split(" ")]);
    expect(unknown).toMatchObject({ code: 1, stdout: "" });
    expect(unknown.stderr).toContain(`error: unknown command '${names}'\n`);
  }
});

test("an unknown option is an error, help is not", async () => {
  expect((await runCommand(["serve", "--prt", "1"])).code).toBe(1);
  const help = await runCommand(["--help"]);
  expect(help.code).toBe(0);
  // A person who sees batchd for the first time finds what to type.
  const commands = [...help.stdout.matchAll(/^ {2}([a-z][a-z-]+) /gm)].map(([, name]) => name);
  const examples = [...help.stdout.matchAll(/^ {2}batchd (\S+) .*\n {6}\S/gm)].map(
    ([, name]) => name,
  );
  expect(examples).toEqual(["serve", "validate", "submit", "run"]);
  expect(commands).toEqual(expect.arrayContaining(examples));
});
