/** Sums by key, such as what each project holds of a thing that all share. A key whose sum is zero takes no memory. */
export class Sums<Key> {
  readonly #sums = new Map<Key, number>();
  #total = 0;

  /** The sum over all keys. */
  get total(): number {
    return this.#total;
  }

  of(key: Key): number {
    return this.#sums.get(key) ?? 0;
  }

  /** Adds an amount, which may be below zero. */
  add(key: Key, amount: number): void {
    const sum = this.of(key) + amount;
    this.#total += amount;
    if (sum === 0) this.#sums.delete(key);
    else this.#sums.set(key, sum);
  }
}
