/**
 * Tells the user of `batchd run` what goes wrong on this machine, such as a full disk. The engine waits until that is
 * mended, and writes it to its log, which a run has no reader for.
 */
export class RunTrouble {
  #told = "";
  #tell: (problem: string) => void = () => {};

  /** Names the place where problems are shown. */
  showAt(tell: (problem: string) => void): void {
    this.#tell = tell;
  }

  /** Takes a line of the log. The same problem is told once, however often the engine tries. */
  write(line: string): void {
    const { event, err } = JSON.parse(line) as {
      readonly event?: string;
      readonly err?: { readonly message?: string };
    };
    const problem = err?.message ?? event ?? "";
    if (problem === this.#told) return;
    this.#told = problem;
    this.#tell(problem);
  }
}
