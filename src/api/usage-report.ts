/**
 * Sums up what answers took and cost, by project, model and day.
 *
 * The rows are read page by page, and other work goes on between two pages. The sums are bounded in number: each group
 * is held in memory.
 */
import {
  type Amount,
  addConsumption,
  type Consumption,
  costOf,
  NO_CONSUMPTION,
} from "../batch/price.ts";
import type { UsageGroup } from "../contract/usage.ts";
import { PublicError } from "../errors.ts";
import { timeForMore } from "../resources/time-slice.ts";
import type { Store } from "../store/store.ts";
import type { ProjectUsage, UsageCursor, UsageQuery } from "../store/usage.ts";

const MAX_GROUPS = 10_000;

export interface UsageRequest extends UsageQuery {
  readonly groupBy: readonly UsageGroup[];
}

/** The sum of a group. What it is not grouped by is null. */
export interface UsageSum extends Consumption {
  readonly project: string | null;
  readonly model: string | null;
  readonly day: string | null;
  /** It is null for answers without a price, which have a sum of their own. */
  readonly currency: string | null;
  readonly cost: Amount;
}

export async function reportUsage(
  store: Pick<Store, "listUsage">,
  { groupBy, ...query }: UsageRequest,
): Promise<UsageSum[]> {
  const sums = new Map<string, UsageSum>();
  let after: UsageCursor | null = null;
  do {
    // Many reports may be asked for at once, so they share the time of a turn.
    await timeForMore();
    const page = await store.listUsage(query, after);
    for (const row of page.rows) addRow(sums, row, groupBy);
    if (sums.size > MAX_GROUPS) throw tooManyGroups();
    after = page.next;
  } while (after !== null);
  return [...sums].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, sum]) => sum);
}

function addRow(
  sums: Map<string, UsageSum>,
  row: ProjectUsage,
  groupBy: readonly UsageGroup[],
): void {
  const group = Object.fromEntries(groupBy.map((by) => [by, row[by]]));
  const currency = row.price?.currency ?? null;
  const key = JSON.stringify([...groupBy.map((by) => row[by]), currency]);
  const sum = sums.get(key);
  sums.set(key, {
    project: null,
    model: null,
    day: null,
    ...group,
    ...addConsumption(sum ?? NO_CONSUMPTION, row),
    currency,
    cost: (sum?.cost ?? 0n) + (row.price === null ? 0n : costOf(row, row.price)),
  });
}

const tooManyGroups = () =>
  new PublicError(
    "invalid_value",
    `There are more than ${MAX_GROUPS} sums. Ask for fewer days, or for fewer groups in 'group_by'.`,
    { param: "group_by" },
  );
