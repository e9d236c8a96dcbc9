/**
 * Makes all targets and routes from the configuration, and keeps them in step with it: it is what stands behind the port of
 * `upstream.ts`. A target that another configuration names again keeps what it has learned, and one that is gone must end what
 * it has in flight.
 */
import { isDeepStrictEqual } from "node:util";
import type { SlotShare } from "../batch/slot-share.ts";
import type { Clock } from "../clock.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";
import { inSlices } from "../resources/time-slice.ts";
import { TurnBudget } from "../resources/turn-budget.ts";
import type { Log } from "../telemetry/log.ts";
import { PeerUpstreams } from "./peer-routes.ts";
import { TargetRoute } from "./route.ts";
import { Router } from "./router.ts";
import { Target } from "./target.ts";
import type { PeerReport, TargetReport, TargetStatus } from "./target-report.ts";
import type { TargetTelemetryOptions } from "./target-telemetry.ts";
import type {
  AskedForModels,
  ModelCheck,
  ReplicaRoute,
  Route,
  TargetDemand,
  TargetModels,
  UpstreamModel,
  Upstreams,
} from "./upstream.ts";

export interface UpstreamsOptions extends TargetTelemetryOptions {
  readonly upstreams: readonly UpstreamConfig[];
  /** The longest answer to one line. */
  readonly maxAnswerBytes: () => number;
  readonly clock: Clock;
  readonly log: Log;
  /** A number from 0 up to 1, which spreads retries over time. */
  readonly random?: () => number;
}

/** Opens no connection yet: lines find out that their target is down, and wait for it. */
export const openUpstreams = (options: UpstreamsOptions): Upstreams =>
  new ConfiguredUpstreams({ random: Math.random, ...options });

const NO_SHARE = { slotCount: 0, fraction: 0 };

class ConfiguredUpstreams implements Upstreams {
  readonly #options: Required<UpstreamsOptions>;
  readonly #turn: TurnBudget;
  /** The part of this process in each target; null while it shares no limits. */
  #shares: ReadonlyMap<string, SlotShare> | null = null;
  /** The targets by their names. */
  #targets: ReadonlyMap<string, Target> = new Map();
  /** The routes by their keys. */
  #routes: ReadonlyMap<string, TargetRoute> = new Map();
  #router = new Router([]);
  /** The configuration last given to each target. */
  #configs: ReadonlyMap<string, UpstreamConfig> = new Map();
  #onCircuitChanged = (): void => {};
  /** The other replicas by their names. */
  #peers: ReadonlyMap<string, PeerUpstreams> = new Map();
  /** The targets that were removed from the configuration, on which requests may still be ending. */
  readonly #draining = new Set<Target>();

  constructor(options: Required<UpstreamsOptions>) {
    this.#options = options;
    this.#turn = new TurnBudget(options.clock);
    this.reconfigure(options.upstreams);
  }

  findRoute(model: string): Route | null {
    return this.#routes.get(this.#router.find(model)?.key ?? "") ?? null;
  }

