/** Calculates what batches have cost so far, and what they may cost in all. */
import type { Batch, BatchId } from "../batch/batch.ts";
import { type Amount, costOf, type PriceRule, priceFor, projectCost } from "../batch/price.ts";
import { isFinal } from "../batch/status.ts";
import type { Store } from "../store/store.ts";
import type { PricedUsage } from "../store/usage.ts";

export interface BatchCost {
  readonly currency: string;
  readonly soFar: Amount;
  /** It is null before the first answer. */
  readonly projected: Amount | null;
}

/** Returns the costs of the batches that have a price. Nothing is read while no model has one. */
export async function costsOf(
  store: Pick<Store, "findPricedUsage">,
  batches: readonly Batch[],
  rules: readonly PriceRule[],
): Promise<ReadonlyMap<BatchId, BatchCost>> {
  const costs = new Map<BatchId, BatchCost>();
  if (rules.length === 0 || batches.length === 0) return costs;
  const usage = Map.groupBy(
    await store.findPricedUsage(batches.map(({ id }) => id)),
    ({ batchId }) => batchId,
  );
  for (const batch of batches) {
    const cost = costFrom(batch, usage.get(batch.id) ?? [], rules);
    if (cost !== null) costs.set(batch.id, cost);
  }
  return costs;
}

/** All prices have one currency. After the operator has changed it, a batch that is under way shows the first one. */
function costFrom(
  batch: Batch,
  usage: readonly PricedUsage[],
  rules: readonly PriceRule[],
): BatchCost | null {
  const currency = usage[0]?.price.currency;
  if (currency === undefined) return costOfNothing(batch, rules);
  const soFar = usage
    .filter(({ price }) => price.currency === currency)
    .reduce((sum, each) => sum + costOf(each, each.price), 0n);
  const { completed, failed, total } = batch.counts;
  // The usage was read after the counts, and may be further.
  const doneCount = Math.max(1, completed + failed);
  // Lines that are not sent cost nothing, and have their rows only at the end.
  const sentCount = total - (batch.deduplicated?.lineCount ?? 0);
  const totalCount = isFinal(batch.status) ? doneCount : sentCount;
  return { currency, soFar, projected: projectCost(soFar, { doneCount, totalCount }) };
}

function costOfNothing({ model, status }: Batch, rules: readonly PriceRule[]): BatchCost | null {
  const price = model === null ? null : priceFor(rules, model);
  if (price === null) return null;
  return { currency: price.currency, soFar: 0n, projected: isFinal(status) ? 0n : null };
}
