/** Says why a target takes no lines now, in words for any tenant. They may hold only the status of an answer. */
import type { Outcome, RefusalReason } from "../batch/outcome.ts";
import type { Unavailability } from "./upstream.ts";

/** The order of importance: the first reason is reported when the targets of a route differ. */
const ORDER: readonly Unavailability["reason"][] = [
  "refused_credentials",
  "out_of_quota",
  "wrong_address",
  "upstream_down",
  "no_room",
  "outside_hours",
];

const OF_REFUSALS: Readonly<Record<RefusalReason, Unavailability["reason"]>> = {
  credentials: "refused_credentials",
  quota: "out_of_quota",
  address: "wrong_address",
};

/** Derives the reason from the latest failure of a target. */
export function unavailabilityOf(outcome: Outcome): Unavailability {
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

/** Keeps the first words of a detail. The rest may quote an answer, which only the owner of the line may read. */
const describeBroken = (detail: string) =>
  /^status \d{3}/.test(detail)
    ? `${detail.slice(0, "status 200".length)} with no usable answer`
    : detail;

/** Returns the reason to report for a route; null when one of its targets takes lines. */
export function worstOf(all: readonly (Unavailability | null)[]): Unavailability | null {
  const known = all.filter((each) => each !== null);
  if (known.length < all.length) return null;
  const rankOf = ({ reason }: Unavailability) => ORDER.indexOf(reason);
  return known.toSorted((a, b) => rankOf(a) - rankOf(b))[0] ?? null;
}
