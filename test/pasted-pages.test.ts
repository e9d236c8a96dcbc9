/** Which test runs the commands of each page. A page with commands that is not listed here fails. */
import { spawnSync } from "node:child_process";
import { globSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { parseConfig } from "../src/config/config.ts";
import { blocksOf, paste } from "./support/paste.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const SHELL = /^ *```(?:sh|bash|shell|console)$/m;

/** The test that pastes the commands of a page, which names the page. */
const PASTED_BY: Readonly<Record<string, string>> = {
  "README.md": "test/readme.test.ts",
  "docs/clients.md": "test/readme.test.ts",
  "docs/command.md": "test/cli/command-page.test.ts",
  "docs/control.md": "test/control-guide.test.ts",
  "docs/costs.md": "test/guides.test.ts",
  "docs/data.md": "test/data-page.test.ts",
  "docs/deliveries.md": "test/delivery-guides.test.ts",
  "docs/locations.md": "test/delivery-guides.test.ts",
  "docs/opensearch.md": "test/operator-guides.test.ts",
  "docs/operating.md": "test/operator-guides.test.ts",
  "docs/pipelines.md": "test/cli/pipeline.test.ts",
  "docs/projects.md": "test/guides.test.ts",
  "docs/runs.md": "test/delivery-guides.test.ts",
  "docs/storage.md": "test/operator-guides.test.ts",
  "docs/webhooks.md": "test/pasted-pages.test.ts",
};

/** The commands that no test can run, each with the reason, and with what is checked in its place. */
const NOT_RUN: Readonly<Record<string, string>> = {
  "docker build":
    "needs the daemon of Docker and its registry; test/deploy.test.ts checks the Dockerfile",
  "docker run": "the same; the flags of batchd in it are checked below",
  "docker compose": "the same; test/deploy.test.ts checks the file",
  "docker push": "needs a registry",
  "helm install": "needs a cluster; npm run check:deploy lints and renders the chart",
  "cp deploy/example.env": "makes a file in the checkout; test/deploy.test.ts checks its variables",
  pg_dump: "must be as new as the server of the tests; its flags are checked below",
  pg_restore: "the same",
  "aws s3 sync": "is no tool of this project; its arguments are two buckets",
  "sudo ip addr add": "changes the addresses of the machine",
};

const pages = globSync(["*.md", "docs/*.md"], { cwd: ROOT }).toSorted();
const read = (path: string) => readFileSync(`${ROOT}${path}`, "utf8");

test("every page with commands has a test that runs them", () => {
  const withCommands = pages.filter((page) => SHELL.test(read(page)));
  expect(withCommands).toEqual(Object.keys(PASTED_BY).toSorted());
});

test.each(Object.entries(PASTED_BY))("%s is read by %s", (page, path) => {
  expect(read(path)).toContain(page.replace("docs/", ""));
});

/** The pages with some commands that do not run, and how the others begin. */
const PARTLY_RUN: Readonly<Record<string, RegExp>> = {
  "docs/opensearch.md": /^(?:npm start -- |curl |npx node )/,
  "docs/operating.md": /^(?:export |batchd serve |batchd keys |tar )/,
};

const commandsOf = (page: string): string[] =>
  blocksOf(page.replace("docs/", ""), "bash")
    .flatMap((block) => block.replaceAll("\\\n", " ").split("\n"))
    .flatMap((line) => line.split(" && "))
    .map((line) => line.replace(/ +#.*/, "").trim())
    .filter((line) => line !== "");

test("every command that does not run is listed with the reason, and no other one", () => {
  const left = Object.entries(PARTLY_RUN).flatMap(([page, runs]) =>
    commandsOf(page).filter((command) => !runs.test(command)),
  );
  const reasons = Object.keys(NOT_RUN);
  const reasonOf = (command: string) => reasons.find((each) => command.startsWith(each));
  expect(left.filter((command) => reasonOf(command) === undefined)).toEqual([]);
  expect(new Set(left.map(reasonOf))).toEqual(new Set(reasons));
});

const flagsIn = (text: string) => text.match(/(?<= )--?[a-z][a-z-]*/g) ?? [];

test("a command of batchd in a container has only flags that batchd has", () => {
  const known = flagsIn(
    ` ${read("src/cli/cli.ts")}${read("src/config/overrides.ts")}`.replaceAll('"', " "),
  );
  const runs = commandsOf("docs/operating.md").filter((each) => each.startsWith("docker run"));
  const flags = runs.flatMap((each) => flagsIn(each.slice(each.indexOf(" batchd serve "))));
  expect(flags.length).toBeGreaterThan(0);
  expect(known).toEqual(expect.arrayContaining(flags));
});

/** The tools whose flags can be looked up where they are installed. */
const helpOf: Readonly<Record<string, readonly string[]>> = {
  pg_dump: ["--help"],
  pg_restore: ["--help"],
  docker: ["run", "--help"],
};

test.each(Object.entries(helpOf))(
  "the commands of %s have only flags that it has",
  (tool, args) => {
    const help = spawnSync(tool, args, { encoding: "utf8" });
    // It is not installed here.
    if (help.error !== undefined) return;
    const begin = [tool, ...args.filter((arg) => !arg.startsWith("-"))].join(" ");
    const commands = commandsOf("docs/operating.md").filter((each) => each.startsWith(`${begin} `));
    expect(commands.length).toBeGreaterThan(0);
    for (const flag of commands.flatMap((each) => flagsIn(each.split(" batchd ")[0] ?? ""))) {
      expect(help.stdout).toMatch(new RegExp(`^ *.*(?<!\\S)${flag}\\b`, "m"));
    }
  },
);

test("docs/webhooks.md: the secret that its command makes is taken", async () => {
  const [block = ""] = blocksOf("webhooks.md", "bash");
  const { code, output } = await paste(block);
  expect(code).toBe(0);
  const endpoint = { name: "a", url: "https://example.com/hook", secret: output.trim() };
  expect(parseConfig({ webhooks: { endpoints: [endpoint] } })).toMatchObject({ ok: true });
});
