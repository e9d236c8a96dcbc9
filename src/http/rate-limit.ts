/**
 * Holds the requests of a project to its `requests_per_minute`, and says in headers how many it has left. A project that has
 * none left is refused without the database until the minute ends, because a client may ask again and again.
 */
import type { MiddlewareHandler } from "hono";
import type { RulesOf } from "../batch/project.ts";
import type { Clock } from "../clock.ts";
import { PublicError } from "../errors.ts";
import type { QuotaStore, RequestAllowance } from "../store/quotas.ts";
import type { AppContext, AppEnv } from "./context.ts";

export interface RateLimitDeps {
  readonly rulesOf: RulesOf;
  readonly requestCounts: QuotaStore;
  readonly clock: Pick<Clock, "elapsedMs">;
}

/** The last refusal of a project, which holds for every request under this limit. */
interface Refusal {
  readonly limit: number;
  readonly endsAtMs: number;
}

export function limitRequests(deps: RateLimitDeps): MiddlewareHandler<AppEnv> {
  const { rulesOf, requestCounts, clock } = deps;
  const refusals = new Map<string, Refusal>();
  const take = async (project: string, limit: number): Promise<RequestAllowance> => {
    const refusal = refusals.get(project);
    const resetsInMs = (refusal?.endsAtMs ?? 0) - clock.elapsedMs();
    if (refusal?.limit === limit && resetsInMs > 0) {
      return { isGranted: false, remaining: 0, resetsInMs };
    }
    refusals.delete(project);
    const allowance = await requestCounts.takeRequest(project, limit);
    if (!allowance.isGranted) {
      refusals.set(project, { limit, endsAtMs: clock.elapsedMs() + allowance.resetsInMs });
    }
    return allowance;
  };
  return async (c, next) => {
    const project = c.get("project");
    const limit = rulesOf(project).quotas.requestsPerMinute;
    if (limit === null || c.env.isUncounted === true) return next();
    const allowance = await take(project, limit);
    announce(c, limit, allowance);
    if (!allowance.isGranted) {
      throw new PublicError(
        "rate_limit_exceeded",
        `Rate limit reached for requests per minute (requests_per_minute) in project ${project}. Limit: ${limit}. Please try again in ${Math.ceil(allowance.resetsInMs / 1000)}s.`,
        { retryAfterMs: allowance.resetsInMs },
      );
    }
    return next();
  };
}

/** The headers go straight to the socket, because downloads and streams write their own. */
function announce(c: AppContext, limit: number, { remaining, resetsInMs }: RequestAllowance): void {
  const { outgoing } = c.env;
  outgoing.setHeader("x-ratelimit-limit-requests", String(limit));
  outgoing.setHeader("x-ratelimit-remaining-requests", String(remaining));
  outgoing.setHeader("x-ratelimit-reset-requests", `${Math.ceil(resetsInMs / 1000)}s`);
}
