/**
 * Makes requests safe to repeat. A client without an answer cannot know whether its request was carried out. When both
 * attempts have the same `Idempotency-Key`, the second gets the answer of the first.
 *
 * A request claims its key before the work begins. It renews the claim while it lives, because an upload may take
 * longer than any fixed time. One commit stores the answer and its object, so a crash leaves both or neither. A request
 * that fails releases its key. If its process dies or stalls, the next request takes the key, and the first one must
 * then store nothing.
 */
import { createHash, randomUUID } from "node:crypto";
import { type Clock, sleep } from "../clock.ts";
import { IDEMPOTENCY_KEY } from "../contract/idempotency.ts";
import { isJsonObject } from "../contract/json-object.ts";
import { PublicError } from "../errors.ts";
import type { Claim } from "../store/claim.ts";
import {
  IdempotencyKeyLost,
  type IdempotencyStore,
  type ReceiptFor,
} from "../store/idempotency.ts";
import type { Log } from "../telemetry/log.ts";

/** The time after which an unrenewed claim ends. */
export const CLAIM_MS = 15_000;
/** The interval of renewals. Two in a row may fail, while the database is busy. */
const RENEW_EVERY_MS = CLAIM_MS / 3;

const HEADER = "Idempotency-Key";

export interface IdempotencyDeps {
  readonly store: IdempotencyStore;
  readonly clock: Clock;
  readonly log: Log;
}

/** A request with its key. */
export interface KeyedRequest {
  readonly project: string;
  readonly key: string | null;
  /** The method and the path, because a key is valid for one route only. */
  readonly route: string;
}

/** A request that has claimed its key, under a random name for its owner. */
interface HeldRequest extends KeyedRequest {
  readonly key: string;
  readonly owner: string;
}

/** The steps to create a thing once, and to recognise a repeated request. */
export interface Creation<Made> {
  /** Stores the thing. With `receiptFor`, the same commit stores the receipt. */
  readonly create: (receiptFor?: ReceiptFor<Made>) => Promise<Made>;
  /** Returns the JSON body of the answer. */
  readonly present: (made: Made) => string;
  /** Returns everything that the client asked for. A repetition must ask for the same. */
  readonly askedFor: (made: Made) => unknown;
  /** Returns the same for a repeated request, without carrying it out. */
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
    return { owner, ttlMs: CLAIM_MS };
  }

  async #createOnce<Made>(
    { project, key, route, owner }: HeldRequest,
    { create, present, askedFor }: Creation<Made>,
  ): Promise<Answer> {
    const { store, log } = this.#deps;
    const ended = new AbortController();
    void this.#renewUntil(ended.signal, { project, key, owner });
    // The stored answer must be the one that is sent. A second call of `present` may show a later state.
    let answer: string | null = null;
    try {
      const made = await create((made) => {
        answer = present(made);
        return { project, key, owner, fingerprint: fingerprintOf(route, askedFor(made)), answer };
      });
      return { json: answer ?? present(made), isReplayed: false };
    } catch (error) {
      const release = store.releaseIdempotencyKeyIfHeld(project, key, owner);
      const isHeld = await release.catch((err: unknown) => {
        log.warn({ project, err }, "idempotency_key.left_behind");
        return true;
      });
      // A repetition has the key, or its answer. That answer counts for this request, too, and no refusal.
      const isOvertaken = !isHeld && error instanceof PublicError;
      throw isOvertaken || error instanceof IdempotencyKeyLost ? keyInUse(key) : error;
    } finally {
      ended.abort();
    }
  }

  /**
   * Renews the claim until `ended` aborts. A failed renewal is repeated in time; after one that comes too late, the
   * commit refuses the answer.
   */
  async #renewUntil(
    ended: AbortSignal,
    { project, key, owner }: Pick<HeldRequest, "project" | "key" | "owner">,
  ): Promise<void> {
    const { store, clock, log } = this.#deps;
    for (;;) {
      await sleep(clock, RENEW_EVERY_MS, ended);
      if (ended.aborted) return;
      await store
        .renewIdempotencyKeyIfHeld(project, key, this.#claim(owner))
        .catch((err: unknown) => log.warn({ project, err }, "idempotency_key.not_renewed"));
    }
  }
}

/** Sorts the keys of objects, because their order does not change a request. */
const sortKeys = (_key: string, value: unknown): unknown =>
  isJsonObject(value)
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
