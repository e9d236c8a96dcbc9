/**
 * The work that one replica does for all: it ends windows and pauses that are over, removes what is no longer needed, and
 * forecasts the open batches. A loop does its work only while the housekeeping is the duty of this replica (`fleet.ts`).
 * A replica that stood still may believe so for a moment too long, so each pass must be safe to do twice.
 */
import type { RunOnce } from "../../loop.ts";
import type { Forecaster } from "../dispatch/forecaster.ts";
import type { Fleet } from "../fleet/fleet.ts";
import type { Loops } from "../steps/loops.ts";
import { type ExpiryDeps, expireDue } from "./expiry.ts";
import { purgeProjects } from "./purging.ts";
import { endQuotaPauses, type QuotaPausesDeps } from "./quota-pauses.ts";
import {
  ORPHAN_SWEEP_EVERY_MS,
  type SweepCursors,
  type SweeperDeps,
  sweep,
  sweepOrphans,
} from "./sweeper.ts";

const SWEEP_EVERY_MS = 60_000;
const OVERLOOKED_PAGE = 100;

const HOUSEKEEPING = ["forecast", "expiry", "sweep", "overlooked", "purge", "orphans"] as const;
export type Housekeeping = (typeof HOUSEKEEPING)[number];

export type HousekeepingDeps = Omit<SweeperDeps, "isDraining"> &
  Omit<ExpiryDeps, "onExpired"> &
  QuotaPausesDeps & {
    readonly fleet: Fleet;
    readonly forecaster: Pick<Forecaster, "refreshIfDue" | "forget">;
    /** Returns the projects whose data is to be removed. */
    readonly deletedProjects: () => readonly string[];
    /** The time after which work is looked for without a nudge. */
    readonly pollEveryMs: number;
  };

/** Starts the loops, and has them look at once when the duty falls to this replica. */
export function startHousekeeping(
  loops: Pick<Loops<Housekeeping>, "run" | "nudge" | "isDraining">,
  deps: HousekeepingDeps,
): void {
  const { fleet, forecaster, pollEveryMs, deletedProjects } = deps;
  const isDraining = () => loops.isDraining;
  const sweeping = { ...deps, isDraining };
  const keepHouse = (name: Housekeeping, everyMs: number, runOnce: RunOnce) =>
    loops.run(name, everyMs, () => (fleet.isHousekeeper ? runOnce() : Promise.resolve()));
  const expiryDeps = { ...deps, onExpired: () => loops.nudge("sweep") };
  keepHouse("forecast", pollEveryMs, () => forecaster.refreshIfDue());
  keepHouse("expiry", pollEveryMs, async () => {
    // Windows come first, and in between: at midnight the pauses of 100,000 batches may end, each in a commit.
    await expireDue(expiryDeps);
    return endQuotaPauses(deps, { nowMs: fleet.nowMs, isDraining });
  });
  const cursors: SweepCursors = {};
  const purging = { cursors, idle: new Set<string>() };
  keepHouse("sweep", SWEEP_EVERY_MS, () => sweep(sweeping, cursors));
  // It is no part of the sweep, which each end of a batch starts: it reads all deliveries that wait for open batches.
  keepHouse(
    "overlooked",
    SWEEP_EVERY_MS,
    async () => (await deps.store.settleOverlookedDeliveries(OVERLOOKED_PAGE)) === OVERLOOKED_PAGE,
  );
  keepHouse("purge", pollEveryMs, () => purgeProjects(deletedProjects(), sweeping, purging));
  keepHouse("orphans", ORPHAN_SWEEP_EVERY_MS, () => sweepOrphans(sweeping));
  fleet.onDuty(() => {
    forecaster.forget();
    loops.nudge(...HOUSEKEEPING);
  });
}
