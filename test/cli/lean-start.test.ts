import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { BatchdProcess, SOURCES, START } from "../support/process.ts";

/** Writes, when the process ends, the address of each module that it has loaded, those inside Node included. */
const LIST_MODULES = `data:text/javascript,${encodeURIComponent(`
  import { writeFileSync } from "node:fs";
  import { registerHooks } from "node:module";
  const urls = [];
  registerHooks({ load: (url, context, next) => (urls.push(url), next(url, context)) });
  process.on("exit", () =>
    writeFileSync(process.env.MODULE_LIST, [...urls, ...process.moduleLoadList].join("\\n")));
`)}`;

let folder: string;
/** The modules of a start from the sources. */
let plain: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "batchd-lean-start-"));
  plain = await modulesOfAStart();
});
afterAll(() => rm(folder, { recursive: true }));

/** The modules of a server that starts, listens and is stopped. */
async function modulesOfAStart(script = SOURCES): Promise<string> {
  const list = join(folder, "modules");
  const env = {
    NODE_OPTIONS: `--import=${LIST_MODULES}`,
    MODULE_LIST: list,
    // A start of the sources is to strip the types itself.
    ...(script === SOURCES && { NODE_DISABLE_COMPILE_CACHE: "1" }),
  };
  const args = ["serve", "--port", "0", "--data-dir", join(folder, "data")];
  await using batchd = new BatchdProcess(
    [...args, "--upstream", "http://127.0.0.1:9/v1"],
    env,
    script,
  );
  await batchd.listening();
  await batchd.kill("SIGTERM");
  return await readFile(list, "utf8");
}

test("a plain start loads nothing that only webhooks, traces, proxies, buckets, PostgreSQL, the API document or the commands of clients need", () => {
  expect(plain).toMatch(/undici\/lib\/dispatcher\/pool\.js/);
  expect(plain).not.toMatch(/undici\/index\.js|proxy-agent\.js/);
  expect(plain).not.toMatch(/standardwebhooks|zod-openapi|contract\/openapi/);
  expect(plain).not.toMatch(/@aws-sdk|@smithy|blobs\/s3/);
  expect(plain).not.toMatch(/node_modules\/pg\/|store\/postgres|drizzle-orm\/node-postgres/);
  expect(plain).not.toMatch(/node_modules\/(?:openai|cli-progress|@bomb)/);
  // prom-client itself loads the API.
  expect(plain).not.toMatch(/@opentelemetry\/(?!api)/);
});

const TYPE_STRIPPER = /internal\/deps\/amaro/;

test("npm start from unchanged sources does not hold what strips their types in memory", async () => {
  expect(plain).toMatch(TYPE_STRIPPER);
  await modulesOfAStart(START);
  const modules = await modulesOfAStart(START);
  expect(modules).toMatch(/src\/runtime\/runtime\.ts/);
  expect(modules).not.toMatch(TYPE_STRIPPER);
});
