/**
 * Holds a project to its `interactive_at_once`, at all servers together. The store gives out slots, so the limit is exact.
 * A slot ends by itself soon after its server died; this file renews the slots of the requests that are still under way.
 */
import { randomUUID } from "node:crypto";
import type { RulesOf } from "../batch/project.ts";
import type { Cancel, Clock } from "../clock.ts";
import { PublicError } from "../errors.ts";
import { ownWork } from "../resources/client-work.ts";
import type { QuotaStore } from "../store/quotas.ts";
import type { Log } from "../telemetry/log.ts";

const TTL_MS = 15_000;
const RENEWED_EVERY_MS = TTL_MS / 3;
/** Nothing says when a request will end, so a refused one comes back soon. */
const RETRY_AFTER_MS = 1_000;

export interface InteractiveSlotsDeps {
  readonly store: Pick<
    QuotaStore,
    "takeInteractiveSlot" | "renewInteractiveSlots" | "releaseInteractiveSlot"
  >;
  readonly rulesOf: RulesOf;
  readonly clock: Clock;
  readonly log: Log;
}

const RELEASE_NOTHING = () => {};

export class InteractiveSlots {
  readonly #deps: InteractiveSlotsDeps;
  readonly #held = new Set<string>();
  #cancelRenewal: Cancel | null = null;

  constructor(deps: InteractiveSlotsDeps) {
    this.#deps = deps;
  }

  /** Returns the function that ends the request. Throws when the project has too many under way. */
  async take(project: string): Promise<() => void> {
    const { store, rulesOf } = this.#deps;
    const limit = rulesOf(project).quotas.interactiveAtOnce;
    if (limit === null) return RELEASE_NOTHING;
    const id = randomUUID();
    if (!(await store.takeInteractiveSlot({ id, project }, { limit, ttlMs: TTL_MS }))) {
      throw tooMany(project, limit);
    }
    this.#held.add(id);
    this.#cancelRenewal ??= ownWork(() => this.#renewLater());
    return () => this.#release(id);
  }

  /** A release that fails is made up for by the end of the slot, which is renewed no more. */
  #release(id: string): void {
    const { store, log } = this.#deps;
    if (!this.#held.delete(id)) return;
    store
      .releaseInteractiveSlot(id)
      .catch((err: unknown) => log.warn({ err }, "interactive_slot.not_released"));
    if (this.#held.size > 0) return;
    this.#cancelRenewal?.();
    this.#cancelRenewal = null;
  }

  #renewLater(): Cancel {
    const { clock, store, log } = this.#deps;
    return clock.after(RENEWED_EVERY_MS, () => {
      this.#cancelRenewal = this.#renewLater();
      store
        .renewInteractiveSlots([...this.#held], TTL_MS)
        .catch((err: unknown) => log.warn({ err }, "interactive_slots.not_renewed"));
    });
  }
}

const tooMany = (project: string, limit: number) =>
  new PublicError(
    "rate_limit_exceeded",
    `Rate limit reached for interactive requests at once (interactive_at_once) in project ${project}. Limit: ${limit}. Please try again in ${RETRY_AFTER_MS / 1000}s.`,
    { retryAfterMs: RETRY_AFTER_MS },
  );
