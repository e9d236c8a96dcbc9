import { expect, test } from "vitest";
import type { Batch, BatchId } from "../../src/batch/batch.ts";
import type { Store } from "../../src/store/store.ts";
import type { Announcement, WebhookDelivery } from "../../src/store/webhook-deliveries.ts";
import {
  AFTER_LEASES_MS,
  aFailure,
  aFile,
  anAnnouncement,
  aResult,
  at,
  claimBy,
  claimToFinalize,
  claimWebhookDeliveries,
  finalizingBatch,
  finishBatch,
  insertBatch,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const END_MS = NOW_MS + 5;
const CLAIM = { ...claimBy("sender"), limit: 10, maxLeased: 100 };
const AFTER_CLAIM_MS = AFTER_LEASES_MS + 5;

const due = (store: Store, atMs = AFTER_CLAIM_MS): Promise<WebhookDelivery[]> =>
  claimWebhookDeliveries(at(store, atMs), CLAIM);

const held = ({ webhookId }: Announcement, owner = CLAIM.owner) => ({ webhookId, owner });

const keys = (deliveries: readonly Announcement[]) => deliveries.map(({ webhookId }) => webhookId);

/** A batch that completed, with these announcements. */
async function completedBatch(
  store: Store,
  announcements: readonly Announcement[],
  { atMs = END_MS, ...fields }: { readonly atMs?: number; readonly project?: string } = {},
): Promise<Batch> {
  const { batch } = await finalizingBatch(store, fields);
  const lease = await claimToFinalize(store);
  await finishBatch(at(store, atMs), lease, aResult({ announcements }));
  return batch;
}

export function testWebhookDeliveries(open: OpenStore): void {
  testOutbox(open);
  testClaims(open);
  testEnds(open);
}

/** The ways in which a batch becomes final, each with an announcement. */
const ENDINGS: Record<string, (store: Store, announcements: Announcement[]) => Promise<BatchId>> = {
  completed: async (store, announcements) => (await completedBatch(store, announcements)).id,
  failed: async (store, announcements) => {
    const { batch } = await insertBatch(store);
    const claimed = await store.claimBatchToValidate(claimBy("validator"));
    await at(store, END_MS).failBatchIfLeased(claimed!.lease, aFailure({ announcements }));
    return batch.id;
  },
  cancelled: async (store, announcements) => {
    const { batch } = await insertBatch(store);
    await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
    const lease = await claimToFinalize(store);
    await finishBatch(at(store, END_MS), lease, aResult({ announcements }));
    return batch.id;
  },
  expired: async (store, announcements) => {
    const { batch } = await startBatch(store, ["llama"], { expiresAtMs: NOW_MS });
    await store.stopExpiredBatches();
    const lease = await claimToFinalize(store);
    await finishBatch(at(store, END_MS), lease, aResult({ announcements }));
    return batch.id;
  },
};

function testOutbox(open: OpenStore): void {
  for (const [status, end] of Object.entries(ENDINGS)) {
    test(`a batch that ends ${status} is told to every webhook, from that moment on`, async () => {
      const { store } = await open();
      const announcements = [anAnnouncement(), anAnnouncement({ webhook: "daily" })];
      const batchId = await end(store, announcements);
      const ended = await store.findBatch({ project: PROJECT, id: batchId });
      expect(ended?.status).toBe(status);
      expect(await due(store, END_MS - 1)).toEqual([]);
      expect(await due(store, END_MS)).toEqual(
        announcements.map((announcement) => ({
          ...announcement,
          batchId,
          project: PROJECT,
          status,
          counts: ended?.counts,
          createdAtMs: END_MS,
          attemptCount: 0,
        })),
      );
    });
  }

  test("nothing is told of a batch that did not end after all", async () => {
    const { store } = await open();
    const announcements = [anAnnouncement()];
    const { batch } = await finalizingBatch(store);
    const stale = await claimToFinalize(store);
    await claimToFinalize(at(store, AFTER_LEASES_MS));
    expect(await finishBatch(at(store, END_MS), stale, aResult({ announcements }))).toBe(false);

    const other = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    await store.cancelBatchIfOpen({ project: PROJECT, id: other.batch.id });
    const failure = aFailure({ announcements });
    expect(await at(store, END_MS).failBatchIfLeased(validation!.lease, failure)).toBe(false);
    expect((await store.findBatch({ project: PROJECT, id: batch.id }))?.status).toBe("finalizing");
    expect(await due(store)).toEqual([]);
  });

  test("nothing is told of a batch whose files could not be published", async () => {
    const { store } = await open();
    const { input } = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    const output = aFile({ id: input.id });
    const announcements = [anAnnouncement()];
    await expect(
      finishBatch(at(store, END_MS), lease, aResult({ output, announcements })),
    ).rejects.toThrow();
    expect(await due(store)).toEqual([]);
  });

  test("a batch is not final before all its announcements are written", async () => {
    const { store } = await open();
    const told = anAnnouncement();
    await completedBatch(store, [told]);
    const announcements = [anAnnouncement(), told];

    const completing = await finalizingBatch(store);
    const lease = await claimToFinalize(store);
    await expect(
      finishBatch(at(store, END_MS), lease, aResult({ announcements })),
    ).rejects.toThrow();
    const failing = await insertBatch(store);
    const validation = await store.claimBatchToValidate(claimBy("validator"));
    await expect(
      at(store, END_MS).failBatchIfLeased(validation!.lease, aFailure({ announcements })),
    ).rejects.toThrow();

    const statusOf = async ({ batch }: { batch: Batch }) =>
      (await store.findBatch({ project: PROJECT, id: batch.id }))?.status;
    expect(await statusOf(completing)).toBe("finalizing");
    expect(await statusOf(failing)).toBe("validating");
    expect(keys(await due(store))).toEqual([told.webhookId]);
  });

  test("what is to be told outlives a restart", async () => {
    const opened = await open();
    const announcement = anAnnouncement();
    const { id } = await completedBatch(opened.store, [announcement]);
    const store = await opened.reopen();
    expect(await due(store)).toMatchObject([{ ...announcement, batchId: id }]);
  });
}

function testClaims(open: OpenStore): void {
  test("of many senders that claim at once, each delivery has one", async () => {
    const { store } = await open();
    const announcements = Array.from({ length: 20 }, () => anAnnouncement());
    await completedBatch(store, announcements);
    const claims = await Promise.all(
      Array.from({ length: 12 }, (_, i) =>
        claimWebhookDeliveries(store, { ...CLAIM, owner: `sender-${i}`, limit: 2 }),
      ),
    );
    expect(keys(claims.flat()).toSorted()).toEqual(keys(announcements).toSorted());
  });

  test("what is due longest goes first, and no more than asked for", async () => {
    const { store } = await open();
    const [postponed, late, early, latest] = Array.from({ length: 4 }, () => anAnnouncement());
    await completedBatch(store, [postponed!]);
    // No other delivery is due yet.
    await claimWebhookDeliveries(store, { ...CLAIM, limit: 1 });
    await store.postponeWebhookDeliveryIfHeld(held(postponed!), 3);
    await completedBatch(store, [late!, latest!], { atMs: END_MS + 2 });
    await completedBatch(store, [early!], { atMs: END_MS + 1 });
    at(store, END_MS);
    expect(
      keys(await claimWebhookDeliveries(at(store, END_MS + 3), { ...CLAIM, limit: 3 })),
    ).toEqual(keys([early!, late!, latest!]));
    expect(keys(await claimWebhookDeliveries(store, CLAIM))).toEqual([postponed!.webhookId]);
    expect(await claimWebhookDeliveries(store, { ...CLAIM, limit: 0 })).toEqual([]);
  });

  test("the projects take turns at a webhook, past those with nothing due", async () => {
    const { store } = await open();
    const [first, second, third, late, other] = Array.from({ length: 5 }, () => anAnnouncement());
    await completedBatch(store, [late!], { project: "late" });
    await claimWebhookDeliveries(at(store, END_MS), CLAIM);
    await store.postponeWebhookDeliveryIfHeld(held(late!), 1_000_000);
    await completedBatch(store, [first!, second!, third!], { project: "many" });
    await completedBatch(store, [other!], { project: "one" });
    at(store, AFTER_CLAIM_MS);
    const turns: string[] = [];
    for (let afterProject = ""; ; ) {
      const next = await store.claimWebhookDelivery({
        ...claimBy("sender"),
        webhook: "ci",
        maxLeased: 10,
        afterProject,
      });
      if (next === null) break;
      turns.push(next.webhookId);
      afterProject = next.project;
    }
    expect(turns).toEqual(keys([first!, other!, second!, third!]));
  });

  test("a delivery is found behind more projects than one claim looks at", async () => {
    const { store } = await open();
    for (let n = 100; n <= 201; n++)
      await completedBatch(store, [anAnnouncement()], { project: `p${n}` });
    const waiting = await claimWebhookDeliveries(at(store, END_MS), {
      ...CLAIM,
      limit: 200,
      maxLeased: 200,
    });
    expect(waiting).toHaveLength(102);
    for (const each of waiting) await store.postponeWebhookDeliveryIfHeld(held(each), 1_000_000);
    const announcement = anAnnouncement();
    await completedBatch(store, [announcement], { project: "q" });
    expect(keys(await due(store))).toEqual([announcement.webhookId]);
  });

  test("deliveries to a webhook with enough under way, in any process, wait and hold up no other", async () => {
    const { store } = await open();
    const slow = Array.from({ length: 3 }, () => anAnnouncement({ webhook: "slow" }));
    const quick = anAnnouncement({ webhook: "quick" });
    await completedBatch(store, [...slow, quick]);
    const claim = (owner: string) =>
      claimWebhookDeliveries(store, { ...claimBy(owner), limit: 1, maxLeased: 2 });
    expect(keys(await claim("one"))).toEqual([quick.webhookId]);
    expect(keys(await claim("other"))).toEqual([slow[0]!.webhookId]);
    expect(keys(await claim("one"))).toEqual([slow[1]!.webhookId]);
    expect(await claim("other")).toEqual([]);
    await store.forgetWebhookDelivery(slow[0]!.webhookId);
    expect(keys(await claim("other"))).toEqual([slow[2]!.webhookId]);
  });

  test("of many senders that claim at once, no more get deliveries to a webhook than may be under way", async () => {
    const { store } = await open();
    const announcements = Array.from({ length: 20 }, () => anAnnouncement());
    await completedBatch(store, announcements);
    const claimAtOnce = async () => {
      const claims = await Promise.all(
        Array.from({ length: 12 }, (_, i) =>
          claimWebhookDeliveries(store, { ...claimBy(`sender-${i}`), limit: 1, maxLeased: 2 }),
        ),
      );
      return claims.flat();
    };
    const first = await claimAtOnce();
    expect(first).toHaveLength(2);
    expect(await claimAtOnce()).toEqual([]);
  });

  test("a delivery is claimable again exactly when its lease has run out, with its attempts counted", async () => {
    const { store } = await open();
    await completedBatch(store, [anAnnouncement()]);
    expect(await due(store, END_MS)).toMatchObject([{ attemptCount: 0 }]);
    expect(await due(store, AFTER_CLAIM_MS - 1)).toEqual([]);
    expect(await due(store, AFTER_CLAIM_MS)).toMatchObject([{ attemptCount: 1 }]);
  });
}

function testEnds(open: OpenStore): void {
  test("a postponed delivery is due again at its new time, whatever was left of its lease", async () => {
    const { store } = await open();
    const announcement = anAnnouncement();
    await completedBatch(store, [announcement]);
    await due(store, END_MS);
    await store.postponeWebhookDeliveryIfHeld(held(announcement), 10);
    expect(await due(store, END_MS + 9)).toEqual([]);
    expect(await due(store, END_MS + 10)).toMatchObject([{ ...announcement, attemptCount: 1 }]);
    await store.postponeWebhookDeliveryIfHeld(
      held(announcement),
      AFTER_CLAIM_MS * 2 - (END_MS + 10),
    );
    expect(await due(store, AFTER_CLAIM_MS * 2 - 1)).toEqual([]);
    expect(await due(store, AFTER_CLAIM_MS * 2)).toMatchObject([{ attemptCount: 2 }]);
  });

  test("a delivery that is over is never due again, and the others stay", async () => {
    const { store } = await open();
    const [over, waiting] = [anAnnouncement(), anAnnouncement()];
    await completedBatch(store, [over, waiting]);
    await due(store, END_MS);
    await store.forgetWebhookDelivery(over.webhookId);
    await store.postponeWebhookDeliveryIfHeld(held(over), 0);
    expect(keys(await due(store))).toEqual([waiting.webhookId]);
  });

  test("a sender that was away beyond its lease does not release the delivery of the next one", async () => {
    const { store } = await open();
    const announcement = anAnnouncement();
    await completedBatch(store, [announcement]);
    await due(store, END_MS);
    await claimWebhookDeliveries(at(store, AFTER_CLAIM_MS), { ...CLAIM, owner: "next" });
    await store.postponeWebhookDeliveryIfHeld(held(announcement), 0);
    expect(await due(store, AFTER_CLAIM_MS)).toEqual([]);
    await store.postponeWebhookDeliveryIfHeld(held(announcement, "next"), 0);
    expect(await due(store, AFTER_CLAIM_MS)).toHaveLength(1);
  });
}
