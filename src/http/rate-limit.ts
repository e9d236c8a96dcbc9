/** Holds the requests of a project to its `requests_per_minute`, and says in headers how many it has left. */
import type { MiddlewareHandler } from "hono";
import type { RulesOf } from "../batch/project.ts";
import { PublicError } from "../errors.ts";
import type { QuotaStore, RequestAllowance } from "../store/quotas.ts";
import type { AppContext, AppEnv } from "./context.ts";

export interface RateLimitDeps {
  readonly rulesOf: RulesOf;
  readonly requestCounts: QuotaStore;
}

export const limitRequests =
  ({ rulesOf, requestCounts }: RateLimitDeps): MiddlewareHandler<AppEnv> =>
  async (c, next) => {
    const project = c.get("project");
    const limit = rulesOf(project).quotas.requestsPerMinute;
    if (limit === null || c.env.isUncounted === true) return next();
    const allowance = await requestCounts.takeRequest(project, limit);
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

/** The headers go straight to the socket, because downloads and streams write their own. */
function announce(c: AppContext, limit: number, { remaining, resetsInMs }: RequestAllowance): void {
  const { outgoing } = c.env;
  outgoing.setHeader("x-ratelimit-limit-requests", String(limit));
  outgoing.setHeader("x-ratelimit-remaining-requests", String(remaining));
  outgoing.setHeader("x-ratelimit-reset-requests", `${Math.ceil(resetsInMs / 1000)}s`);
}
