/**
 * Requests that may be repeated without harm. A client that got no answer cannot know whether its request was
 * carried out; when both tries have the same `Idempotency-Key`, the second gets the answer of the first.
 *
 * A key is claimed before the work begins, and the claim is renewed while the request lives: an upload may take longer than any
 * fixed time. The answer is stored in the commit that stores the object it tells of, so a crash leaves both or neither. A
 * request that fails gives its key back; one whose process died, or was stopped for long, loses it to the next that asks, and
 * then stores nothing.
 */
import { createHash, randomUUID } from "node:crypto";
import type { Clock } from "../clock.ts";
import { IDEMPOTENCY_KEY } from "../contract/idempotency.ts";
import { PublicError } from "../errors.ts";
import type { Claim } from "../store/claim.ts";
import {
  IdempotencyKeyLost,
  type IdempotencyStore,
  type ReceiptFor,
} from "../store/idempotency.ts";
import type { Log } from "../telemetry/log.ts";

/** How long the key of a request that no longer renews its claim stays taken. */
export const CLAIM_MS = 60_000;
/** Two may fail, while the database is busy. */
const RENEW_EVERY_MS = CLAIM_MS / 3;

const HEADER = "Idempotency-Key";

export interface IdempotencyDeps {
  readonly store: IdempotencyStore;
  readonly clock: Clock;
  readonly log: Log;
}

/** Who asks for what, and the key that came with it. */
export interface KeyedRequest {
  readonly project: string;
  readonly key: string | null;
  /** Method and path: a key does not carry over from one route to another. */
  readonly route: string;
}

/** A request that has claimed its key, under a name of its own. */
interface HeldRequest extends KeyedRequest {
  readonly key: string;
  readonly owner: string;
}

/** How a request is carried out once, and recognised the next time. */
export interface Creation<Made> {
  /** Stores what is asked for, together with its receipt when there is to be one. */
  readonly create: (receiptFor?: ReceiptFor<Made>) => Promise<Made>;
  /** The JSON body of the answer. */
  readonly present: (made: Made) => string;
  /** All that the client asked for, which a repetition must ask for too. */
  readonly askedFor: (made: Made) => unknown;
  /** The same, found by reading the request without carrying it out. */
  readonly reread: () => Promise<unknown>;
}

export interface Answer {
  readonly json: string;
  readonly isReplayed: boolean;
}

export class Idempotency {
  readonly #deps: IdempotencyDeps;

  constructor(deps: IdempotencyDeps) {
    this.#deps = deps;
  }

  async answer<Made>(
    { project, key, route }: KeyedRequest,
    creation: Creation<Made>,
  ): Promise<Answer> {
    if (key === null) {
      return { json: creation.present(await creation.create()), isReplayed: false };
    }
    assertKey(key);
    const owner = randomUUID();
    const state = await this.#deps.store.claimIdempotencyKey(project, key, this.#claim(owner));
    if (state.kind === "new") return this.#createOnce({ project, key, route, owner }, creation);
    if (state.kind !== "answered") throw keyInUse(key);
    const fingerprint = fingerprintOf(route, await creation.reread());
    if (fingerprint !== state.fingerprint) throw keyReused(key);
    return { json: state.answer, isReplayed: true };
  }

  #claim(owner: string): Claim {
    return { owner, nowMs: this.#deps.clock.nowMs(), ttlMs: CLAIM_MS };
  }

  async #createOnce<Made>(
    { project, key, route, owner }: HeldRequest,
    { create, present, askedFor }: Creation<Made>,
  ): Promise<Answer> {
    const { store, log } = this.#deps;
    const ended = new AbortController();
    void this.#renewUntil(ended.signal, { project, key, owner });
    // What is kept is what is sent: to present a thing twice may show two moments of it.
    let answer: string | null = null;
    try {
      const made = await create((made) => {
        answer = present(made);
        return { project, key, owner, fingerprint: fingerprintOf(route, askedFor(made)), answer };
      });
      return { json: answer ?? present(made), isReplayed: false };
    } catch (error) {
      await store.releaseIdempotencyKeyIfHeld(project, key, owner).catch((err: unknown) => {
        log.warn({ project, err }, "idempotency_key.left_behind");
      });
      throw error instanceof IdempotencyKeyLost ? keyInUse(key) : error;
    } finally {
      ended.abort();
    }
  }

  /** A renewal that fails is tried again in time. One that comes too late is left to the commit, which is refused then. */
  async #renewUntil(
    ended: AbortSignal,
    { project, key, owner }: Pick<HeldRequest, "project" | "key" | "owner">,
  ): Promise<void> {
    const { store, clock, log } = this.#deps;
    for (;;) {
      await clock.sleep(RENEW_EVERY_MS, ended);
      if (ended.aborted) return;
      await store
        .renewIdempotencyKeyIfHeld(project, key, this.#claim(owner))
        .catch((err: unknown) => log.warn({ project, err }, "idempotency_key.not_renewed"));
    }
  }
}

/** The order of keys makes no difference to what an object asks for. */
const sortKeys = (_key: string, value: unknown): unknown =>
  typeof value === "object" && value !== null && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
    : value;

const fingerprintOf = (route: string, askedFor: unknown): string =>
  createHash("sha256")
    .update(JSON.stringify([route, askedFor], sortKeys))
    .digest("hex");

function assertKey(key: string): void {
  if (IDEMPOTENCY_KEY.test(key)) return;
  throw new PublicError(
    "invalid_value",
    `Invalid '${HEADER}': expected 1 to 255 printable ASCII characters.`,
    { param: HEADER },
  );
}

const keyInUse = (key: string) =>
  new PublicError(
    "idempotency_key_in_use",
    `A request with the ${HEADER} '${key}' is being carried out. Ask again for its answer.`,
    { param: HEADER },
  );

const keyReused = (key: string) =>
  new PublicError(
    "idempotency_key_reused",
    `The ${HEADER} '${key}' was used for another request in the last 24 hours. A key belongs to one request; take a new one for this.`,
    { param: HEADER },
  );
