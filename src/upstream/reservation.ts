import { estimateTokens } from "../batch/token-estimate.ts";

/** Who asks for a slot: a request that somebody waits for, or a line of a batch. */
export type Lane = "interactive" | "batch";

/** What a request takes from its target besides time. */
export class Need {
  readonly lane: Lane;
  readonly #body: Buffer;
  #tokens: number | null = null;
  #charged: number | null = null;

  constructor(lane: Lane, body: Buffer) {
    this.lane = lane;
    this.#body = body;
  }

  /** An estimate, made when it is first asked for: most targets do not count tokens. */
  get tokens(): number {
    this.#tokens ??= estimateTokens(this.#body);
    return this.#tokens;
  }

  /** So many tokens are taken from the quota of the target that it goes to. */
  charge(tokens: number): void {
    this.#charged = tokens;
  }

  /** What its latest attempt took from a quota; null for nothing. */
  discharge(): number | null {
    const charged = this.#charged;
    this.#charged = null;
    return charged;
  }
}
