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
    if (!targets.some((target) => mayAsk(target, asking, nowMs))) {
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

/** Whether an interactive request may go to the target, as far as that is not just full. */
export const mayAsk = (
  target: Target,
  { request, avoided }: SlotRequest<Target>,
  nowMs: number,
): boolean =>
  !avoided.includes(target) &&
  target.capacity.isOpen(nowMs) &&
  target.holds.readyAtMs(request) <= nowMs;

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
