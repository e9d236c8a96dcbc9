/** `batchd projects`, beside a server that runs on the same database. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { pathsBelow } from "../support/files-below.ts";
import { BatchdProcess } from "../support/process.ts";
import { temporaryFolder } from "../support/store-builders.ts";

test("a project is made, limited, listed and deleted with its data, and one of the configuration is not", async () => {
  using folder = temporaryFolder("batchd-projects-");
  const config = join(folder.path, "batchd.yaml");
  const dataDir = join(folder.path, "data");
  writeFileSync(config, JSON.stringify({ data_dir: dataDir, projects: [{ name: "fixed" }] }));
  const batchd = (...args: string[]) => runCommand([...args, "--config", config]);
  const projects = (...args: string[]) => batchd("projects", ...args);
  const key = await batchd("keys", "create", "--name", "shell", "--project", "search");
  await using server = new BatchdProcess(["serve", "--port", "0", "--config", config]);
  const baseURL = `${await server.listening()}/v1`;
  const openai = new OpenAI({ baseURL, apiKey: key.stdout.trim(), maxRetries: 0 });
  const upload = () =>
    openai.files.create({ file: new File(["{}\n"], "in.jsonl"), purpose: "batch" });

  const made = await projects("create", "search", "--weight", "2", "--quota", "files=1");
  expect(made).toMatchObject({ code: 0, stderr: "" });
  expect(made.stdout).toMatch(/^made search;/);
  const { id } = await upload();
  await expect.poll(() => upload().then(String, (error) => error.status)).toBe(429);
  expect((await projects("list")).stdout).toMatch(
    /^search +2 +\* +files=1 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC +no$/m,
  );
  const asJson = await projects("list", "--json");
  expect(JSON.parse(asJson.stdout)).toMatchObject({
    id: "search",
    object: "project",
    weight: 2,
    quotas: { files: 1 },
    deleted_at: null,
  });

  for (const args of [["create"], ["delete", "--yes"]]) {
    const refused = await projects(...args, "fixed");
    expect(refused.stderr).toMatch(/^batchd: The project fixed is in the configuration/);
    expect(refused.code).toBe(1);
  }
  const wrong = await projects("create", "search", "--quota", "file=1", "--quota", "files=x");
  expect(wrong).toMatchObject({
    code: 1,
    stderr:
      "batchd: quotas.files: expected a number, got a text\nbatchd: quotas.file: unknown key, did you mean files?\n",
  });

  const misspelled = await projects("delete", "serach", "--yes");
  expect(misspelled).toMatchObject({ code: 1, stderr: "batchd: No such project: serach\n" });
  const unsure = await projects("delete", "search");
  expect(unsure.stderr).toContain("--yes");
  expect(await projects("delete", "search", "--yes")).toMatchObject({
    code: 0,
    stdout: "deleted search and all its data\n",
  });
  const find = () =>
    openai.files.retrieve(id).then(
      () => 200,
      (error) => error.status,
    );
  await expect.poll(find).toBe(401);
  expect(pathsBelow(join(dataDir, "blobs"))).toEqual([]);
});

test("what clients without a key have stored is deleted beside the server, which then takes nothing that would be lost", async () => {
  using folder = temporaryFolder("batchd-projects-");
  const config = join(folder.path, "batchd.yaml");
  writeFileSync(config, JSON.stringify({ data_dir: join(folder.path, "data") }));
  await using server = new BatchdProcess(["serve", "--port", "0", "--config", config]);
  const baseURL = `${await server.listening()}/v1`;
  const openai = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const upload = () =>
    openai.files.create({ file: new File(["{}\n"], "in.jsonl"), purpose: "batch" }).then(
      () => 200,
      (error) => error.status,
    );
  expect(await upload()).toBe(200);
  const args = ["projects", "delete", "default", "--yes", "--config", config];
  expect(await runCommand(args)).toMatchObject({ code: 0 });
  await expect.poll(upload).toBe(403);
  expect((await openai.files.list()).data).toEqual([]);
});
