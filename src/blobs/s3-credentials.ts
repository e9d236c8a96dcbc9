/**
 * The credentials of the machine: its environment, a profile, a role. The SDK renews those that have an end. It reads a profile
 * once, and would use keys of it that were replaced since until the process ends.
 */
import type { S3ClientConfig } from "@aws-sdk/client-s3";
import { defaultProvider } from "@aws-sdk/credential-provider-node";
import { systemClock } from "../clock.ts";

type Provider = Extract<S3ClientConfig["credentials"], (...given: never) => unknown>;
type Found = Awaited<ReturnType<Provider>>;

/** The SDK asks anew five minutes before the end. */
const SDK_MARGIN_MS = 5 * 60_000;
/** The interval at which credentials without an end are looked for. A profile may run a program for them. */
const LOOK_EVERY_MS = 5 * 60_000;

export function machineCredentials(): Provider {
  const find = defaultProvider({ ignoreCache: true });
  let former: Found | null = null;
  return async (options) => {
    const findAgain = former !== null && former.expiration === undefined;
    const found = await find({ ...options, forceRefresh: findAgain }).catch((error: unknown) => {
      // A profile may be half written at this moment.
      if (former === null || !findAgain) throw error;
      return former;
    });
    former = found;
    // The SDK reads this clock, too.
    const againAt = new Date(systemClock.nowMs() + LOOK_EVERY_MS + SDK_MARGIN_MS);
    return { ...found, expiration: found.expiration ?? againAt };
  };
}
