/**
 * Where a target refused, and how long not to go there again.
 *
 * After a refusal the limit is held for a while. If the hold passes in peace, the next refusal was provoked by
 * our own growth, and the next hold is twice as long, up to one attempt in a hundred answers. A refusal during the hold
 * comes from others who share the target and are growing: then there is no hold at all, or whoever is small
 * would wait most of the time while the others take the room.
 */
const MIN_HOLD_ANSWERS = 10;
const MAX_HOLD_ANSWERS = 100;
/** For large limits, where a hundred answers are less than a round. */
const HOLD_ROUNDS = 5;

export class OverloadMemory {
  #refusedAt = 0;
  #heldAt = 0;
  #patience = 0;
  #answersToWait = 0;

  noteRefusal(refusedAt: number, heldAt: number): void {
    this.#refusedAt = refusedAt;
    this.#heldAt = heldAt;
    if (this.isHolding) {
      this.#patience = 0;
      this.#answersToWait = 0;
      return;
    }
    this.#patience = Math.min(MAX_HOLD_ANSWERS, Math.max(MIN_HOLD_ANSWERS, 2 * this.#patience));
    const rounds = Math.min(MAX_HOLD_ANSWERS, HOLD_ROUNDS * refusedAt);
    this.#answersToWait = Math.max(this.#patience, rounds);
  }

  noteAnswers(count: number): void {
    this.#answersToWait -= count;
  }

  get isHolding(): boolean {
    return this.#answersToWait > 0;
  }

  /** The highest limit for now. */
  get most(): number {
    return this.isHolding ? this.#heldAt : Number.POSITIVE_INFINITY;
  }

  /** Whether the limit is where it was last refused, or was never: beyond, nothing is known. */
  isPast(limit: number): boolean {
    return limit >= this.#refusedAt;
  }
}
