/**
 * Sends an interactive request through a route, ahead of all lines of batches.
 *
 * A person waits for it, so it must not be tried again and again. Each target is asked once: the next one when the
 * one before could not be reached or was full. The client gets the last answer. The request waits for a slot, but not
 * for a target that is down or has asked for a pause.
 */
import { INTERRUPTED, isOfGateway } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import { isOverload } from "./exchange/answer.ts";
import type { ProxyResult, UpstreamRequest } from "./request.ts";
import { SlotRequest } from "./slot.ts";
import type { SlotQueue } from "./slot-queue.ts";
import type { Target } from "./target.ts";

interface ProxyOptions {
  readonly queue: SlotQueue<Target>;
  readonly abort: AbortSignal;
  readonly clock: Clock;
}

export async function proxyThrough(
  targets: readonly Target[],
  request: UpstreamRequest,
  { queue, abort, clock }: ProxyOptions,
): Promise<ProxyResult> {
  const asking = new SlotRequest<Target>("interactive", request);
  let last: ProxyResult | null = null;
  while (!abort.aborted) {
    const nowMs = clock.elapsedMs();
    if (askable(targets, asking, nowMs).length === 0) {
      return last ?? heldBy(targets, request) ?? unavailable(targets, nowMs);
    }
    discard(last);
    last = null;
    const slot = await queue.acquire(asking, abort);
    // All that it waited for take nothing any more.
    if (slot === null) continue;
    if (!slot.target.holds.pass(request, clock.elapsedMs())) {
      slot.target.decline(slot);
      continue;
    }
    slot.target.telemetry.waited("interactive", slot.waitedMs);
    last = await slot.target.proxy(slot, request, abort);
    asking.avoided = [...asking.avoided, slot.target];
    if (!isWorthAnother(last)) return last;
  }
  discard(last);
  return INTERRUPTED;
}

/**
 * Returns the targets to which an interactive request may go, as far as they are not just full. Without another one, it goes to a
 * target that may have failed for the sake of some lines alone. Their batch would otherwise keep the target from everyone.
 */
export function askable(
  targets: readonly Target[],
  { request, avoided }: SlotRequest<Target>,
  nowMs: number,
): readonly Target[] {
  const willing = targets.filter(
    (target) => !avoided.includes(target) && target.holds.readyAtMs(request) <= nowMs,
  );
  const open = willing.filter(({ capacity }) => capacity.isOpen(nowMs));
  return open.length > 0
    ? open
    : willing.filter(({ capacity }) => capacity.isOpen(nowMs, "interactive"));
}

/** Returns the refusal for which a target is not asked; null when there is none. */
const heldBy = (targets: readonly Target[], request: UpstreamRequest): ProxyResult | null =>
  targets.map(({ holds }) => holds.heldFor(request)).find((refused) => refused !== null) ?? null;

/** Whether another target may do better: this one is full, cannot be reached, or does not accept us. */
const isWorthAnother = (result: ProxyResult) =>
  result.kind === "unreachable" ||
  result.kind === "refused" ||
  result.kind === "unknown_model" ||
  (result.kind === "proxied" && (isOverload(result.status) || isOfGateway(result.status)));

function discard(result: ProxyResult | null): void {
  if (result?.kind === "proxied") result.body.destroy();
}

function unavailable(targets: readonly Target[], nowMs: number): ProxyResult {
  const backAtMs = Math.min(...targets.map((target) => target.capacity.backAtMs));
  const isKnown = Number.isFinite(backAtMs) && backAtMs > nowMs;
  return { kind: "unavailable", retryAfterMs: isKnown ? backAtMs - nowMs : null };
}
