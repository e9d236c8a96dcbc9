import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { startReceiver } from "../support/receiver.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("servers with different webhooks"));

test.skipIf(postgres === null)(
  "an event that an endpoint asks for at one server is not dropped by another",
  async () => {
    using folder = temporaryFolder("batchd-webhooks-");
    await using upstream = await startUpstream();
    await using receiver = await startReceiver();
    const database_url = await postgres!.createDatabase();
    const start = (events: object) => {
      const endpoint = { name: "hook", url: receiver.url, secret: "of the receiver", ...events };
      const webhooks = { endpoints: [endpoint], allow_private_hosts: ["127.0.0.1"] };
      const config = { database_url, webhooks };
      return startTestService({ upstreamUrl: upstream.url, dataDir: folder.path, config });
    };
    await using changed = await start({});
    await using unchanged = await start({ events: ["batch.failed"] });
    // The one that keeps house says it.
    await Promise.race(
      [changed, unchanged].map(({ events }) => events.reached("replicas.disagree")),
    );
    const ids: string[] = [];
    for (let n = 1; n <= 8; n++) ids.push((await changed.submit(chatLines(1))).id);
    await receiver.reached(ids.length);
    const told = receiver.seen.map(({ body }) => JSON.parse(body).data.id as string);
    expect(told.toSorted()).toEqual(ids.toSorted());
    expect(unchanged.events.count("webhook.delivered")).toBe(0);
  },
);
