/** Everything there is to talk to, made from the configuration. */
import type { Clock } from "../clock.ts";
import type { UpstreamConfig } from "../config-upstreams.ts";
import type { Log } from "../log.ts";
import { TargetRoute } from "./route.ts";
import { Router } from "./router.ts";
import { Target } from "./target.ts";
import type { Route, UpstreamModel, Upstreams } from "./upstream.ts";

export interface UpstreamsOptions {
  readonly upstreams: readonly UpstreamConfig[];
  /** Longest answer to one line. */
  readonly maxAnswerBytes: number;
  readonly clock: Clock;
  readonly log: Log;
  /** From 0 up to 1; spreads retries over time. */
  readonly random?: () => number;
}

/** Connects to nothing yet: a target that is down is found out, and waited for, by the lines meant for it. */
export function openUpstreams(options: UpstreamsOptions): Upstreams {
  const { upstreams, clock, random = Math.random } = options;
  const router = new Router(upstreams);
  const targets = new Map(upstreams.map((config) => [config.name, new Target(config, options)]));
  const routes = new Map<string, Route>();
  for (const { key, targets: names } of router.plans) {
    const ofRoute = names.map((name) => targets.get(name)).filter((target) => target !== undefined);
    routes.set(key, new TargetRoute(key, { targets: ofRoute, clock, random }));
  }
  return {
    findRoute: (model) => routes.get(router.find(model)?.key ?? "") ?? null,
    listModels: () => listModels(router, [...targets.values()], options.log),
    close: async () => {
      await Promise.all([...targets.values()].map((target) => target.close()));
    },
  };
}

/** Listed names first; a name that several targets have is shown once, as the first one's. */
async function listModels(
  router: Router,
  targets: readonly Target[],
  log: Log,
): Promise<UpstreamModel[]> {
  const models = new Map<string, UpstreamModel>();
  for (const [id, { targets: names }] of router.listed) {
    models.set(id, { id, ownedBy: names[0] ?? "" });
  }
  const open = targets.filter((target) => target.servesAnyModel);
  const found = await Promise.all(open.map((target) => modelsOf(target, log)));
  for (const model of found.flat()) if (!models.has(model.id)) models.set(model.id, model);
  return [...models.values()];
}

async function modelsOf(target: Target, log: Log): Promise<UpstreamModel[]> {
  const outcome = await target.listModels();
  if (outcome.kind === "answered" && outcome.status === 200) {
    return modelIds(JSON.parse(outcome.body.toString())).map((id) => ({
      id,
      ownedBy: target.name,
    }));
  }
  log.debug({ target: target.name, outcome: outcome.kind }, "upstream.models_unknown");
  return [];
}

/** `{"data": [{"id"}]}`, as far as it is that. */
function modelIds(list: unknown): string[] {
  const { data } = (list ?? {}) as { data?: unknown };
  if (!Array.isArray(data)) return [];
  return data
    .map((model) => (model as { id?: unknown } | null)?.id)
    .filter((id) => typeof id === "string");
}
