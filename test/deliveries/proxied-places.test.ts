/** A delivery to a server that is away behind a proxy, which answers in its place, or whose credentials are away. */
import { createServer, type RequestListener } from "node:http";
import { describe, onTestFinished, test, vi } from "vitest";
import { expectToWait } from "../support/away-place.ts";
import { listening } from "../support/listening.ts";
import { OxenServer } from "../support/oxen-server.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, S3_KEYS, startS3Server } from "../support/s3-server.ts";

describe("results wait while a proxy answers in the place", () => {
  test.runIf(hasS3Server()).each([302, 404, 405])("of a bucket with %i", async (status) => {
    await using server = await startS3Server();
    await using proxy = await startS3Proxy(server.url);
    const { type: _, ...place } = server.storage({ endpoint: proxy.url, prefix: "results/" });
    proxy.trouble = { kind: "page_found", status };
    await expectToWait({
      location: { name: "lake", kind: "s3", ...place },
      message: `output.jsonl in lake: another server answers ${status} in its place`,
      comeBack: () => {
        proxy.trouble = null;
      },
    });
  });

  test.each([302, 404])("of an Oxen server with %i", async (status) => {
    const { http } = new OxenServer();
    const [serve] = http.listeners("request") as [RequestListener];
    let isAway = true;
    const server = createServer((asked, answer) => {
      if (!isAway) return serve(asked, answer);
      asked.resume();
      return answer.writeHead(status, { "content-type": "text/plain" }).end("page not found\n");
    });
    const url = `http://127.0.0.1:${await listening(server)}`;
    await expectToWait({
      location: { name: "lake", kind: "oxen", url, repository: "ns/data" },
      message: `another server answers ${status} in the place of the Oxen server`,
      comeBack: () => {
        isAway = false;
      },
    });
  });
});

test.runIf(hasS3Server())("results wait for a machine that does not say its role yet", async () => {
  await using server = await startS3Server();
  const { type: _, access_key_id, secret_access_key, ...place } = server.storage();
  const role = {
    AccessKeyId: S3_KEYS.access_key_id,
    SecretAccessKey: S3_KEYS.secret_access_key,
    Token: "",
    Expiration: "2099-01-01T00:00:00Z",
  };
  let isAway = true;
  const machine = createServer((_, answer) => {
    answer.writeHead(isAway ? 503 : 200, { "content-type": "application/json" });
    answer.end(JSON.stringify(role));
  });
  const url = `http://127.0.0.1:${await listening(machine)}/role`;
  vi.stubEnv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
  onTestFinished(() => void vi.unstubAllEnvs());
  await expectToWait({
    location: { name: "lake", kind: "s3", ...place, prefix: "results/" },
    message: "output.jsonl in lake: batchd has no credentials for the bucket",
    comeBack: () => {
      isAway = false;
    },
  });
});
