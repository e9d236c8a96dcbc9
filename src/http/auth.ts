/**
 * Authenticates a request by its key. Keys are compared as SHA-256 digests, each with each and in constant time. A key
 * must never reach a log or an error; the message about a refused key has it masked.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import type { MiddlewareHandler } from "hono";
import type { KeyConfig } from "../config/schema.ts";
import { DEFAULT_SCOPES } from "../contract/scope.ts";
import { PublicError } from "../errors.ts";
import type { AppContext, AppEnv, Caller } from "./context.ts";

/** The project of all requests when no keys are configured. */
const DEFAULT_PROJECT = "default";
const DIGEST_PREFIX = "sha256:";
const BEARER = /^bearer +(\S.*)$/i;

/** The caller while no keys are configured. Nothing gives it power over keys. */
const ANYONE: Caller = { keyName: null, project: DEFAULT_PROJECT, scopes: DEFAULT_SCOPES };

interface KnownKey {
  readonly digest: Buffer;
  readonly caller: Caller;
}

const sha256 = (text: string) => createHash("sha256").update(text).digest();

const digestOf = (key: string) =>
  key.startsWith(DIGEST_PREFIX) ? Buffer.from(key.slice(DIGEST_PREFIX.length), "hex") : sha256(key);

/** Masks a key. Its owner can recognise the rest, and no one can use it. */
function masked(key: string): string {
  const visibleCount = key.length >= 16 ? 4 : 0;
  return `${key.slice(0, visibleCount)}****${key.slice(key.length - visibleCount)}`;
}

function callerWith(key: string, known: readonly KnownKey[]): Caller {
  const digest = sha256(key);
  let caller: Caller | null = null;
  for (const each of known) if (timingSafeEqual(each.digest, digest)) caller = each.caller;
  if (caller !== null) return caller;
  throw new PublicError(
    "wrong_key",
    `Incorrect API key provided: ${masked(key)}. Ask the operator of this server for a key.`,
  );
}

/** Returns the keys in force with their digests, which are calculated once for each configuration. */
function knownKeys(keys: () => readonly KeyConfig[]): () => readonly KnownKey[] {
  let latest: readonly KeyConfig[] = [];
  let known: readonly KnownKey[] = [];
  return () => {
    const current = keys();
    if (current !== latest) {
      known = current.map(({ name, key, project, scopes }) => ({
        digest: digestOf(key),
        caller: { keyName: name, project, scopes },
      }));
      latest = current;
    }
    return known;
  };
}

/** Sets the caller of a request and its project. Every request passes when no keys are configured. */
export function authenticate(keys: () => readonly KeyConfig[]): MiddlewareHandler<AppEnv> {
  const knownNow = knownKeys(keys);
  return async (c, next) => {
    const known = knownNow();
    const caller = known.length === 0 ? ANYONE : callerOf(c, known);
    c.set("caller", caller);
    c.set("project", caller.project);
    return next();
  };
}

function callerOf(c: AppContext, known: readonly KnownKey[]): Caller {
  const bearer = BEARER.exec(c.req.header("authorization") ?? "")?.[1];
  const key = bearer ?? c.req.header("api-key");
  if (key === undefined || key === "") {
    throw new PublicError(
      "missing_credentials",
      "Missing bearer or basic authentication in header",
    );
  }
  return callerWith(key.trim(), known);
}
