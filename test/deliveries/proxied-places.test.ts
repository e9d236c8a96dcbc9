/** A delivery to a server that is away behind a proxy, which answers in its place, or whose credentials are away. */
import { createServer, type RequestListener } from "node:http";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { listening } from "../support/listening.ts";
import { OxenServer } from "../support/oxen-server.ts";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, S3_KEYS, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

interface Away {
  readonly location: Record<string, unknown>;
  readonly message: string;
  readonly comeBack: () => void;
}

/** Delivers to a location that is away, lets it come back, and resolves once the results have arrived. */
async function expectToWait({ location, message, comeBack }: Away): Promise<void> {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    clock,
    config: { locations: [{ name: "lake", access: "write", ...location }] },
  });
  const { id } = await service.run(chatLines(1));
  const path = `/batches/${id}/deliveries`;
  const body = { location: "lake" };
  const { id: delivery } = (await service.openai.post(path, { body })) as DeliveryObject;
  const tries = ["delivery.given_up", "delivery.attempt_failed"] as const;
  await Promise.race(tries.map((end) => service.events.reached(end, { delivery })));
  expect(await service.openai.get(`${path}/${delivery}`)).toMatchObject({
    status: "pending",
    error: { code: "unavailable", message },
  });
  comeBack();
  clock.advance(60_000);
  await service.events.reached("delivery.delivered", { delivery });
}

describe("results wait while a proxy answers in the place", () => {
  test.runIf(hasS3Server()).each([302, 404, 405])("of a bucket with %i", async (status) => {
    await using server = await startS3Server();
    await using proxy = await startS3Proxy(server.url);
    const { type: _, ...place } = server.storage({ endpoint: proxy.url, prefix: "results/" });
    proxy.trouble = { kind: "page_found", status };
    await expectToWait({
      location: { kind: "s3", ...place },
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
      location: { kind: "oxen", url, repository: "ns/data" },
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
    location: { kind: "s3", ...place, prefix: "results/" },
    message: "output.jsonl in lake: batchd has no credentials for the bucket",
    comeBack: () => {
      isAway = false;
    },
  });
});
