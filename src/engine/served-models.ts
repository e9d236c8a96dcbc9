/**
 * Finds which models the lines of a batch may ask for: asked once for each batch, and the same for all its lines.
 */
import type { ModelRules } from "../batch/file-models.ts";
import { listed } from "../batch/truncate.ts";
import type { TargetModels, Upstreams } from "../upstream/upstream.ts";

export type ServedModels = Required<Pick<ModelRules, "routeKeyOf" | "hintFor">>;

export async function servedModels(upstreams: Upstreams): Promise<ServedModels> {
  const lacking = await upstreams.checkModels();
  return {
    routeKeyOf: (model) =>
      lacking(model) === null ? (upstreams.findRoute(model)?.key ?? null) : null,
    hintFor: (model) => lacking(model)?.map(describe).join(" ") ?? null,
  };
}

const describe = ({ name, listing }: TargetModels): string =>
  `The upstream ${name} lists ${listed(listing.kind === "listed" ? listing.ids : [])}.`;
