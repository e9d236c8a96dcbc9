/**
 * Buckets that clients name, with credentials that they bring for one delivery. Their addresses pass the same guard as those
 * of webhooks: a client must not reach what only this machine can reach.
 */
import { join } from "node:path";
import type { BucketCredentials, ClientBucket, DeliveryId } from "../batch/delivery.ts";
import type { DeliveriesConfig } from "../config/deliveries.ts";
import type { NamedLocation } from "../locations/location.ts";
import type { Locations } from "../locations/locations.ts";
import { AddressGuard } from "../resources/address-guard.ts";
import { lookupInDns } from "../resources/name-lookup.ts";
import { keyInFile, keyOf, seal, unseal } from "./sealed-credentials.ts";

const KEY_FILE = "batchd.credentials-key";

export interface ClientBucketsOptions {
  readonly config: DeliveriesConfig;
  /** The folder for a key file; null where several servers share a database, and a file of one would not do. */
  readonly keyFolder: string | null;
  readonly locations: Locations;
}

export class ClientBuckets {
  readonly #options: Omit<ClientBucketsOptions, "config">;
  readonly #guard: AddressGuard;
  #config: DeliveriesConfig;

  constructor({ config, ...options }: ClientBucketsOptions) {
    this.#options = options;
    this.#config = config;
    const setting = "deliveries.allow_private_hosts";
    this.#guard = new AddressGuard(config.allow_private_hosts, {
      setting,
      resolveOthers: lookupInDns,
    });
  }

  reconfigure(config: DeliveriesConfig): void {
    this.#config = config;
    this.#guard.allow(config.allow_private_hosts);
  }

  /** Whether servers share the database. Another one may then have the settings that this one lacks. */
  get isOfFleet(): boolean {
    return this.#options.keyFolder === null;
  }

  refusal(): string | null {
    if (!this.#config.client_buckets) {
      return "this server delivers to its own locations alone (deliveries.client_buckets)";
    }
    if (this.#config.credentials_key === undefined && this.isOfFleet) {
      return "this server cannot keep credentials, because deliveries.credentials_key is not configured";
    }
    return null;
  }

  addressRefusal(host: string): string | null {
    return this.#guard.refusalOf(host)?.message ?? null;
  }

  async seal(id: DeliveryId, credentials: BucketCredentials): Promise<string> {
    return seal(id, credentials, await this.#key());
  }

  /** Throws `CannotUnseal`. */
  async unseal(id: DeliveryId, sealed: string): Promise<BucketCredentials> {
    return unseal(id, sealed, await this.#key());
  }

  open(bucket: ClientBucket, credentials: BucketCredentials): NamedLocation {
    return this.#options.locations.ofClient({ ...bucket, ...credentials }, this.#guard);
  }

  async #key(): Promise<Buffer> {
    const { credentials_key: text } = this.#config;
    if (text !== undefined) return keyOf(text);
    const { keyFolder } = this.#options;
    if (keyFolder === null) throw new Error("there is no key for credentials");
    return keyInFile(join(keyFolder, KEY_FILE));
  }
}
