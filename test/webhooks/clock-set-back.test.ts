/** What waits for another attempt when the clock of the machine is set back. SQLite has no other clock. */
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { startReceiver } from "../support/receiver.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const DAY_MS = 24 * 60 * 60 * 1000;

test("events and deliveries do not wait until the date from before, once the server has started again", async () => {
  using data = temporaryFolder("batchd-set-back-");
  using share = temporaryFolder("batchd-share-");
  const path = join(share.path, "later");
  writeFileSync(path, "no folder");
  await using upstream = await startUpstream();
  await using receiver = await startReceiver();
  receiver.reactNext({ status: 503 });
  const start = (clock: FakeClock) =>
    startTestService({
      clock,
      dataDir: data.path,
      upstreamUrl: upstream.url,
      config: {
        locations: [{ name: "share", kind: "folder", path, access: "write" }],
        webhooks: {
          endpoints: [{ name: "hook", url: receiver.url, secret: "a-secret-of-the-endpoint" }],
          allow_private_hosts: ["127.0.0.1"],
        },
      },
    });
  const today = Date.now();
  let batch = "none";
  {
    await using ahead = await start(new FakeClock(today + DAY_MS));
    batch = (await ahead.run(chatLines(1))).id;
    await ahead.events.reached("webhook.attempt_failed", { batch });
    const body = JSON.stringify({ location: "share" });
    await fetch(`${ahead.url}/v1/batches/${batch}/deliveries`, { method: "POST", body });
    await ahead.events.reached("delivery.attempt_failed", { batch });
  }
  rmSync(path);
  mkdirSync(path);
  await using service = await start(new FakeClock(today));
  await service.events.reached("webhook.delivered", { batch, attempt: 2 });
  await service.events.reached("delivery.delivered", { batch });
});
