/**
 * The part of the store for keys that were made at run time. A key itself is never stored, only its digest. As a key has
 * 256 random bits, a fast digest (SHA-256) is enough: no list of likely keys exists that a slow one would protect from.
 */
import type { Id, UntrustedId } from "../batch/batch.ts";
import type { Scope } from "../contract/scope.ts";
import type { Page } from "./page.ts";

/** One commit records the uses of so many keys. A statement takes some 30,000 values. */
export const USES_PAGE = 500;

export type KeyId = Id<"key">;

export interface StoredKey {
  readonly id: KeyId;
  readonly name: string;
  readonly project: string;
  readonly scopes: readonly Scope[];
  readonly createdAtMs: number;
  /** It is null for a key without an end. */
  readonly expiresAtMs: number | null;
  /** It is up to a minute older than the truth, and null for a key that was never used. */
  readonly lastUsedAtMs: number | null;
}

export type NewKey = Omit<StoredKey, "lastUsedAtMs"> & {
  /** The SHA-256 of the key, in hexadecimal. */
  readonly digest: string;
};

/** A key that has not expired, as far as a request is concerned. */
export type KeyInForce = Pick<NewKey, "id" | "name" | "project" | "scopes" | "digest">;

export interface KeysInForce {
  /** Whether a key was ever made. Requests without one are refused from then on, also when no key is left. */
  readonly isKeyRequired: boolean;
  readonly keys: readonly KeyInForce[];
  /** Changes whenever `keys` does. */
  readonly mark: string;
}

export interface KeyQuery {
  readonly limit: number;
  readonly after: UntrustedId<"key"> | null;
}

/** The part of the {@link Store} port for keys. Keys belong to the installation, so their ids need no project. */
export interface KeyStore {
  /** Returns false while the data of its project is being deleted, which would delete the key as well. */
  insertKeyUnlessDeleted(key: NewKey): Promise<boolean>;
  /** Finds a key, also an expired one. */
  findKey(id: UntrustedId<"key">): Promise<StoredKey | null>;
  /** Lists keys, expired ones too. Returns null when `after` names no key of now or of the last day. */
  listKeys(query: KeyQuery): Promise<Page<StoredKey> | null>;
  /** Returns the key that was deleted; null when there is none. */
  deleteKeyIfPresent(id: UntrustedId<"key">): Promise<StoredKey | null>;
  /** Returns null when nothing has changed since `mark`. */
  findKeysInForce(mark: string | null): Promise<KeysInForce | null>;
  /** Sets the last use of these keys to now. */
  recordKeyUses(ids: readonly KeyId[]): Promise<void>;
  /** Returns the signing key of a purpose, which all processes share. The first call of all stores `fresh` as the key. */
  agreeOnSigningKey(purpose: string, fresh: string): Promise<string>;
}
