/**
 * The locations of the configuration in force, and who may use them. An adapter is loaded when its location is first
 * used, because some bring large libraries with them.
 */
import { createHash } from "node:crypto";
import type { BucketCredentials, ClientBucket } from "../batch/delivery.ts";
import type { LocationConfig } from "../config/locations.ts";
import { locationSecrets } from "../config/secrets.ts";
import { lazy } from "../lazy.ts";
import { printable } from "../printable.ts";
import { Redactor } from "../redactor.ts";
import { truncate } from "../text/truncate.ts";
import type { GitSurroundings } from "./git/open.ts";
import {
  type Delivered,
  type DeliveryCall,
  type Location,
  type LocationCall,
  LocationError,
  type LocationFile,
  type LocationKind,
  type NamedLocation,
  type OpenCall,
  type Parcel,
} from "./location.ts";
import type { LocationPath } from "./location-path.ts";
import type { AddressCheck } from "./s3/open.ts";

/** What adapters need of the process. */
export interface LocationsDeps extends GitSurroundings {
  /** What adapters may take from the environment, and messages must not show. */
  readonly secrets?: readonly string[];
}

export type LocationAccess = "read" | "write";

export class Locations {
  readonly #redactor = new Redactor();
  #entries: ReadonlyMap<string, Entry> = new Map();
  /** The locations that the configuration has had since the start of the process, by name and place. */
  readonly #former = new Map<string, NamedLocation>();
  readonly #deps: LocationsDeps;

  constructor(configured: readonly LocationConfig[], deps: LocationsDeps) {
    this.#deps = deps;
    this.#redactor.add(deps.secrets ?? []);
    this.reconfigure(configured);
  }

  /** Returns null both for an unknown location and for one that the project may not use. */
  find(project: string, name: string, access: LocationAccess): NamedLocation | null {
    const entry = this.#entries.get(name);
    if (entry === undefined) return null;
    const { config, location } = entry;
    const isOpen = config.projects?.includes(project) ?? true;
    return isOpen && (config.access === "read-write" || config.access === access) ? location : null;
  }

  /** Whether results of any project may go to a location of this name. */
  takesResults(name: string): boolean {
    const entry = this.#entries.get(name);
    return entry !== undefined && entry.config.access !== "read";
  }

  /**
   * Returns a location for removing what batchd itself has left there, also for projects that may not use it any more, and
   * one that the configuration has had since the start of the process. Null for the place means the one that has the name now.
   */
  findToClean(name: string, placeId: string | null): NamedLocation | null {
    const current = this.#entries.get(name)?.location ?? null;
    if (placeId === null || current?.placeId === placeId) return current;
    return this.#former.get(formerKey(name, placeId)) ?? null;
  }

