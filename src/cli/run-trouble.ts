/**
 * Tells the user of `batchd run` what goes wrong on this machine, such as a full disk. The engine waits until that is
 * mended, and writes it to its log, which a run has no reader for.
 */
export class RunTrouble {
  #latest = "";
  #show: (problem: string) => void = () => {};

  /** Names the place where problems are shown. */
  showAt(show: (problem: string) => void): void {
    this.#show = show;
  }

  /**
   * Takes a line of the log. The same problem is shown once, however often the engine tries. What has no words of its own
   * is shown by the state of the batch.
   */
  write(line: string): void {
    const { problem: words, err } = JSON.parse(line) as {
      readonly problem?: string;
      readonly err?: { readonly message?: string };
    };
    const problem = err?.message ?? words;
    if (problem === undefined || problem === this.#latest) return;
    this.#latest = problem;
    this.#show(problem);
  }
}
