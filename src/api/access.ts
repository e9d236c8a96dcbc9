/**
 * Knows who may use the API: the keys of the configuration, and those of the store.
 *
 * A request must not wait for the database, so the keys of the store are kept in memory. They are read again every two
 * seconds, and at once when another process says that they changed. What was read is good for four seconds: a server that is
 * cut off from the database accepts no revoked key for longer. Then a request with such a key waits for the database, and
 * is refused as long as the database is away. The keys of the configuration are always good.
 *
 * Keys are found by their SHA-256 digests, of which a sender can choose nothing, so that a request with one key of thousands
 * costs no more than with the only one. A key of the store is found by its id, and compared in constant time.
 */
import { timingSafeEqual } from "node:crypto";
import type { Clock } from "../clock.ts";
import { DEFAULT_PROJECT } from "../contract/key.ts";
import { DEFAULT_SCOPES, type Scope } from "../contract/scope.ts";
import { loop, Nudge } from "../loop.ts";
import { ownWork } from "../resources/client-work.ts";
import { inSlices } from "../resources/time-slice.ts";
import type { KeyId, KeyInForce, KeysInForce } from "../store/keys.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import { keyIdIn, sha256 } from "./key-text.ts";

/** The sender of a request, as its key says. */
export interface Caller {
  /** The id of a key of the store; null for any other. */
  readonly keyId: KeyId | null;
  /** The name of the key; null when no key was asked for. */
  readonly keyName: string | null;
  readonly project: string;
  readonly scopes: readonly Scope[];
}

/** What a session of a browser knows of its key. */
export interface KeyReference {
  readonly keyId: KeyId | null;
  /** Whether this is the digest of its key. Must take the same time for every digest. */
  readonly isDigest: (digest: Buffer) => boolean;
}

/** A key of the configuration. */
export interface ConfiguredKey {
  readonly name: string;
  /** The key itself, or `sha256:` and its digest in hexadecimal. */
  readonly key: string;
  readonly project: string;
  readonly scopes: readonly Scope[];
}

export interface AccessDeps {
  readonly store: Pick<Store, "findKeysInForce" | "recordKeyUses">;
  readonly clock: Clock;
  readonly log: Log;
  /** Returns the keys of the configuration in force. */
  readonly configured: () => readonly ConfiguredKey[];
}

const READ_EVERY_MS = 2_000;
const GOOD_FOR_MS = 4_000;
const USES_WRITTEN_EVERY_MS = 60_000;

/** The caller while no key is required. Nothing gives it power over keys. */
const ANYONE: Caller = {
  keyId: null,
  keyName: null,
  project: DEFAULT_PROJECT,
  scopes: DEFAULT_SCOPES,
};

const DIGEST_PREFIX = "sha256:";
const digestOf = (key: string) =>
  key.startsWith(DIGEST_PREFIX) ? Buffer.from(key.slice(DIGEST_PREFIX.length), "hex") : sha256(key);

/** What an operator has changed through this process, once it is stored. */
export type KeyChange = { readonly made: KeyInForce } | { readonly revoked: KeyId };

interface KnownKey {
  readonly digest: Buffer;
  readonly caller: Caller;
}

/** Takes the time of a comparison when a key names no known id. */
const NO_DIGEST = Buffer.alloc(32);

export class Access {
  readonly #deps: AccessDeps;
  readonly #configured: () => ReadonlyMap<string, KnownKey>;
  readonly #nudge = new Nudge();
  readonly #end = new AbortController();
  #looping: Promise<void> = Promise.resolve();
  #isKeyRequired = false;
  #stored = new Map<KeyId, KnownKey>();
  /** It is null when the next reading has to read all keys. */
  #mark: string | null = null;
  /** The start of the last successful reading, as elapsed time; null before the first. */
  #readAtMs: number | null = null;
  #reading: Promise<void> | null = null;
  readonly #used = new Set<KeyId>();
  #usesWrittenAtMs: number;

  constructor(deps: AccessDeps) {
    this.#deps = deps;
    this.#configured = knownKeys(deps.configured);
    this.#usesWrittenAtMs = deps.clock.elapsedMs();
  }

