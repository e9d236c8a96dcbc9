import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { AS_NPM_START, BatchdProcess, SOURCES } from "../support/process.ts";

/**
 * Writes, when the process ends, the address of each module that it has loaded, those inside Node included, and whether it
 * has formatted a number.
 */
const LIST_MODULES = `data:text/javascript,${encodeURIComponent(`
  import { writeFileSync } from "node:fs";
  import { registerHooks } from "node:module";
  const urls = [];
  registerHooks({ load: (url, context, next) => (urls.push(url), next(url, context)) });
  const use = (method) => function (...given) {
    urls.push("formatted");
    return Reflect.apply(method, this, given);
  };
  Number.prototype.toLocaleString = use(Number.prototype.toLocaleString);
  Intl.NumberFormat = new Proxy(Intl.NumberFormat, {
    construct: (made, given) => (urls.push("formatted"), new made(...given)),
  });
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
async function modulesOfAStart(options = ""): Promise<string> {
  const list = join(folder, "modules");
  const env = {
    ...AS_NPM_START,
    NODE_OPTIONS: `${options} --import=${LIST_MODULES}`,
    MODULE_LIST: list,
  };
  const args = ["serve", "--port", "0", "--data-dir", join(folder, "data")];
  await using batchd = new BatchdProcess(
    [...args, "--upstream", "http://127.0.0.1:9/v1"],
    env,
    SOURCES,
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

test("a plain start formats no number, for which Node would load 9 MB of tables", () => {
  expect(plain).not.toMatch(/^formatted$/m);
});

const TYPE_STRIPPER = /internal\/deps\/amaro/;

test("npm start from unchanged sources does not hold what strips their types in memory", async () => {
  expect(plain).toMatch(TYPE_STRIPPER);
  const modules = await modulesOfAStart(AS_NPM_START.NODE_OPTIONS);
  expect(modules).toMatch(/src\/runtime\/runtime\.ts/);
  expect(modules).not.toMatch(TYPE_STRIPPER);
});
