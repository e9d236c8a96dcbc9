import { systemClock } from "../../src/clock.ts";
import { type AppDeps, createApp } from "../../src/http/app.ts";
import { createLog } from "../../src/telemetry/log.ts";

/**
 * Returns every route of the app, such as `GET /v1/files/:id`, from its own table, without the assets of the
 * documentation.
 */
export function routesOfApp(): string[] {
  // Mounting the routes only asks for the time.
  const reach = { isLoopback: true, allowedHosts: [] };
  const deps = { clock: systemClock, log: createLog("silent"), reach };
  const routes = createApp(deps as unknown as AppDeps)
    .routes.filter(({ method, path }) => method !== "ALL" && !path.startsWith("/docs/"))
    .map(({ method, path }) => `${method} ${path}`);
  return [...new Set(routes)].sort();
}
