/**
 * What a replica tells the others of its configuration: which locations and webhooks it has, so that their work goes to it, and
 * a hash of each group of settings that are to be the same everywhere, so that a difference is noticed.
 *
 * The hashes are in the database. So they must not be made of a secret that someone could guess, nor of what a machine may have
 * less of.
 */
import { createHash } from "node:crypto";
import { redactConfig } from "../config/redact-config.ts";
import type { Config } from "../config/schema.ts";
import { keyOf } from "../deliveries/sealed-credentials.ts";
import type { CommonSettings } from "../engine/fleet/replica-report.ts";

/** Returns a function that describes a configuration, and does the work once for each. */
export function describingSettings(role: string): (config: Config) => CommonSettings {
  let latest: { readonly of: Config; readonly settings: CommonSettings } | null = null;
  return (config) => {
    if (latest?.of !== config) latest = { of: config, settings: commonSettings(config, role) };
    return latest.settings;
  };
}

function commonSettings(config: Config, role: string): CommonSettings {
  const { auth, prices, default_model, projects, locations, limits } = JSON.parse(
    redactConfig(config),
  ) as Config;
  const { memory_bytes: _, ...sameLimits } = limits;
  const groups: Readonly<Record<string, unknown>> = {
    // Only who serves the API asks for keys, and only who runs batches tells webhooks.
    ...(role !== "worker" && { auth: byName(auth?.keys ?? []) }),
    ...(role !== "api" && { webhooks: webhooksOf(config) }),
    default_model: default_model ?? null,
    deliveries: deliveriesOf(config),
    limits: sameLimits,
    locations: byName(locations),
    prices,
    projects: byName(projects),
  };
  return {
    hashes: Object.fromEntries(Object.entries(groups).map(([key, value]) => [key, hashOf(value)])),
    locations: config.locations.filter(({ access }) => access !== "read").map(({ name }) => name),
    clientBuckets:
      config.deliveries.client_buckets && config.deliveries.credentials_key !== undefined,
    webhooks: config.webhooks.endpoints.map(({ name, project = null, events = null }) => ({
      name,
      project,
      events,
    })),
  };
}

/** A whole URL, as its path is random where it is a secret. A password in it may be any word. */
function webhooksOf({ webhooks: { endpoints, allow_private_hosts } }: Config) {
  const shown = endpoints.map(({ secret: _, url, ...others }) => {
    const address = new URL(url);
    address.username = address.password = "";
    return { ...others, url: address.href };
  });
  return { endpoints: byName(shown), allow_private_hosts };
}

/** The key has enough random characters, and what encrypts is derived from it: neither can be guessed. */
function deliveriesOf({ deliveries: { credentials_key: text, ...others } }: Config) {
  return { ...others, key: text === undefined ? null : hashOf(keyOf(text).toString("hex")) };
}

const byName = <Named extends { readonly name: string }>(list: readonly Named[]) =>
  list.toSorted((a, b) => (a.name < b.name ? -1 : 1));

const hashOf = (value: unknown): string =>
  createHash("sha256").update(JSON.stringify(value)).digest("hex").slice(0, 16);
