/**
 * The places that the results of a run are delivered to: a folder and a bucket. Each batch has a folder in both, with its
 * results as clients download them, and nothing else.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { S3Server } from "../support/s3-server.ts";

const PREFIX = "chaos-results/";

/** What a client asks for with each batch. */
export const DELIVERIES = [{ location: "share" }, { location: "lake" }] as const;

export class Places {
  readonly #share: string;
  readonly #s3: S3Server;
  readonly #endpoint: string;

  /** The requests for the bucket go to `endpoint`. */
  constructor(folder: string, s3: S3Server, endpoint: string) {
    this.#share = join(folder, "share");
    this.#s3 = s3;
    this.#endpoint = endpoint;
    mkdirSync(this.#share);
  }

  /** The `locations` of a configuration. */
  get locations(): readonly object[] {
    const { type: _, ...bucket } = this.#s3.storage({ endpoint: this.#endpoint, prefix: PREFIX });
    return [
      { name: "share", kind: "folder", path: this.#share, access: "write" },
      { name: "lake", kind: "s3", ...bucket, access: "write" },
    ];
  }

  /** Returns what is wrong with the results of a batch at both places. */
  faultsOf(batchId: string, expected: ReadonlyMap<string, string>): string[] {
    return this.#roots.flatMap(([place, root]) => {
      const folder = join(root, batchId);
      const found = existsSync(folder) ? readdirSync(folder).toSorted() : [];
      const wanted = [...expected.keys(), "run.json"].toSorted();
      if (String(found) !== String(wanted)) {
        return [`${place}: ${batchId} has the files ${found} instead of ${wanted}`];
      }
      const read = (name: string) => readFileSync(join(folder, name), "utf8");
      const other = [...expected].filter(([name, text]) => read(name) !== text);
      const faults = other.map(([name]) => `${place}: ${batchId}/${name} has other bytes`);
      const run = JSON.parse(read("run.json")) as unknown;
      const isOfBatch = JSON.stringify(run).includes(batchId);
      return isOfBatch ? faults : [...faults, `${place}: ${batchId}/run.json is of another batch`];
    });
  }

  /** Returns what is at a place and belongs to no batch. */
  faultsBeside(batchIds: readonly string[]): string[] {
    const known = new Set(batchIds);
    return this.#roots.flatMap(([place, root]) =>
      (existsSync(root) ? readdirSync(root) : [])
        .filter((name) => !known.has(name))
        .map((name) => `${place}: ${name} was left there`),
    );
  }

  get #roots(): readonly (readonly [string, string])[] {
    return [
      ["folder", this.#share],
      ["bucket", join(this.#s3.bucketFolder, PREFIX)],
    ];
  }
}
