/** Turns the model lists of upstreams into warnings for the operator, one sentence each. */
import type { UpstreamConfig } from "../config/upstreams.ts";
import type { AskedForModels, ModelListing } from "./upstream.ts";

interface Configured {
  readonly upstreams: readonly UpstreamConfig[];
  readonly default_model?: string | undefined;
}

export function upstreamWarnings(
  { upstreams, default_model: model }: Configured,
  { targets, check }: AskedForModels,
): string[] {
  const problems = targets.flatMap(({ name, listing }) => {
    const hasKey = upstreams.find((each) => each.name === name)?.api_key !== undefined;
    const problem = problemWith(listing, hasKey);
    return problem === null ? [] : [`the upstream ${name} ${problem}`];
  });
  const isLacked = model !== undefined && check(model) !== null;
  return isLacked ? [...problems, `no upstream lists the default_model ${model}`] : problems;
}

function problemWith(listing: ModelListing, hasKey: boolean): string | null {
  if (listing.kind === "silent") return `does not answer: ${listing.detail}`;
  if (listing.kind !== "refused") return null;
  const { status } = listing;
  switch (status) {
    case 401:
    case 403:
      return hasKey
        ? `refuses the api_key (status ${status})`
        : `asks for a key (status ${status}): set api_key`;
    case 404:
      return "has no /models below its base_url (status 404): is the path right?";
    default:
      return `answers with status ${status} when it is asked for its models`;
  }
}
