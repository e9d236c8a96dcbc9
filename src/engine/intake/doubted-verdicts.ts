/**
 * Says when a worker must not refuse a batch for all. Its limits, default model, projects and prices decide about a batch as
 * much as the input, and another worker may have others: a change of the configuration reaches them one after the other.
 */
import type { Batch } from "../../batch/batch.ts";
import type { FaultCode } from "../../batch/codes.ts";
import type { Fleet } from "../fleet/fleet.ts";
import type { CommonSettings } from "../fleet/replica-report.ts";
import type { Verdict } from "./input-reading.ts";

/** The time after its creation in which a batch waits for another verdict. Settings that differ for longer are meant. */
const DOUBTED_FOR_MS = 5 * 60 * 1000;

/** The group of settings that a fault may come from. The other faults are the same at every worker. */
const GROUPS: Readonly<Partial<Record<FaultCode, string>>> = {
  line_too_long: "limits",
  file_too_large: "limits",
  too_many_requests: "limits",
  too_many_inputs: "limits",
  mismatched_model: "limits",
  invalid_request: "default_model",
  model_not_found: "projects",
  token_limit_exceeded: "projects",
  budget_without_price: "prices",
};

export interface DoubtDeps {
  readonly fleet: Pick<Fleet, "nowMs" | "workers">;
  /** Returns what the other replicas are told of the configuration in force. */
  readonly settings: () => CommonSettings;
}

/** Whether another worker may accept what this one refuses. */
export function isDoubted(
  verdict: Verdict,
  { createdAtMs }: Pick<Batch, "createdAtMs">,
  { fleet, settings }: DoubtDeps,
): boolean {
  if (verdict.ok || fleet.nowMs - createdAtMs > DOUBTED_FOR_MS) return false;
  const own = settings().hashes;
  return verdict.faults.every(({ code }) => {
    const group = GROUPS[code];
    if (group === undefined) return false;
    const others = fleet.workers.flatMap(({ common }) => common?.hashes[group] ?? []);
    return others.some((hash) => hash !== own[group]);
  });
}
