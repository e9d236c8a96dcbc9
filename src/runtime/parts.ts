/**
 * The parts of which the engine and the use cases are made, and the making of those that need other parts. `work.ts` opens
 * them one after the other.
 */
import { resolve } from "node:path";
import { costsOf } from "../api/batch-costs.ts";
import { Projects } from "../api/projects.ts";
import { runRecordOf } from "../api/runs.ts";
import type { Batch } from "../batch/batch.ts";
import type { RulesOf } from "../batch/project.ts";
import type { BlobIntents } from "../blobs/blob-intents.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import { environmentSecrets, programEnvironment } from "../config/config.ts";
import { priceRules } from "../config/prices.ts";
import { projectRules, SENDS_NOTHING, UNLIMITED } from "../config/projects.ts";
import type { Config } from "../config/schema.ts";
import { ClientBuckets } from "../deliveries/client-buckets.ts";
import { DeliveryRunner } from "../deliveries/runner.ts";
import type { Fleet } from "../engine/fleet/fleet.ts";
import { Locations } from "../locations/locations.ts";
import type { MemoryBudget } from "../resources/memory-budget.ts";
import type { Store } from "../store/store.ts";
import type { AuditLog } from "../telemetry/audit-log.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { Upstreams } from "../upstream/upstream.ts";
import type { Webhooks } from "../webhooks/webhooks.ts";
import { isShared, pollEveryMs } from "./storage/databases.ts";
import { workFolderOf } from "./storage/storage.ts";

export interface Parts {
  /** The name of this process, which no other has. */
  readonly owner: string;
  readonly store: Store;
  readonly blobs: Blobs;
  readonly intents: BlobIntents;
  readonly upstreams: Upstreams;
  readonly webhooks: Webhooks;
  readonly locations: Locations;
  readonly clientBuckets: ClientBuckets;
  readonly deliveries: DeliveryRunner;
  readonly fleet: Fleet;
  /** The projects that were made at run time. */
  readonly projects: Projects;
  readonly audit: AuditLog;
  readonly memory: MemoryBudget;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly tracing: Tracing;
  /** The configuration in force. */
  readonly configNow: () => Config;
}

/** Makes the projects of a server. They are read when it starts. */
export function newProjects({
  store,
  clock,
  log,
  configNow,
}: Pick<Parts, "store" | "clock" | "log" | "configNow">): Projects {
  return new Projects({
    store,
    clock,
    log,
    isConfigured: (project) => configNow().projects.some(({ name }) => name === project),
    hasConfiguredKey: (project) =>
      configNow().auth?.keys.some((key) => key.project === project) ?? false,
  });
}

/**
 * Returns the rules for projects as the configuration in force has them. The rules of a project go with its data, but what
 * they have held back must not go out while its batches are cancelled.
 */
export const rulesOfAll =
  ({ configNow, projects }: Pick<Parts, "configNow" | "projects">): RulesOf =>
  (project) =>
    projects.deleted.includes(project)
      ? SENDS_NOTHING
      : (projectRules(configNow().projects, project) ?? projects.rulesOf(project) ?? UNLIMITED);

export const defaultModelOf = (config: Config) => config.default_model ?? null;

export const newLocations = (config: Config, clock: Clock): Locations =>
  new Locations(config.locations, {
    clock,
    workFolder: workFolderOf(config),
    environment: programEnvironment(),
    secrets: environmentSecrets(),
  });

export function newClientBuckets(config: Config, locations: Locations): ClientBuckets {
  // Servers on one database need one key, so a file in the folder of each would not do.
  const keyFolder = isShared(config) ? null : resolve(config.data_dir);
  return new ClientBuckets({ config: config.deliveries, keyFolder, locations });
}

/** Makes what delivers results. Nothing runs yet. */
export function newDeliveryRunner(parts: Omit<Parts, "deliveries" | "projects">): DeliveryRunner {
  const { store, blobs, intents, locations, clientBuckets, fleet, clock, log, metrics } = parts;
  const config = parts.configNow();
  return new DeliveryRunner({
    store,
    blobs,
    intents,
    clientBuckets,
    clock,
    log,
    metrics,
    findLocation: (project, name) => locations.find(project, name, "write"),
    locationsElsewhere: () => fleet.locations.filter((name) => !locations.takesResults(name)),
    areClientBucketsElsewhere: () => fleet.clientBuckets && clientBuckets.refusal() !== null,
    findLocationToClean: (name, placeId) => locations.findToClean(name, placeId),
    findInput: (batch) => store.findInput(batch),
    runRecord: (batch) => runRecordOf(batch, { store, costsFor: costsWith(parts) }),
    leaseTtlMs: config.engine.lease_seconds * 1000,
    checkEveryMs: pollEveryMs(config),
  });
}

/** Returns what calculates costs by the prices in force. */
export const costsWith =
  ({ store, configNow }: Pick<Parts, "store" | "configNow">) =>
  (batches: readonly Batch[]) =>
    costsOf(store, batches, priceRules(configNow().prices));
