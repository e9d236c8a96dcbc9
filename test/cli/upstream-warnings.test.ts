/** What `check` and a start say about upstreams that will not work as they are configured. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { stringify } from "yaml";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { BatchdProcess } from "../support/process.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const dir = forAllTests(temporaryFolder("batchd-warnings-")).path;

async function configFor(values: object): Promise<string> {
  const path = join(dir, "batchd.yaml");
  await writeFile(path, stringify(values));
  return path;
}

const entry = (name: string, base_url: string, more: object = {}) => ({
  name,
  base_url,
  models: ["*"],
  ...more,
});

const withoutPath = ({ url }: TestUpstream) => url.replace(/\/v1$/, "");

test("check warns of each, and still prints the configuration and leaves with 0", async () => {
  await using good = await startUpstream({ modelNames: ["small"] });
  await using strict = await startUpstream({ apiKey: "sk-right" });
  const closed = await startUpstream();
  const { url: closedUrl } = closed;
  await closed.close();
  const config = await configFor({
    default_model: "large",
    upstreams: [
      entry("good", good.url),
      entry("no-version", withoutPath(good), { models: ["a"] }),
      entry("endpoint", `${good.url}/chat/completions`, { models: ["b"] }),
      entry("down", closedUrl, { models: ["c"] }),
      entry("no-key", strict.url, { models: ["d"] }),
      entry("wrong-key", strict.url, { models: ["e"], api_key: "sk-wrong" }),
      entry("azure", withoutPath(good), { models: ["f"], azure: { api_version: "2024-10-21" } }),
    ],
  });

  const { code, stdout, stderr } = await runCommand(["check", "--config", config]);

  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toMatchObject({ default_model: "large" });
  expect(stderr.trimEnd().split("\n")).toEqual([
    expect.stringMatching(/^batchd: warning: the base_url of the upstream no-version has no \/v1 /),
    expect.stringMatching(
      /^batchd: warning: the base_url of the upstream endpoint ends in \/chat\/completions, /,
    ),
    expect.stringMatching(/^batchd: warning: the upstream no-version .*status 404/),
    expect.stringMatching(/^batchd: warning: the upstream endpoint .*status 404/),
    "batchd: warning: the upstream down does not answer: connection refused",
    "batchd: warning: the upstream no-key asks for a key (status 401): set api_key",
    "batchd: warning: the upstream wrong-key refuses the api_key (status 401)",
    "batchd: warning: no upstream lists the default_model large",
  ]);
});

test("a configuration that is well is checked without a word of warning", async () => {
  await using upstream = await startUpstream({ modelNames: ["small:latest"] });
  const config = await configFor({
    default_model: "small",
    upstreams: [entry("good", upstream.url)],
  });
  const { stderr } = await runCommand(["check", "--config", config]);
  expect(stderr).toBe("");
});

test("a start is neither delayed nor ended by upstreams that never answer, and warns of them afterwards", async () => {
  await using silent = await startUpstream();
  const { promise: asked, resolve } = Promise.withResolvers<void>();
  silent.sayModels = () => resolve();
  const upstreams = [entry("silent", silent.url)];
  const config = await configFor({ default_model: "m", upstreams });
  await using server = new BatchdProcess([
    "serve",
    "--port",
    "0",
    "--config",
    config,
    "--data-dir",
    join(dir, "data"),
  ]);

  const url = await server.listening();
  await asked;
  expect((await fetch(`${url}/ready`)).status).toBe(200);

  await server.loggedLike(/"warning":"the upstream silent does not answer: .*"config.warning"/);
  expect(await server.kill("SIGTERM")).toMatchObject({ code: 0 });
});
