/** What answers took, in words that both databases know. */
import { parsePrice } from "../../batch/price.ts";
import { readableText } from "../../contract/text.ts";
import type { PricedUsage, UsageCursor, UsagePage, UsageQuery } from "../usage.ts";
import { type SQL, sql } from "./drizzle.ts";

/** The page size of the lists of usage. The sums of a page take a few milliseconds. */
const PAGE_ROWS = 5_000;

const total = (column: string) => sql<number>`sum(${sql.identifier(column)})`.mapWith(Number);

/** The sums of what answers took, as columns of a list. */
export const TOTALS = {
  requestCount: total("request_count"),
  inputTokens: total("input_tokens"),
  cachedTokens: total("cached_tokens"),
  outputTokens: total("output_tokens"),
};

export const pricedUsageOf = (
  rows: readonly (Omit<PricedUsage, "price"> & { readonly price: string })[],
): PricedUsage[] =>
  rows.flatMap(({ price: key, ...usage }) => {
    const price = parsePrice(key);
    return price === null ? [] : [{ ...usage, price }];
  });

/** PostgreSQL returns sums as texts. */
export interface PageSum {
  readonly project: string;
  readonly model: string;
  readonly day: string;
  readonly price: string;
  readonly request_count: number | string;
  readonly input_tokens: number | string;
  readonly cached_tokens: number | string;
  readonly output_tokens: number | string;
  readonly row_count: number | string;
  readonly last_sequence: number | string;
}

/** Selects the sums of the next page, as rows of {@link PageSum}. */
export function selectUsage(
  { project, fromDay, toDay }: UsageQuery,
  after: UsageCursor | null,
): SQL {
  const { day, sequence } = after ?? { day: fromDay, sequence: 0 };
  const isOfProject = project === null ? sql`true` : sql`project = ${readableText(project)}`;
  return sql`
    select project, model, day, price, sum(request_count) as request_count, sum(input_tokens) as input_tokens,
      sum(cached_tokens) as cached_tokens, sum(output_tokens) as output_tokens,
      count(*) as row_count, max(sequence) as last_sequence
    from (
      select * from model_usage
      where ${isOfProject} and (day, sequence) > (${day}, ${sequence}) and day <= ${toDay}
      order by day, sequence limit ${PAGE_ROWS}) as page
    group by project, model, day, price`;
}

export function pageOfUsage(sums: readonly PageSum[]): UsagePage {
  const rowCount = sums.reduce((count, sum) => count + Number(sum.row_count), 0);
  return {
    rows: sums.map(({ project, model, day, price, ...sum }) => ({
      project,
      model,
      day,
      price: parsePrice(price),
      requestCount: Number(sum.request_count),
      inputTokens: Number(sum.input_tokens),
      cachedTokens: Number(sum.cached_tokens),
      outputTokens: Number(sum.output_tokens),
    })),
    next: rowCount < PAGE_ROWS ? null : lastOf(sums),
  };
}

function lastOf(sums: readonly PageSum[]): UsageCursor {
  const day =
    sums
      .map((sum) => sum.day)
      .toSorted()
      .at(-1) ?? "";
  const ofDay = sums.filter((sum) => sum.day === day);
  return { day, sequence: Math.max(...ofDay.map(({ last_sequence }) => Number(last_sequence))) };
}
