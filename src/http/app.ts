/**
 * The HTTP API. Each route exists once, under `/v1`. Requests under `/openai/v1`, in the spelling of Azure's clients
 * (`/openai/batches`, `/openai/deployments/NAME/batches`), with doubled slashes or with a final slash reach the same
 * route.
 */
import { Hono, type MiddlewareHandler } from "hono";
import type { Keys } from "../api/keys.ts";
import type { Models } from "../api/models.ts";
import type { Projects } from "../api/projects.ts";
import type { ReplicaTargets } from "../api/upstream-report.ts";
import type { Clock } from "../clock.ts";
import { PublicError } from "../errors.ts";
import { workFor } from "../resources/client-work.ts";
import type { MemoryBudget } from "../resources/memory-budget.ts";
import { TurnBudget } from "../resources/turn-budget.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { truncate } from "../text/truncate.ts";
import { type AuditDeps, auditRequests } from "./audit.ts";
import { authenticate, type Callers } from "./auth.ts";
import { type BatchRoutesDeps, mountBatches } from "./batches.ts";
import type { AppContext, AppEnv } from "./context.ts";
import { type DeliveryRoutesDeps, mountDeliveries } from "./deliveries.ts";
import { mountDocs } from "./docs.ts";
import { answerError } from "./errors.ts";
import { type FileRoutesDeps, mountFiles } from "./files.ts";
import { type InteractiveRoutesDeps, mountInteractive } from "./interactive.ts";
import { mountKeys } from "./keys.ts";
import { type LineRoutesDeps, mountLines } from "./lines.ts";
import { mountModels } from "./models.ts";
import { limitOpenRequests, type OpenRequestsDeps } from "./open-requests.ts";
import { mountOps, type OpsDeps } from "./ops.ts";
import { canonicalPath, pathOf } from "./path.ts";
import { mountProgress, type ProgressRoutesDeps } from "./progress.ts";
import { mountProjects } from "./projects.ts";
import { limitRequests, type RateLimitDeps } from "./rate-limit.ts";
import { mountResults, type ResultRoutesDeps } from "./results.ts";
import { routesOn } from "./routes.ts";
import { mountRuns, type RunRoutesDeps } from "./runs.ts";
import { guardSites, type SiteGuardDeps } from "./site-guard.ts";
import { trackRequests } from "./track.ts";
import { mountUploads, type UploadRoutesDeps } from "./uploads.ts";
import { mountUpstreams } from "./upstreams.ts";
import { mountUsage, type UsageRoutesDeps } from "./usage.ts";

/** What the routes and the middleware need, each in its own words. */
export type AppDeps = AuditDeps &
  BatchRoutesDeps &
  DeliveryRoutesDeps &
  FileRoutesDeps &
  InteractiveRoutesDeps &
  LineRoutesDeps &
  OpenRequestsDeps &
  OpsDeps &
  ProgressRoutesDeps &
  RateLimitDeps &
  ResultRoutesDeps &
  RunRoutesDeps &
  SiteGuardDeps &
  UploadRoutesDeps &
  UsageRoutesDeps & {
    readonly models: Models;
    readonly callers: Callers;
    readonly keys: Keys;
    readonly projects: Projects;
    /** Lists the targets of all replicas, this one first. */
    readonly listReplicas: () => readonly ReplicaTargets[];
    readonly memory: MemoryBudget;
    readonly metrics: Metrics;
    readonly clock: Clock;
    readonly log: Log;
  };

export type App = Hono<AppEnv>;

