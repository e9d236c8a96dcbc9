/** What `npm pack` ships, installed into an empty folder, is a batchd that works. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import OpenAI from "openai";
import { afterAll, beforeAll, expect, test } from "vitest";
import manifest from "../../package.json" with { type: "json" };
import lock from "../../package-lock.json" with { type: "json" };
import { submitLines } from "../support/batches.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const PROJECT = fileURLToPath(new URL("../..", import.meta.url));
const TARBALL = `${manifest.name}-${manifest.version}.tgz`;

const run = promisify(execFile);

let dir: string;
/** The installed command. */
let command: string;

/** `npm` itself, and what it installs, run on the Node.js of this test. */
const env = {
  ...process.env,
  PATH: [dirname(process.execPath), process.env["PATH"]].join(delimiter),
};

/** The folders of the packages that the tarball needs, and none that only the development of batchd does. */
function neededFolders(): string[] {
  return Object.entries(lock.packages)
    .filter(([path, entry]) => path !== "" && !("dev" in entry || "devOptional" in entry))
    .map(([path]) => path)
    .filter((path) => path.lastIndexOf("node_modules/") === 0 && existsSync(join(PROJECT, path)));
}

/**
 * Does what `npm install` does. The packages that the tarball needs are those of the project: npm would take as long to write
 * them as all tests of this file.
 */
async function install(): Promise<void> {
  const modules = join(dir, "node_modules");
  const installed = join(modules, manifest.name);
  await mkdir(installed, { recursive: true });
  await run("tar", ["-xzf", join(dir, TARBALL), "--strip-components=1", "-C", installed]);
  for (const folder of neededFolders()) {
    await mkdir(dirname(join(dir, folder)), { recursive: true });
    await symlink(join(PROJECT, folder), join(dir, folder));
  }
  const shipped = JSON.parse(await readFile(join(installed, "package.json"), "utf8"));
  const program = join(installed, shipped.bin.batchd);
  await chmod(program, 0o755);
  command = join(modules, ".bin", "batchd");
  await mkdir(dirname(command));
  await symlink(program, command);
}

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "batchd-package-"));
  // A copy: packing writes dist/, which must not change under the feet of other tests.
  const project = join(dir, "project");
  await mkdir(project);
  const skipped = new Set(["node_modules", ".git", "dist", "data"]);
  for (const name of await readdir(PROJECT)) {
    if (!skipped.has(name)) await run("cp", ["-r", join(PROJECT, name), project]);
  }
  await run("ln", ["-s", join(PROJECT, "node_modules"), project]);
  await run("npm", ["pack", "--pack-destination", dir], { cwd: project, env });
  await install();
});
afterAll(() => rm(dir, { recursive: true, force: true }));

test("the command says its version and its help", async () => {
  expect((await run(command, ["--version"], { env })).stdout).toBe(`${manifest.version}\n`);
  expect((await run(command, ["--help"], { env })).stdout).toContain("serve");
});

test("check reads a configuration", async () => {
  const config = join(dir, "batchd.yaml");
  await writeFile(config, "limits: { max_file_bytes: 5MB }\n");
  const { stdout } = await run(command, ["check", "--config", config], { env });
  expect(JSON.parse(stdout)).toMatchObject({ limits: { max_file_bytes: 5_000_000 } });
});

test("serve runs a first batch, on migrations and pages of its own", async () => {
  await using upstream = await startUpstream();
  const args = [
    "serve",
    "--port",
    "0",
    "--data-dir",
    join(dir, "data"),
    "--upstream",
    upstream.url,
  ];
  await using server = new BatchdProcess(args, {}, join(dir, "node_modules/batchd/dist/main.js"));
  const url = await server.listening();
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const { id } = await submitLines(openai, chatLines(3));
  await server.batchEnded(id);
  expect(await openai.batches.retrieve(id)).toMatchObject({
    status: "completed",
    request_counts: { total: 3, completed: 3, failed: 0 },
  });
  expect((await fetch(`${url}/docs/swagger-ui.css`)).status).toBe(200);
  expect(await server.kill("SIGTERM")).toMatchObject({ code: 0 });
});

test("an older Node.js is told in one line which one is needed", async () => {
  const older =
    "data:text/javascript,Object.defineProperty(process, 'versions', { value: { node: '20.20.2' } })";
  const main = join(dir, "node_modules/batchd/dist/main.js");
  const failed = run(process.execPath, ["--import", older, main, "--version"]);
  await expect(failed).rejects.toMatchObject({
    code: 1,
    stdout: "",
    stderr: "batchd: needs Node.js 24 or newer, and this is 20.20.2\n",
  });
  expect(manifest.engines.node).toBe(">=24");
  // An older one fails on what it parses before it runs anything: only the first file may be loaded.
  expect(await readFile(main, "utf8")).not.toMatch(/^import |\bawait\b|\?\?|\?\./m);
});

test("what is not needed to run it is not shipped", () => {
  const shipped = (path: string) => existsSync(join(dir, "node_modules/batchd", path));
  expect([shipped("dist/main.js"), shipped("migrations"), shipped("README.md")]).not.toContain(
    false,
  );
  expect([shipped("src"), shipped("test"), shipped("dist/main.js.map")]).not.toContain(true);
});
