/** Says why a target takes no lines now, in words for any tenant. They may hold only the status of an answer. */
import type { Outcome, RefusalReason } from "../batch/outcome.ts";
import type { Unavailability } from "./request.ts";

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
