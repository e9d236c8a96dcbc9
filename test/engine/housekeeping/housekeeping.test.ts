/** The work that one replica does for all: processes on one PostgreSQL. */
import { describe, expect, test } from "vitest";
import { openStorage } from "../../../src/runtime/storage/storage.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { Fleet, type Member, submit } from "../../support/fleet.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { sharePostgres } from "../../support/postgres.ts";
import { Scrape } from "../../support/prometheus.ts";
import { chatLines, startTestService } from "../../support/service.ts";
import { temporaryFolder } from "../../support/store-builders.ts";
import { startUpstream } from "../../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("the fleet's housekeeping"));

/** The lines that are open, as this replica exports them; null when it leaves them to another. */
async function linesOpen({ url }: Pick<Member, "url">): Promise<number | null> {
  const text = await (await fetch(`${url}/metrics`)).text();
  return text.includes("\nbatchd_lines_open ")
    ? new Scrape(text).value("batchd_lines_open", {})
    : null;
}

describe.skipIf(postgres === null)("housekeeping", () => {
  test("is done by one replica, and by another once that one is killed", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const upstream = await fleet.upstream();
    upstream.hold();
    const worker = await fleet.worker({ upstream });
    const others = await Promise.all([fleet.api(), fleet.api()]);
    await submit(others[0], 40);
    await expect.poll(() => linesOpen(worker)).toBe(40);
    const all = (members: readonly Member[]) => Promise.all(members.map(linesOpen));
    // The sum over all replicas is the figure itself.
    expect((await all([worker, ...others])).toSorted()).toEqual([40, null, null]);

    await worker.batchd.kill();
    const ofOthers = async () => (await all(others)).toSorted();
    await expect.poll(ofOthers).toEqual([40, null]);
    const [holder, heir] = (await linesOpen(others[0])) === 40 ? others : others.toReversed();
    // A replica that ends by itself gives its duties away at once.
    await holder!.batchd.kill("SIGTERM");
    await expect.poll(() => linesOpen(heir!)).toBe(40);
  });
});

test.skipIf(postgres === null)(
  "what clients delete is removed by the replica that keeps house, whichever server they ask",
  async () => {
    using folder = temporaryFolder("batchd-house-");
    const config = { database_url: await postgres!.createDatabase() };
    const clock = new FakeClock();
    await using keeper = await startTestService({ clock, config, dataDir: folder.path });
    await using other = await startTestService({
      clock: new FakeClock(),
      config,
      dataDir: folder.path,
    });
    expect([await linesOpen(keeper), await linesOpen(other)]).toEqual([0, null]);
    const removedAt = ({ events }: typeof keeper) =>
      events.all.filter(({ event }) => event === "file.removed").length;
    const count = 20;
    for (let i = 0; i < count; i++) {
      await other.openai.files.delete(await other.upload(chatLines(1)));
    }
    const removed = () => {
      clock.advance(1_000);
      return [removedAt(keeper), removedAt(other)];
    };
    await expect.poll(removed).toEqual([count, 0]);
  },
);

test("a look at all deliveries that wait for open batches is not repeated at each end of a batch, but later", async () => {
  let looks = 0;
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    clock,
    upstreamUrl: upstream.url,
    openStorage: async (config, deps) => {
      const opened = await openStorage(config, deps);
      if (!opened.ok) return opened;
      const settleOverlookedDeliveries = async () => {
        looks++;
        return 0;
      };
      return { ...opened, store: { ...opened.store, settleOverlookedDeliveries } };
    },
  });
  for (let count = 1; count <= 3; count++) {
    await service.run(chatLines(1));
    // It is the last step of the sweep that follows the end of a batch, or comes after it.
    await service.openai.files.delete(await service.upload(chatLines(1)));
    await service.events.reached("file.removed", { count });
  }
  expect(looks).toBe(1);
  clock.advance(60_000);
  await expect.poll(() => looks).toBe(2);
});
