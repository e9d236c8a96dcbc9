/**
 * The sessions of people who signed in with an API key.
 *
 * A session is only a cookie, so every replica knows it. The cookie names the key by a fingerprint and is signed with a key
 * that all replicas share (`signing_keys` in the store). Each request looks the API key up again, so a session ends with
 * its key. Neither the API key nor its digest can be found from the cookie.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import type { Access, Caller } from "../api/access.ts";
import { sha256 } from "../api/key-text.ts";
import type { Clock } from "../clock.ts";
import { lazy } from "../lazy.ts";
import type { KeyId, KeyStore } from "../store/keys.ts";

const SESSION_SECONDS = 7 * 86_400;
const PURPOSE = "web sessions";
const KEY_BYTES = 32;
const VERSION = "1";
/** Stands for the id of a key of the configuration, which has none. */
const NO_ID = "-";
const COOKIE = /^1\.(-|key_[0-9a-f]{32})\.(\d{1,12})\.([\w-]{43})\.([\w-]{43})$/;

export interface SessionsDeps {
  readonly callers: Pick<Access, "anyone" | "callerWith" | "callerOf">;
  readonly store: Pick<KeyStore, "agreeOnSigningKey">;
  readonly clock: Pick<Clock, "nowMs">;
}

export interface Begun {
  readonly caller: Caller;
  readonly cookie: string;
  readonly maxAgeSeconds: number;
}

export class Sessions {
  readonly #deps: SessionsDeps;
  /** The key that all replicas sign with. */
  readonly #agreedKey: () => Promise<string>;

  constructor(deps: SessionsDeps) {
    this.#deps = deps;
    this.#agreedKey = lazy(() =>
      deps.store.agreeOnSigningKey(PURPOSE, randomBytes(KEY_BYTES).toString("base64url")),
    );
  }

  /** The caller of every request while no key is required; null when people must sign in. */
  get anyone(): Caller | null {
    return this.#deps.callers.anyone;
  }

  /** Begins a session; null for a wrong key. */
  async begin(key: string): Promise<Begun | null> {
    const { callers, clock } = this.#deps;
    const caller = await callers.callerWith(key);
    if (caller === null) return null;
    const signingKey = await this.#agreedKey();
    const endsAt = Math.floor(clock.nowMs() / 1000) + SESSION_SECONDS;
    const fingerprint = fingerprintOf(signingKey, sha256(key));
    const content = [VERSION, caller.keyId ?? NO_ID, endsAt, fingerprint].join(".");
    const cookie = `${content}.${sign(signingKey, `session ${content}`)}`;
    return { caller, cookie, maxAgeSeconds: SESSION_SECONDS };
  }

  /** Returns the caller of a session; null when it has ended, or its key is revoked. */
  async callerOf(cookie: string | undefined): Promise<Caller | null> {
    const { callers, clock } = this.#deps;
    const match = COOKIE.exec(cookie ?? "");
    if (cookie === undefined || match === null) return null;
    const [, id = "", endsAt = "", fingerprint = "", signature = ""] = match;
    const signingKey = await this.#agreedKey();
    const content = cookie.slice(0, cookie.lastIndexOf("."));
    if (!isSame(signature, sign(signingKey, `session ${content}`))) return null;
    if (Number(endsAt) * 1000 <= clock.nowMs()) return null;
    return callers.callerOf({
      keyId: id === NO_ID ? null : (id as KeyId),
      isDigest: (digest) => isSame(fingerprint, fingerprintOf(signingKey, digest)),
    });
  }

  /** Returns the token that requests of a session carry to change something. Other sites cannot know it. */
  async tokenOf(cookie: string | undefined): Promise<string> {
    const signingKey = await this.#agreedKey();
    return sign(signingKey, `token ${this.anyone === null ? (cookie ?? "") : ""}`);
  }

  async isTokenOf(cookie: string | undefined, token: string): Promise<boolean> {
    return isSame(token, await this.tokenOf(cookie));
  }
}

const sign = (key: string, content: string): string =>
  createHmac("sha256", key).update(content).digest("base64url");

const fingerprintOf = (signingKey: string, digest: Buffer): string =>
  sign(signingKey, `key ${digest.toString("hex")}`);

function isSame(given: string, expected: string): boolean {
  const [a, b] = [Buffer.from(given), Buffer.from(expected)];
  return a.length === b.length && timingSafeEqual(a, b);
}