  /** Deliveries under way go on with the former settings. */
  reconfigure(configured: readonly LocationConfig[]): void {
    this.#redactor.add(configured.flatMap(locationSecrets));
    for (const [name, { location }] of this.#entries) {
      this.#former.set(formerKey(name, location.placeId), location);
    }
    this.#entries = new Map(
      configured.map((config) => {
        const former = this.#entries.get(config.name);
        const isSame = JSON.stringify(former?.config) === JSON.stringify(config);
        const location = former !== undefined && isSame ? former.location : this.#lazy(config);
        return [config.name, { config, location }];
      }),
    );
  }

  #lazy(config: LocationConfig): NamedLocation {
    const redact = (text: string) => this.#redactor.text(text);
    const { name, kind } = config;
    const id = { name, kind, placeId: placeIdOf(config), isShared: true };
    return new LazyLocation(id, redact, () => openLocation(config, this.#deps));
  }

  /** Returns the bucket of a client, which names it and brings its credentials. Addresses pass the check. */
  ofClient(bucket: ClientBucket & BucketCredentials, check: AddressCheck): NamedLocation {
    const { accessKeyId, secretAccessKey, sessionToken } = bucket;
    const redactor = new Redactor([
      accessKeyId,
      secretAccessKey,
      ...(sessionToken === null ? [] : [sessionToken]),
    ]);
    const name = `s3://${bucket.bucket}`;
    // It stays the same for all attempts of its delivery.
    const id = { name, kind: "s3", placeId: "client", isShared: false } as const;
    return new LazyLocation(
      id,
      (text) => redactor.text(text),
      async () => {
        const { openClientBucket } = await import("./s3/open.ts");
        return openClientBucket(bucket, { check, clock: this.#deps.clock });
      },
    );
  }
}

interface Entry {
  readonly config: LocationConfig;
  readonly location: NamedLocation;
}

const formerKey = (name: string, placeId: string) => JSON.stringify([name, placeId]);

/** Depends on the address alone: new credentials do not make another place. */
const placeIdOf = (config: LocationConfig): string =>
  createHash("sha256")
    .update(JSON.stringify(addressOf(config)))
    .digest("hex")
    .slice(0, 16);

function addressOf(config: LocationConfig): readonly unknown[] {
  const { kind } = config;
  switch (kind) {
    case "folder":
      return [kind, config.path];
    case "s3":
      return [kind, config.endpoint, config.bucket, config.prefix];
    case "git":
      return [kind, config.repository];
    case "oxen":
      return [kind, config.url, config.repository];
  }
}

async function openLocation(config: LocationConfig, deps: LocationsDeps): Promise<Location> {
  switch (config.kind) {
    case "folder": {
      const { FolderLocation } = await import("./folder/folder.ts");
      return new FolderLocation(config, deps);
    }
    case "s3": {
      const { openS3Location } = await import("./s3/open.ts");
      return openS3Location(config, deps.clock);
    }
    case "git": {
      const { openGitLocation } = await import("./git/open.ts");
      return openGitLocation(config, deps);
    }
    case "oxen": {
      const { openOxenLocation } = await import("./oxen/open.ts");
      return openOxenLocation(config);
    }
  }
}

interface LazyLocationId extends Pick<NamedLocation, "name" | "kind" | "placeId"> {
  /** Whether it stays open for later calls, as those of the configuration do. */
  readonly isShared: boolean;
}

/** The longest message of a failure. A path of a client fits. */
const MAX_MESSAGE = 1_200;

/**
 * Opens its location at the first use, and redacts the messages of all its failures, which may quote the other side. They are
 * shortened last, because a cut through a secret would keep it from being found.
 */
class LazyLocation implements NamedLocation {
  readonly name: string;
  readonly kind: LocationKind;
  readonly placeId: string;
  readonly #isShared: boolean;
  readonly #redact: (text: string) => string;
  readonly #opened: () => Promise<Location>;
  #location: Location | null = null;

  constructor(
    { name, kind, placeId, isShared }: LazyLocationId,
    redact: (text: string) => string,
    open: () => Promise<Location>,
  ) {
    this.name = name;
    this.kind = kind;
    this.placeId = placeId;
    this.#isShared = isShared;
    this.#redact = redact;
    this.#opened = lazy(open);
  }

  async open(path: LocationPath, call: OpenCall): Promise<LocationFile> {
    const file = await this.#use((location) => location.open(path, call));
    return {
      bytes: file.bytes,
      revision: file.revision,
      content: this.#redactedIn(file.content),
      [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
    };
  }

  deliver(parcel: Parcel, call: DeliveryCall): Promise<Delivered> {
    return this.#use((location) => location.deliver(parcel, call));
  }

  discard(saved: string, call: LocationCall): Promise<void> {
    return this.#use((location) => location.discard(saved, call));
  }

  /** The server at the other end may never close a connection, and a client may open any number of them. */
  [Symbol.dispose](): void {
    if (!this.#isShared) this.#location?.close?.();
  }

  async #use<T>(act: (location: Location) => Promise<T>): Promise<T> {
    try {
      this.#location = await this.#opened();
      return await act(this.#location);
    } catch (error) {
      throw this.#redacted(error);
    }
  }

  async *#redactedIn(content: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    try {
      yield* content;
    } catch (error) {
      throw this.#redacted(error);
    }
  }

  #redacted(error: unknown): unknown {
    if (!(error instanceof LocationError)) return error;
    const message = printable(truncate(this.#redact(error.message), MAX_MESSAGE));
    return new LocationError(error.failure, message, { cause: error.cause });
  }
}
