/** Runs things of the same key one after the other, in the order in which they came. Those of other keys run beside them. */
export class OneByOne<Key> {
  /** The last thing of each key that has not ended. */
  readonly #last = new Map<Key, Promise<unknown>>();

  async run<T>(key: Key, work: () => Promise<T>): Promise<T> {
    const mine = (this.#last.get(key) ?? Promise.resolve()).then(work);
    const ended = mine.catch(() => {});
    this.#last.set(key, ended);
    try {
      return await mine;
    } finally {
      if (this.#last.get(key) === ended) this.#last.delete(key);
    }
  }
}
