/**
 * Divides the slots of a target among replicas: each gets what it wants, up to an equal part of what the others leave
 * (max-min fairness). Slots that no replica wants are spread evenly, so that a lone replica has them all.
 */

/** What a replica could use at one target. */
export interface SlotDemand {
  readonly target: string;
  /** The requests in flight that all replicas together may have there. */
  readonly limit: number;
  /** The number of these that this replica has work for; at least 1, so that a first request finds a place. */
  readonly wanted: number;
  /** The number that it may use until it knows its next part: its present part, or what it has in flight if that is more. */
  readonly held: number;
}

/** What a replica could use at one target, by the kind of request. */
export interface LaneDemand {
  readonly interactive: number;
  readonly batch: number;
}

/** The part of one target that a replica has until its claim ends. */
export interface SlotShare {
  readonly target: string;
  readonly slotCount: number;
  /** The part of the rates, from 0 to 1. */
  readonly fraction: number;
}

/** A replica that has a part of a target, or wants one. */
export interface Sharer {
  readonly owner: string;
  readonly wanted: number;
  /** The slots that it may be using: its part, or more while requests of a larger part are in flight. */
  readonly held: number;
}

/** A replica with its part of one target, as a store keeps it. */
export interface TargetSharer extends Sharer {
  readonly target: string;
}

export interface SlotDivision {
  readonly limit: number;
  /** They are in the order of their owners, so that all replicas divide alike. */
  readonly sharers: readonly Sharer[];
  /** Grows with time. It moves the places that cannot be divided, so that no replica goes without for ever. */
  readonly turn: number;
}

/** A replica with what it could use at one target. */
export interface LaneSharer {
  readonly owner: string;
  readonly lanes: LaneDemand;
}

/**
 * Returns the slots that a replica is to ask for. Where the replicas have interactive requests and lines for more than
 * the limit, interactive requests go first and lines keep their share, at whichever replicas either of them are. Each
 * replica asks for an equal part of what its lanes may have.
 */
export function wantedSlots(
  own: LaneSharer,
  others: readonly LaneSharer[],
  { limit, batchShare }: { readonly limit: number; readonly batchShare: number },
): number {
  // In the order of their owners, so that all replicas divide alike.
  const all = [own, ...others].toSorted((a, b) => (a.owner < b.owner ? -1 : 1));
  const wantedBy = (lane: keyof LaneDemand) => all.map(({ lanes }) => lanes[lane]);
  const interactive = sumOf(wantedBy("interactive"));
  const batch = sumOf(wantedBy("batch"));
  if (interactive === 0 || batch === 0 || interactive + batch <= limit) {
    return Math.max(1, Math.min(limit, own.lanes.interactive + own.lanes.batch));
  }
  const ofLines = Math.min(batch, Math.max(Math.round(batchShare * limit), limit - interactive));
  const partOf = (slotCount: number, lane: keyof LaneDemand) => {
    const part = divideSlots(slotCount, wantedBy(lane), 0)[all.indexOf(own)] ?? 0;
    return Math.min(own.lanes[lane], part);
  };
  return Math.max(1, partOf(limit - ofLines, "interactive") + partOf(ofLines, "batch"));
}

const sumOf = (counts: readonly number[]): number => counts.reduce((sum, each) => sum + each, 0);

/** The places that cannot be divided move on after this. */
const TURN_MS = 60_000;

/** Returns the slots of one of the sharers. It has to wait for slots that others still hold. */
export function slotCountOf(owner: string, { limit, sharers, turn }: SlotDivision): number {
  const index = sharers.findIndex((each) => each.owner === owner);
  const fair = divideSlots(
    limit,
    sharers.map(({ wanted }) => wanted),
    turn,
  );
  const heldByOthers = sharers.reduce((sum, each, i) => (i === index ? sum : sum + each.held), 0);
  return Math.max(0, Math.min(fair[index] ?? 0, limit - heldByOthers));
}

/** Returns the parts of a replica in the targets that it needs, and what a store keeps of them. */
export function divideTargets(
  owner: string,
  demands: readonly SlotDemand[],
  { others, nowMs }: { readonly others: readonly TargetSharer[]; readonly nowMs: number },
): { readonly shares: SlotShare[]; readonly kept: TargetSharer[] } {
  const shares: SlotShare[] = [];
  const kept: TargetSharer[] = [];
  const turn = Math.floor(nowMs / TURN_MS);
  for (const { target, limit, wanted, held } of demands) {
    const me = { owner, target, wanted, held: 0 };
    const sharers = [...others.filter((other) => other.target === target), me];
    sharers.sort((a, b) => (a.owner < b.owner ? -1 : 1));
    const slotCount = slotCountOf(owner, { limit, sharers, turn });
    shares.push({ target, slotCount, fraction: limit === 0 ? 0 : slotCount / limit });
    kept.push({ ...me, held: Math.max(slotCount, held) });
  }
  return { shares, kept };
}

/** Returns a part for each of `wanted`. The sum of the parts is the limit. */
export function divideSlots(limit: number, wanted: readonly number[], turn: number): number[] {
  const parts = wanted.map(() => 0);
  let left = limit;
  for (;;) {
    const lacks = wanted.map((each, i) => each - (parts[i] ?? 0)).filter((lack) => lack > 0);
    const step = Math.min(Math.floor(left / lacks.length), ...lacks);
    if (lacks.length === 0 || step === 0) break;
    for (const [i, each] of wanted.entries()) {
      if (each > (parts[i] ?? 0)) parts[i] = (parts[i] ?? 0) + step;
    }
    left -= step * lacks.length;
  }
  left -= giveOneEach(parts, { left, turn, mayHave: (i) => (parts[i] ?? 0) < (wanted[i] ?? 0) });
  const even = Math.floor(left / parts.length);
  for (const i of parts.keys()) parts[i] = (parts[i] ?? 0) + even;
  giveOneEach(parts, { left: left - even * parts.length, turn, mayHave: () => true });
  return parts;
}

interface Rest {
  readonly left: number;
  readonly turn: number;
  readonly mayHave: (index: number) => boolean;
}

/** Gives single slots, beginning with the one whose turn it is. Returns their number. */
function giveOneEach(parts: number[], { left, turn, mayHave }: Rest): number {
  let given = 0;
  for (let n = 0; n < parts.length && given < left; n++) {
    const i = (turn + n) % parts.length;
    if (!mayHave(i)) continue;
    parts[i] = (parts[i] ?? 0) + 1;
    given++;
  }
  return given;
}
