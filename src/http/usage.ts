/** The route of usage: sums over tokens and money, as JSON or CSV. */
import type { ClientLimit } from "../api/client-limit.ts";
import type { UsageRequest, UsageSum } from "../api/usage-report.ts";
import { dayOf } from "../batch/model-usage.ts";
import { formatAmount } from "../batch/price.ts";
import type { Clock } from "../clock.ts";
import { csvLine } from "../contract/csv.ts";
import {
  USAGE_DEFAULT_DAYS,
  USAGE_FORMATS,
  USAGE_GROUPS,
  USAGE_MAX_DAYS,
  type UsageGroup,
  type UsageRow,
} from "../contract/usage.ts";
import { PublicError } from "../errors.ts";
import type { AppContext } from "./context.ts";
import { countedAnswer } from "./counted-answer.ts";
import { answerJsonText, toAsciiJson } from "./json.ts";
import { assertKnownParams, choiceParam, chosen, textParam } from "./query.ts";
import type { Routes } from "./routes.ts";

const DAY_MS = 86_400_000;
const PARAMS = ["group_by", "from", "to", "project", "format"];

export interface UsageRoutesDeps {
  readonly reportUsage: (request: UsageRequest) => Promise<UsageSum[]>;
  readonly searches: ClientLimit;
  readonly clock: Clock;
}

export function mountUsage(app: Routes, { reportUsage, searches, clock }: UsageRoutesDeps): void {
  app.get("/v1/usage", async (c) => {
    const format = choiceParam(c, "format", USAGE_FORMATS) ?? "json";
    const request = usageRequest(c, clock.nowMs());
    using _search = searches.acquire(c.get("project"));
    const sums = maySee(c, request) ? await reportUsage(request) : [];
    const rows = sums.map(presentSum);
    const text = await countedAnswer(c, async (count) => {
      const made = format === "json" ? toAsciiJson({ object: "list", data: rows }) : csvOf(rows);
      await count(made.length);
      return made;
    });
    if (format === "json") return answerJsonText(c, text);
    return c.body(text, 200, {
      "content-type": "text/csv; charset=utf-8",
      "content-disposition": 'attachment; filename="usage.csv"',
    });
  });
}

/** To other keys, another project looks like one that has used nothing. */
function maySee(c: AppContext, { project }: UsageRequest): boolean {
  const { project: own, scopes } = c.get("caller");
  return scopes.includes("admin") || project === own;
}

function usageRequest(c: AppContext, nowMs: number): UsageRequest {
  assertKnownParams(c, PARAMS);
  const { project: own, scopes } = c.get("caller");
  const project = textParam(c, "project") ?? (scopes.includes("admin") ? null : own);
  const toDay = dayParam(c, "to") ?? dayOf(nowMs);
  const fromDay =
    dayParam(c, "from") ?? dayOf(Date.parse(toDay) - (USAGE_DEFAULT_DAYS - 1) * DAY_MS);
  const dayCount = (Date.parse(toDay) - Date.parse(fromDay)) / DAY_MS + 1;
  if (dayCount < 1 || dayCount > USAGE_MAX_DAYS) {
    throw new PublicError(
      "invalid_value",
      `Invalid 'from': the days from ${fromDay} to ${toDay} are not 1 to ${USAGE_MAX_DAYS} days.`,
      { param: "from" },
    );
  }
  return { project, fromDay, toDay, groupBy: groupsIn(textParam(c, "group_by") ?? "day") };
}

const groupsIn = (text: string): UsageGroup[] => {
  const asked = text.split(",");
  for (const each of asked) chosen("group_by", each, USAGE_GROUPS);
  return USAGE_GROUPS.filter((group) => asked.includes(group));
};

function dayParam(c: AppContext, name: string): string | null {
  const text = textParam(c, name);
  if (text === null) return null;
  const atMs = /^\d{4}-\d{2}-\d{2}$/.test(text) ? Date.parse(text) : Number.NaN;
  if (!Number.isNaN(atMs) && dayOf(atMs) === text) return text;
  throw new PublicError("invalid_value", `Invalid '${name}': expected a day such as 2026-01-31.`, {
    param: name,
  });
}

const presentSum = (sum: UsageSum): UsageRow => ({
  object: "usage",
  project: sum.project,
  model: sum.model,
  day: sum.day,
  requests: sum.requestCount,
  input_tokens: sum.inputTokens,
  cached_input_tokens: sum.cachedTokens,
  output_tokens: sum.outputTokens,
  cost: sum.currency === null ? null : { currency: sum.currency, amount: formatAmount(sum.cost) },
});

const CSV_COLUMNS = [
  "project",
  "model",
  "day",
  "requests",
  "input_tokens",
  "cached_input_tokens",
  "output_tokens",
  "currency",
  "cost",
];

const csvOf = (rows: readonly UsageRow[]): string =>
  [CSV_COLUMNS, ...rows.map(csvCells)].map(csvLine).join("");

const csvCells = (row: UsageRow) => [
  row.project,
  row.model,
  row.day,
  row.requests,
  row.input_tokens,
  row.cached_input_tokens,
  row.output_tokens,
  row.cost?.currency,
  row.cost?.amount,
];
