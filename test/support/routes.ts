import { systemClock } from "../../src/clock.ts";
import { type App, type AppDeps, createApp } from "../../src/http/app.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { mountWeb, type WebDeps } from "../../src/web/web.ts";

/** Mounting the routes only asks for the time. */
const DEPS = {
  clock: systemClock,
  log: createLog("silent"),
  reach: { isLoopback: true, allowedHosts: [] },
};
const newApp = () => createApp(DEPS as unknown as AppDeps);
const routesOf = (app: App) => app.routes.map(({ method, path }) => `${method} ${path}`);

/**
 * Returns every route of the app, such as `GET /v1/files/:id`, from its own table, without the assets of the
 * documentation.
 */
export function routesOfApp(): string[] {
  const routes = routesOf(newApp()).filter((route) => !/^ALL|^\w+ \/docs\//.test(route));
  return [...new Set(routes)].sort();
}

/** Returns the path of every page for people, such as `/batches/:id`, from the same table. */
export function pathsOfPages(): string[] {
  const app = newApp();
  const known = new Set(routesOf(app));
  mountWeb(app, DEPS as unknown as WebDeps);
  const added = routesOf(app).filter((route) => !known.has(route));
  return [...new Set(added.flatMap((route) => /^GET (\/(?!web\/).*)$/.exec(route)?.[1] ?? []))];
}
