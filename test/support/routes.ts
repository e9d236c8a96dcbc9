import { systemClock } from "../../src/clock.ts";
import { type AppDeps, createApp } from "../../src/http/app.ts";
import { createLog } from "../../src/telemetry/log.ts";

/** Every route of the app, such as `GET /v1/files/:id`, from its own table. Assets of the documentation are left out. */
export function routesOfApp(): string[] {
  // Routes are mounted without asking for anything but the time.
  const deps = { keys: () => [], clock: systemClock, log: createLog("silent") };
  const routes = createApp(deps as unknown as AppDeps)
    .routes.filter(({ method, path }) => method !== "ALL" && !path.startsWith("/docs/"))
    .map(({ method, path }) => `${method} ${path}`);
  return [...new Set(routes)].sort();
}
