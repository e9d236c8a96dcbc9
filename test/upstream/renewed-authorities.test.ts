/** Upstreams whose private authority is replaced while batches run. */
import { writeFileSync } from "node:fs";
import { createServer } from "node:https";
import { join } from "node:path";
import { expect, test } from "vitest";
import { privateAuthority } from "../support/certificates.ts";
import { listening } from "../support/listening.ts";
import { TestProxy } from "../support/proxies.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const ANSWER = JSON.stringify({ object: "chat.completion", choices: [] });

/** A server whose certificate is of the one authority in `caFile`, and `next`, another authority. */
async function trusting() {
  const [former, next] = [await privateAuthority(), await privateAuthority()];
  const folder = temporaryFolder("batchd-authorities-");
  const caFile = join(folder.path, "ca.pem");
  writeFileSync(caFile, former.cert);
  const server = createServer(await former.issue({ ip: "127.0.0.1" }), (request, response) => {
    request.resume().once("end", () => {
      response.writeHead(200, { "content-type": "application/json" }).end(ANSWER);
    });
  });
  const base_url = `https://127.0.0.1:${await listening(server)}/v1`;
  const upstream = { name: "tls", base_url, models: ["*"], ca_file: caFile };
  return { folder, caFile, next, server, upstream };
}

test.each(["directly", "through a proxy"])(
  "a server whose certificate is of another authority is reached again %s once `ca_file` has that, without a restart",
  async (way) => {
    const { folder, caFile, next, server, upstream } = await trusting();
    using _ = folder;
    const proxy = way === "directly" ? {} : { proxy: (await TestProxy.start()).url };
    const config = { upstreams: [{ ...upstream, ...proxy }] };
    await using service = await startTestService({ config });
    expect((await service.run(chatLines(3))).status).toBe("completed");

    server.setSecureContext(await next.issue({ ip: "127.0.0.1" }));
    server.closeAllConnections();
    const batch = await service.submit(chatLines(3));
    await service.events.reached("upstream.unreachable", { target: "tls" });
    writeFileSync(caFile, next.cert);

    const { status, request_counts } = await service.ended(batch.id);
    expect(status).toBe("completed");
    expect(request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
  },
);

test("an authority that `ca_file` has lost is not trusted after a reload", async () => {
  const { folder, caFile, next, server, upstream } = await trusting();
  using _ = folder;
  const config = { upstreams: [upstream] };
  await using service = await startTestService({ config });
  expect((await service.run(chatLines(3))).status).toBe("completed");

  writeFileSync(caFile, next.cert);
  service.reconfigure(config);
  const batch = await service.submit(chatLines(3));
  const ended = service.ended(batch.id);
  const untrusted = service.events.reached("upstream.unreachable", { target: "tls" });
  expect(await Promise.race([untrusted, ended])).toBeUndefined();
  server.setSecureContext(await next.issue({ ip: "127.0.0.1" }));
  server.closeAllConnections();

  expect((await ended).status).toBe("completed");
});
