/**
 * Finds which models the lines of a batch may ask for: asked once for each batch, and the same for all its lines. What its
 * project may not use is as unknown as what no upstream serves, also by name.
 *
 * A model counts as served when one of the replicas serves it, because its chunks go to that one. Where replicas serve a
 * model by different routes, models may share a chunk only if they share the route at every replica.
 */
import type { ModelRules } from "../../batch/file-models.ts";
import { allowsModel, type ProjectRules } from "../../batch/project.ts";
import { listed } from "../../text/truncate.ts";
import type { TargetModels, Upstreams } from "../../upstream/upstream.ts";
import type { Fleet } from "../fleet/fleet.ts";

export type ServedModels = Required<Pick<ModelRules, "routeKeyOf" | "hintFor">>;

/** Stands in a key for a replica that does not serve the model. */
const NOT_SERVED = "";
const AWAITED = "awaited";

interface Asked {
  readonly upstreams: Upstreams;
  readonly fleet: Pick<Fleet, "workers">;
  readonly rules: ProjectRules;
  /** Says of a model that no replica serves whether it counts all the same. */
  readonly isAwaited: (model: string) => boolean;
}

export async function servedModels(asked: Asked): Promise<ServedModels> {
  const { upstreams, fleet, rules, isAwaited } = asked;
  const lacking = await upstreams.checkModels();
  const owners = fleet.workers.map(({ owner }) => owner).sort();
  const routeKeyOf = (model: string): string | null => {
    if (!allowsModel(rules, model)) return null;
    const own = upstreams.findRoute(model)?.key ?? NOT_SERVED;
    const isLacking = lacking(model) !== null;
    // The targets that were asked lack the model at every replica.
    const served = (key: string) => (isLacking && key === own ? NOT_SERVED : key);
    const peers = owners.map((owner) => upstreams.findPeerRoute(owner, model)?.key ?? NOT_SERVED);
    const keys = [own, ...peers].map(served);
    const [first = NOT_SERVED, ...others] = keys;
    if (!others.every((key) => key === first)) return keys.join(";");
    if (first !== NOT_SERVED) return first;
    return isAwaited(model) ? AWAITED : null;
  };
  // A list may be long, and each line may ask for another model.
  const hintsByTarget = new Map<string, string | null>();
  const hintOfTarget = (target: TargetModels) => {
    const known = hintsByTarget.get(target.name);
    const hint = known === undefined ? hintOf(target, rules) : known;
    hintsByTarget.set(target.name, hint);
    return hint;
  };
  const hintFor = (model: string): string | null => {
    if (!allowsModel(rules, model)) return "The project does not have access to it.";
    const hints = (lacking(model) ?? []).map(hintOfTarget).filter((hint) => hint !== null);
    return hints.length === 0 ? null : hints.join(" ");
  };
  return { routeKeyOf, hintFor };
}

/** Names the models on the list of a target that the project may use; null when there are none. */
function hintOf({ name, listing }: TargetModels, rules: ProjectRules): string | null {
  const ids = listing.kind === "listed" ? listing.ids.filter((id) => allowsModel(rules, id)) : [];
  return ids.length === 0 ? null : `The upstream ${name} lists ${listed(ids)}.`;
}