  async listModels(): Promise<UpstreamModel[]> {
    const models = await listModels(this.#router, [...this.#targets.values()]);
    for (const peer of this.#peers.values()) {
      for (const model of peer.models) if (!models.has(model.id)) models.set(model.id, model);
    }
    return [...models.values()];
  }

  listTargets(): TargetStatus[] {
    return [...this.#targets.values()].map(({ status }) => status);
  }

  report(nowMs: number): TargetReport[] {
    return [...this.#targets.values()].map((target) => target.report(nowMs));
  }

  setPeers(peers: readonly PeerReport[], self: { owner: string; nowMs: number }): void {
    this.#peers = new Map(peers.map(({ owner, targets }) => [owner, new PeerUpstreams(targets)]));
    for (const target of this.#targets.values()) {
      const reports = peers.flatMap(({ owner, targets }) => {
        const report = targets.find(({ name }) => name === target.name);
        return report === undefined ? [] : [{ owner, report }];
      });
      target.followCircuits(reports, self);
    }
  }

  forgetProjects(projects: readonly string[]): void {
    for (const { holds } of this.#targets.values()) holds.forget(projects);
  }

  onCircuitChanged(listener: () => void): void {
    this.#onCircuitChanged = listener;
  }

  findPeerRoute(owner: string, model: string): ReplicaRoute | null {
    return this.#peers.get(owner)?.findRoute(model) ?? null;
  }

  servedBy(peers: readonly PeerReport[]): (model: string) => boolean {
    const others = peers.map(({ targets }) => new PeerUpstreams(targets));
    return (model) => others.some((other) => other.findRoute(model) !== null);
  }

  isServedElsewhere(model: string): boolean {
    return this.#peers.values().some((peer) => peer.findRoute(model) !== null);
  }

  listDemands(): TargetDemand[] {
    return [...this.#targets.values()].map(({ demand }) => demand);
  }

  setShares(shares: readonly SlotShare[]): void {
    this.#shares = new Map(shares.map((share) => [share.target, share]));
    for (const target of this.#targets.values()) this.#share(target);
  }

  #share(target: Target): void {
    if (this.#shares === null) return;
    target.capacity.setShare(this.#shares.get(target.name) ?? NO_SHARE);
  }

  askForModels(): Promise<AskedForModels> {
    return this.#ask([...this.#targets.values()]);
  }

  async checkModels(): Promise<ModelCheck> {
    return (await this.#ask([...this.#targets.values()].filter((each) => each.checksModels))).check;
  }

  reconfigure(upstreams: readonly UpstreamConfig[]): void {
    const former = this.#targets;
    const paused = new Set(former.values().filter(({ capacity }) => capacity.isPaused));
    const targets = new Map(upstreams.map((config) => [config.name, this.#targetOf(config)]));
    this.#configs = new Map(upstreams.map((config) => [config.name, config]));
    this.#targets = targets;
    this.#router = new Router(upstreams);
    const { clock, random } = this.#options;
    const plans = this.#router.plans.map(({ key, targets: names }) => {
      const ofRoute = names
        .map((name) => targets.get(name))
        .filter((target) => target !== undefined);
      const isKept = ofRoute.every((target) => former.get(target.name) === target);
      const kept = isKept ? this.#routes.get(key) : undefined;
      return [key, kept ?? new TargetRoute(key, { targets: ofRoute, clock, random })] as const;
    });
    const routes = new Map(plans);
    for (const route of this.#routes.values()) {
      if (routes.get(route.key) !== route) route.close();
    }
    this.#routes = routes;
    for (const route of routes.values()) route.retryAt(paused);
    for (const target of former.values()) {
      if (targets.get(target.name) !== target) this.#drain(target);
    }
  }

  async close(): Promise<void> {
    const all = [...this.#targets.values(), ...this.#draining];
    await Promise.all(all.map((target) => target.close()));
  }

  async #ask(targets: readonly Target[]): Promise<AskedForModels> {
    const answers = await listingsOf(targets);
    const asked = new Map(targets.map((target, i) => [target.name, { target, ...answers[i] }]));
    const check = (model: string) => {
      const names = this.#router.find(model)?.targets ?? [];
      const lacking = names.flatMap((name) => {
        const { target, listing } = asked.get(name) ?? {};
        if (target === undefined || listing === undefined) return [];
        return target.mayServe(model, listing) ? [] : [{ name, listing }];
      });
      return names.length > 0 && lacking.length === names.length ? lacking : null;
    };
    return { targets: answers, check };
  }

  #drain(target: Target): void {
    this.#draining.add(target);
    void target.drain().then(() => this.#draining.delete(target));
  }

  #targetOf(config: UpstreamConfig): Target {
    const known = this.#targets.get(config.name);
    if (known === undefined) {
      const target = new Target(config, {
        ...this.#options,
        turn: this.#turn,
        onCircuitChanged: () => this.#onCircuitChanged(),
      });
      this.#share(target);
      return target;
    }
    if (!isDeepStrictEqual(this.#configs.get(config.name), config)) known.reconfigure(config);
    // The cause may have been mended elsewhere: an account may have credit again.
    else known.releaseHolds();
    return known;
  }
}

/**
 * Lists the models, listed names first. A name that several targets have stands once, for the first of them. A target may
 * list 100,000 models, so they are gathered in slices.
 */
async function listModels(
  router: Router,
  targets: readonly Target[],
): Promise<Map<string, UpstreamModel>> {
  const models = new Map<string, UpstreamModel>();
  for (const [id, { targets: names }] of router.listed) {
    models.set(id, { id, ownedBy: names[0] ?? "" });
  }
  for (const { name, listing } of await listingsOf(targets.filter((each) => each.servesAnyModel))) {
    const ids = listing.kind === "listed" ? listing.ids : [];
    for await (const group of inSlices(ids)) {
      for (const id of group) if (!models.has(id)) models.set(id, { id, ownedBy: name });
    }
  }
  return models;
}

const listingsOf = (targets: readonly Target[]): Promise<TargetModels[]> =>
  Promise.all(targets.map(async ({ name, models }) => ({ name, listing: await models.get() })));
