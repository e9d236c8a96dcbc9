/**
 * What every store guarantees, whatever it is built on. An adapter's test is one call:
 * `describeStore("SQLite", open)`, where `open` gives an empty store each time.
 */
import { beforeEach, describe } from "vitest";
import { NOW_MS, storeClock } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";
import { testBatches } from "./store-batches.ts";
import { testChunkClaims } from "./store-chunk-claims.ts";
import { testChunks } from "./store-chunks.ts";
import { testDeleting } from "./store-deleting.ts";
import { testDeliveries } from "./store-deliveries.ts";
import { testDeliveryClaims } from "./store-delivery-claims.ts";
import { testFiles } from "./store-files.ts";
import { testFinalizing } from "./store-finalizing.ts";
import { testForecasts } from "./store-forecasts.ts";
import { testIdempotency } from "./store-idempotency.ts";
import { testIntents } from "./store-intents.ts";
import { testJournals } from "./store-journals.ts";
import { testKeys } from "./store-keys.ts";
import { testLeases } from "./store-leases.ts";
import { testPausing } from "./store-pausing.ts";
import { testProgress } from "./store-progress.ts";
import { testProjects } from "./store-projects.ts";
import { testQuotas } from "./store-quotas.ts";
import { testReplicas } from "./store-replicas.ts";
import { testRuns } from "./store-runs.ts";
import { testSources } from "./store-sources.ts";
import { testSpending } from "./store-spending.ts";
import { testStopping } from "./store-stopping.ts";
import { testTombstones } from "./store-tombstones.ts";
import { testUploads } from "./store-uploads.ts";
import { testUsage } from "./store-usage.ts";
import { testValidation } from "./store-validation.ts";
import { testWebhookDeliveries } from "./store-webhook-deliveries.ts";

export function describeStore(name: string, open: OpenStore): void {
  beforeEach(() => storeClock.setBy(NOW_MS - storeClock.nowMs()));
  describe(`${name} store: files`, () => testFiles(open));
  describe(`${name} store: batches`, () => testBatches(open));
  describe(`${name} store: validation`, () => testValidation(open));
  describe(`${name} store: chunks`, () => testChunks(open));
  describe(`${name} store: claims of chunks`, () => testChunkClaims(open));
  describe(`${name} store: leases`, () => testLeases(open));
  describe(`${name} store: stopping`, () => testStopping(open));
  describe(`${name} store: pausing`, () => testPausing(open));
  describe(`${name} store: finalizing`, () => testFinalizing(open));
  describe(`${name} store: journals`, () => testJournals(open));
  describe(`${name} store: sources`, () => testSources(open));
  describe(`${name} store: deleting`, () => testDeleting(open));
  describe(`${name} store: places of removed rows`, () => testTombstones(open));
  describe(`${name} store: deliveries`, () => testDeliveries(open));
  describe(`${name} store: claims of deliveries`, () => testDeliveryClaims(open));
  describe(`${name} store: deliveries to webhooks`, () => testWebhookDeliveries(open));
  describe(`${name} store: run records`, () => testRuns(open));
  describe(`${name} store: uploads`, () => testUploads(open));
  describe(`${name} store: intents and garbage`, () => testIntents(open));
  describe(`${name} store: usage`, () => testUsage(open));
  describe(`${name} store: replicas`, () => testReplicas(open));
  describe(`${name} store: forecasts`, () => testForecasts(open));
  describe(`${name} store: progress`, () => testProgress(open));
  describe(`${name} store: projects`, () => testProjects(open));
  describe(`${name} store: keys`, () => testKeys(open));
  describe(`${name} store: quotas`, () => testQuotas(open));
  describe(`${name} store: spending`, () => testSpending(open));
  describe(`${name} store: idempotency`, () => testIdempotency(open));
}