  /** Resolves when the keys were read once. No request may be answered before. */
  async start(): Promise<void> {
    await this.#read();
    const { clock, log } = this.#deps;
    this.#looping = loop({
      name: "keys",
      everyMs: READ_EVERY_MS,
      nudge: this.#nudge,
      drain: this.#end.signal,
      clock,
      log,
      runOnce: () => this.#pass(),
    });
  }

  /** Reads the keys again at once. */
  nudge(): void {
    this.#nudge.now();
  }

  /**
   * Puts a change of this process in force. All keys are read within two seconds, and not for each of many changes: there may be
   * tens of thousands of keys.
   */
  readonly apply = async (change: KeyChange): Promise<void> => {
    // A reading that is under way may have begun before the change, and would take it back.
    await this.#reading?.catch(() => {});
    this.#mark = null;
    if ("made" in change) {
      this.#isKeyRequired = true;
      this.#stored.set(change.made.id, known(change.made));
    } else this.#stored.delete(change.revoked);
  };

  async close(): Promise<void> {
    this.#end.abort();
    await this.#looping;
    await this.#writeUses().catch(() => {});
  }

  /** Returns the caller of a request without a key; null when a key is required. */
  get anyone(): Caller | null {
    return this.#configured().size > 0 || this.#isKeyRequired ? null : ANYONE;
  }

  /** Returns the caller with this key; null when the key is not known, not any more, or has expired. */
  async callerWith(key: string): Promise<Caller | null> {
    const digest = sha256(key);
    const configured = this.#configured().get(digest.toString("hex"));
    if (configured !== undefined) return configured.caller;
    const id = keyIdIn(key);
    if (id === null) return null;
    await this.#readIfOld();
    const known = this.#stored.get(id);
    if (!timingSafeEqual(known?.digest ?? NO_DIGEST, digest) || known === undefined) return null;
    this.#used.add(id);
    return known.caller;
  }

  /** Returns the caller of a session as long as its key is good, as {@link callerWith} does for the key itself. */
  async callerOf({ keyId, isDigest }: KeyReference): Promise<Caller | null> {
    if (keyId === null) {
      const found = this.#configured().values();
      return found.find(({ digest }) => isDigest(digest))?.caller ?? null;
    }
    await this.#readIfOld();
    const known = this.#stored.get(keyId);
    if (!isDigest(known?.digest ?? NO_DIGEST) || known === undefined) return null;
    this.#used.add(keyId);
    return known.caller;
  }

  /** Says whether the key of a caller is still good, as far as this server knows. Long answers ask again and again. */
  isGood(caller: Caller): boolean {
    if (caller === ANYONE) return this.anyone !== null;
    if (caller.keyId !== null) return this.#stored.has(caller.keyId);
    return this.#configured()
      .values()
      .some((known) => known.caller === caller);
  }

  async #pass(): Promise<void> {
    await this.#read();
    const { clock } = this.#deps;
    if (clock.elapsedMs() - this.#usesWrittenAtMs >= USES_WRITTEN_EVERY_MS) await this.#writeUses();
  }

  async #writeUses(): Promise<void> {
    const { store, clock } = this.#deps;
    this.#usesWrittenAtMs = clock.elapsedMs();
    const ids = [...this.#used];
    if (ids.length === 0) return;
    this.#used.clear();
    await store.recordKeyUses(ids).catch((error: unknown) => {
      for (const id of ids) this.#used.add(id);
      throw error;
    });
  }

  async #readIfOld(): Promise<void> {
    // A reading that was under way already may have begun long ago.
    while (this.#isOld) await this.#read();
  }

  get #isOld(): boolean {
    const nowMs = this.#deps.clock.elapsedMs();
    return this.#readAtMs === null || nowMs - this.#readAtMs >= GOOD_FOR_MS;
  }

  /** Several requests wait for one reading. */
  #read(): Promise<void> {
    this.#reading ??= ownWork(() => this.#readNow()).finally(() => {
      this.#reading = null;
    });
    return this.#reading;
  }

  async #readNow(): Promise<void> {
    const { store, clock } = this.#deps;
    const startedAtMs = clock.elapsedMs();
    const found = await store.findKeysInForce(this.#mark);
    if (found !== null) await this.#take(found);
    this.#readAtMs = startedAtMs;
  }

  /** A key never changes, so one that is known already stays as it is. */
  async #take({ isKeyRequired, keys, mark }: KeysInForce): Promise<void> {
    const stored = new Map<KeyId, KnownKey>();
    for await (const group of inSlices(keys)) {
      for (const key of group) stored.set(key.id, this.#stored.get(key.id) ?? known(key));
    }
    this.#isKeyRequired = isKeyRequired;
    this.#stored = stored;
    this.#mark = mark;
  }
}

const known = ({ id, name, project, scopes, digest }: KeyInForce): KnownKey => ({
  digest: Buffer.from(digest, "hex"),
  caller: { keyId: id, keyName: name, project, scopes },
});

/**
 * Returns the keys of the configuration by their digests, which are calculated once for each configuration. A key that has not
 * changed keeps its caller.
 */
function knownKeys(
  configured: () => readonly ConfiguredKey[],
): () => ReadonlyMap<string, KnownKey> {
  let latest: readonly ConfiguredKey[] = [];
  let keys: ReadonlyMap<string, KnownKey> = new Map();
  return () => {
    const current = configured();
    if (current !== latest) {
      const former = new Map(keys.values().map((each) => [identityOf(each), each]));
      const found = current.map(({ name, key, project, scopes }) => {
        const caller = { keyId: null, keyName: name, project, scopes };
        const read = { digest: digestOf(key), caller };
        return former.get(identityOf(read)) ?? read;
      });
      keys = new Map(found.map((each) => [each.digest.toString("hex"), each]));
      latest = current;
    }
    return keys;
  };
}

/** Two entries with the same identity are the same key with the same rights. */
const identityOf = ({ digest, caller: { keyName, project, scopes } }: KnownKey): string =>
  JSON.stringify([digest.toString("hex"), keyName, project, scopes]);
