import type { Hono } from "hono";
import type { AppEnv } from "./context.ts";
import { answerJson } from "./json.ts";

/** For supervisors and load balancers: "does it live?" and "may it have traffic?". No key is asked for. */
export function mountOps(app: Hono<AppEnv>, isReady: () => Promise<boolean>): void {
  app.get("/health", (c) => answerJson(c, { status: "ok" }));

  app.get("/ready", async (c) =>
    (await isReady().catch(() => false))
      ? answerJson(c, { status: "ready" })
      : answerJson(c, { status: "unavailable" }, 503),
  );
}
