/** Why a target does not take lines now, in words that any tenant may read: nothing of an answer but its status. */
import type { Outcome, RefusalReason } from "../batch/outcome.ts";
import type { RouteTrouble } from "./upstream.ts";

/** In the order in which they are worth telling when the targets of a route differ. */
const ORDER: readonly RouteTrouble["reason"][] = [
  "refused_credentials",
  "out_of_quota",
  "wrong_address",
  "upstream_down",
  "no_room",
  "outside_hours",
];

const OF_REFUSALS: Readonly<Record<RefusalReason, RouteTrouble["reason"]>> = {
  credentials: "refused_credentials",
  quota: "out_of_quota",
  address: "wrong_address",
};

/** Of a target that fails, by the latest failure. */
export function troubleOf(outcome: Outcome): RouteTrouble {
  switch (outcome.kind) {
    case "refused":
      return { reason: OF_REFUSALS[outcome.reason], upstreamError: outcome.detail };
    case "overloaded":
      return { reason: "no_room", upstreamError: `status ${outcome.status}` };
    case "unreachable":
      return { reason: "upstream_down", upstreamError: outcome.detail };
    case "timed_out":
      return { reason: "upstream_down", upstreamError: "no answer in time" };
    case "broken":
      return { reason: "upstream_down", upstreamError: describeBroken(outcome.detail) };
    case "answered":
      return { reason: "upstream_down", upstreamError: `status ${outcome.status}` };
    case "interrupted":
      return { reason: "upstream_down", upstreamError: null };
  }
}

/** The detail may go on to quote an answer, which is a line's and not everybody's. */
const describeBroken = (detail: string) =>
  /^status \d{3}/.test(detail)
    ? `${detail.slice(0, "status 200".length)} with no usable answer`
    : detail;

/** The one to tell of a route none of whose targets takes lines; null when one does. */
export function worstOf(troubles: readonly (RouteTrouble | null)[]): RouteTrouble | null {
  const known = troubles.filter((trouble) => trouble !== null);
  if (known.length < troubles.length) return null;
  const rankOf = ({ reason }: RouteTrouble) => ORDER.indexOf(reason);
  return known.toSorted((a, b) => rankOf(a) - rankOf(b))[0] ?? null;
}
