/** The operations of an operator on keys that are made at run time. */
import type { UntrustedId } from "../batch/batch.ts";
import type { Clock } from "../clock.ts";
import type { Scope } from "../contract/scope.ts";
import { PublicError } from "../errors.ts";
import type { KeyId, KeyQuery, StoredKey } from "../store/keys.ts";
import type { Page } from "../store/page.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import { truncate } from "../text/truncate.ts";
import type { KeyChange } from "./access.ts";
import { newKeyText, sha256 } from "./key-text.ts";
import { nameReserved } from "./projects.ts";

export interface KeysDeps {
  readonly store: Pick<
    Store,
    "insertKeyUnlessDeleted" | "findKey" | "listKeys" | "deleteKeyIfPresent"
  >;
  readonly clock: Clock;
  readonly log: Log;
  /** Resolves when this process knows the change. Others find out by themselves. */
  readonly onChanged: (change: KeyChange) => Promise<void>;
}

export interface KeyRequest {
  readonly name: string;
  readonly project: string;
  readonly scopes: readonly Scope[];
  readonly expiresAtMs: number | null;
}

/** A new key. Its text is known to this object alone. */
export interface CreatedKey {
  readonly key: StoredKey;
  readonly text: string;
}

export class Keys {
  readonly #deps: KeysDeps;

  constructor(deps: KeysDeps) {
    this.#deps = deps;
  }

  async create(request: KeyRequest): Promise<CreatedKey> {
    const { store, clock, log, onChanged } = this.#deps;
    const createdAtMs = clock.nowMs();
    if (request.expiresAtMs !== null && request.expiresAtMs <= createdAtMs) {
      throw new PublicError("invalid_value", "Invalid 'expires_at': it must be in the future.", {
        param: "expires_at",
      });
    }
    const { id, text } = newKeyText();
    const made = { id, ...request, createdAtMs };
    const { name, project, scopes } = request;
    const digest = sha256(text).toString("hex");
    if (!(await store.insertKeyUnlessDeleted({ ...made, digest }))) throw nameReserved(project);
    log.info({ key_id: id, name, project, scopes }, "key.created");
    await onChanged({ made: { id, name, project, scopes, digest } });
    return { key: { ...made, lastUsedAtMs: null }, text };
  }

  async find(id: UntrustedId<"key">): Promise<StoredKey> {
    const key = await this.#deps.store.findKey(id);
    if (key === null) throw noSuchKey(id, "id");
    return key;
  }

  async list(query: KeyQuery): Promise<Page<StoredKey>> {
    const page = await this.#deps.store.listKeys(query);
    if (page === null) throw noSuchKey(query.after ?? "", "after");
    return page;
  }

  async revoke(id: UntrustedId<"key">): Promise<KeyId> {
    const { store, log, onChanged } = this.#deps;
    const key = await store.deleteKeyIfPresent(id);
    if (key === null) throw noSuchKey(id, "id");
    log.info({ key_id: key.id, name: key.name, project: key.project }, "key.revoked");
    await onChanged({ revoked: key.id });
    return key.id;
  }
}

const noSuchKey = (id: string, param: "id" | "after") =>
  new PublicError("not_found", `No such key: ${truncate(id)}`, { param });