export function createApp(deps: AppDeps): App {
  const app = newApp(deps, (c) => versionHint(app, c));
  app.use(guardSites(deps));
  app.use("/v1/*", auditRequests(deps));
  app.use("/v1/*", authenticate(deps.callers));
  app.use("/v1/*", beginInTurns(deps));
  app.use("/v1/*", limitOpenRequests(deps));
  app.use("/v1/*", limitRequests(deps));
  app.use("/v1/*", async (c, next) => {
    c.set("memory", deps.memory);
    await next();
  });
  mountOps(app, deps);
  const routes = routesOn(app, deps);
  mountFiles(routes, deps);
  mountUploads(routes, deps);
  mountBatches(routes, deps);
  mountDeliveries(routes, deps);
  mountResults(routes, deps);
  mountLines(routes, deps);
  mountRuns(routes, deps);
  mountProgress(routes, deps);
  mountModels(routes, deps.models, deps.clock.nowMs());
  mountUsage(routes, deps);
  mountInteractive(routes, deps);
  mountKeys(routes, deps.keys);
  mountProjects(routes, deps.projects);
  mountUpstreams(routes, deps.listReplicas);
  mountDocs(app);
  refuseOtherMethods(app);
  return app;
}

const WORKER_HINT =
  " (HINT: This is a worker, which answers /health, /ready and /metrics only. Send requests to a server with --role api or all.)";

/** Makes the app of a process that only runs batches. */
export function createWorkerApp(deps: AppDeps): App {
  const app = newApp(deps, () => WORKER_HINT);
  mountOps(app, deps);
  refuseOtherMethods(app);
  return app;
}

function newApp(deps: AppDeps, hintFor: (c: AppContext) => string): App {
  const app: App = new Hono<AppEnv>({ getPath: canonicalPath });
  app.onError((error, c) => answerError(c, error));
  app.notFound((c) => {
    const message = `Invalid URL (${c.req.method} ${askedPath(c)})${hintFor(c)}`;
    return answerError(c, new PublicError("not_found", message));
  });
  // What has no project is still no work of the server.
  app.use((_, next) => workFor(NO_PROJECT, next));
  app.use(trackRequests(deps));
  return app;
}

const NO_PROJECT = "";
/** The time of a turn of the event loop in which known clients begin. */
const BEGINNING_MS = 6;

/** Lets projects take turns at the time in which requests begin, so that none waits for hundreds of another one. */
function beginInTurns({ clock }: Pick<AppDeps, "clock">): MiddlewareHandler<AppEnv> {
  const budget = new TurnBudget(clock, BEGINNING_MS);
  const turn = () =>
    new Promise<void>((goOn) => {
      if (budget.hasTime(goOn)) goOn();
    });
  return (c, next) =>
    workFor(c.get("project"), async () => {
      c.set("turn", turn);
      await turn();
      await next();
    });
}

const askedPath = (c: AppContext) => truncate(pathOf(c.req.url));

/** Suggests a path to clients whose base URL lacks the version, or has it twice. */
function versionHint(app: App, c: AppContext): string {
  const meant = `/v1${c.req.path.replace(/^(?:\/v1)+(?=\/)/, "")}`;
  const kind = meant.split("/")[2];
  const isKnown = app.routes.some(({ path }) => path.split("/", 3).join("/") === `/v1/${kind}`);
  if (!isKnown || meant === c.req.path) return "";
  return ` (HINT: The API is under /v1, so this is ${truncate(meant)}. The base URL of a client ends with one /v1.)`;
}

/** Answers any other method on a known path with a 405. Call this after all routes are mounted. */
function refuseOtherMethods(app: App): void {
  const methodsOf = new Map<string, Set<string>>();
  for (const { path, method } of app.routes) {
    if (method === "ALL") continue;
    const methods = methodsOf.get(path) ?? new Set<string>();
    methodsOf.set(path, methods.add(method));
    if (method === "GET") methods.add("HEAD");
  }
  for (const [path, methods] of methodsOf) {
    app.all(path, (c) => {
      c.header("allow", [...methods].join(", "));
      throw new PublicError(
        "method_not_allowed",
        `Not allowed to ${c.req.method} on ${askedPath(c)}. (HINT: Perhaps you meant to use a different HTTP method?)`,
      );
    });
  }
}
