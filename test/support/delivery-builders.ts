import type { Batch, UntrustedId } from "../../src/batch/batch.ts";
import {
  type Delivery,
  type DeliveryOrder,
  destinationOf,
  newDeliveryId,
} from "../../src/batch/delivery.ts";
import type { ClaimedDelivery, NewDelivery } from "../../src/store/deliveries.ts";
import type { Store } from "../../src/store/store.ts";
import {
  aFile,
  aResult,
  claimBy,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  NOW_MS,
  PROJECT,
} from "./store-builders.ts";
export const CLAIM = {
  ...claimBy("runner"),
  busyDestinations: [] as string[],
  toClientBuckets: true,
  busyProjects: [] as string[],
  passedOver: [] as string[],
};
export const DOWN = { code: "unavailable", message: "The location does not answer." };
export const HOUR_MS = 3_600_000;

export const BUCKET = {
  bucket: "b",
  prefix: "p/",
  region: "r",
  endpoint: "http://s3.test:9000",
  forcePathStyle: true,
};

export function aDelivery(order: Partial<DeliveryOrder & NewDelivery> = {}): NewDelivery {
  const ordered = { location: "share", s3: null, path: null, format: "jsonl" as const, ...order };
  const made = { id: newDeliveryId(), credentials: null, createdAtMs: NOW_MS };
  return { ...made, ...ordered, destination: destinationOf(ordered) };
}

export const scoped = (id: UntrustedId<"batch">, project = PROJECT) => ({ project, id });
export const ids = (deliveries: readonly { readonly id: string }[]) =>
  deliveries.map(({ id }) => id);

/** Claims all deliveries that are due, one after the other. */
export async function claimed(store: Store, claim: Partial<typeof CLAIM> = {}) {
  const all: ClaimedDelivery[] = [];
  for (;;) {
    const next = await store.claimDelivery({ ...CLAIM, ...claim });
    if (next === null) return all;
    all.push(next);
  }
}

export async function claimOne(store: Store) {
  const one = await store.claimDelivery(CLAIM);
  if (one === null) throw new Error("no delivery is due");
  return one;
}

export const find = async (store: Store, { id }: Batch, delivery: Pick<Delivery, "id">) =>
  store.findDelivery(scoped(id), delivery.id);

/** A batch that completed with both files. */
export async function completedBatch(store: Store, fields: Partial<Batch> = {}) {
  const { batch } = await finalizingBatch(store, fields);
  const lease = await claimToFinalize(store);
  const output = aFile({ purpose: "batch_output" });
  const error = aFile({ purpose: "batch_output" });
  await finishBatch(store, lease, aResult({ output, error }));
  return { batch, output, error };
}

/** A completed batch with a delivery that is due. */
export async function dueDelivery(store: Store, order: Partial<DeliveryOrder & NewDelivery> = {}) {
  const completed = await completedBatch(store);
  const delivery = aDelivery(order);
  await store.insertDeliveryIfFinal(scoped(completed.batch.id), delivery);
  return { ...completed, delivery };
}
