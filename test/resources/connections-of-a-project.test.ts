/** No project holds all connections of a server: a real process with few descriptors. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { BatchdProcess } from "../support/process.ts";
import { configWith } from "../support/projects.ts";
import { RawConnection } from "../support/raw-http.ts";
import { temporaryFolder } from "../support/store-builders.ts";

/** The beginning of an upload that goes on for as long as its client wants. */
const UPLOAD = [
  "POST /v1/files HTTP/1.1",
  "Host: localhost",
  "Authorization: Bearer key-a",
  "Content-Type: multipart/form-data; boundary=b",
  "Content-Length: 1000000",
  "",
  '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nnever ends',
].join("\r\n");

test("a project whose uploads never end leaves connections to others, and is told to come back", async () => {
  using folder = temporaryFolder("batchd-connections-");
  const configPath = join(folder.path, "batchd.yaml");
  const config = configWith({}, { server: { port: 0 }, data_dir: join(folder.path, "data") });
  writeFileSync(configPath, JSON.stringify(config));
  await using server = new BatchdProcess(["serve", "--config", configPath], { OPEN_FILES: "96" });
  const url = await server.listening();
  using uploads = new DisposableStack();
  const refusals: Promise<void>[] = [];
  for (let n = 0; n < 60; n++) {
    const connection = uploads.use(await RawConnection.open(url));
    connection.send(UPLOAD);
    const refusal = connection.answer().then(({ status, body }) => {
      expect(`${status} ${body}`).toMatch(/^429 .*Too many requests of the project are open/);
    });
    // Some are turned away before their request, and the end of the test ends the others.
    refusal.catch(() => {});
    refusals.push(refusal);
  }
  await Promise.any(refusals);
  const other = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key-b", maxRetries: 8 });
  expect((await other.files.list()).data).toEqual([]);
});
