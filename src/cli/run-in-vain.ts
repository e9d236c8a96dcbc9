/**
 * Decides whether a run whose model server refuses it can ever succeed. Its user has just chosen the key and the address, so
 * what no time mends ends the run at once. A proxy without its model server behind it refuses too, with a page or a few words
 * of its own, while a cluster starts. That is held like an outage.
 */
import type { ShownBatch } from "../client/shown-batch.ts";
import { systemClock } from "../clock.ts";
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import { checkUpstreams } from "../runtime/runtime.ts";
import { createLog } from "../telemetry/log.ts";
import { Metrics } from "../telemetry/metrics.ts";
import { configFor, type RunFlags } from "./run-config.ts";

/** A 401, and a code that only a server with this API has. Where there is neither, a proxy may have answered. */
const SAID_BY_THE_API = /\(status (?:401\b|\d{3}, )/;

export class InVain {
  readonly #flags: RunFlags;
  readonly #dataDir: string;
  #address: Promise<string | null> | null = null;

  constructor(flags: RunFlags, dataDir: string) {
    this.#flags = flags;
    this.#dataDir = dataDir;
  }

  /** Resolves to what its user has to correct, after the reason for the wait; null while time may mend it. */
  async find({ x_batchd: more }: ShownBatch): Promise<string | null> {
    const { upstream } = this.#flags;
    const { reason, upstream_error: error } = more?.waiting ?? {};
    if (upstream === undefined) return null;
    if (reason !== "refused_credentials" && reason !== "wrong_address") return null;
    const isSaidByTheApi = SAID_BY_THE_API.test(error ?? "");
    if (reason === "refused_credentials") return isSaidByTheApi ? "" : null;
    this.#address ??= this.#findAddress(upstream);
    const address = await this.#address;
    if (address !== null) return `. The API is at --upstream ${address}`;
    return isSaidByTheApi ? "" : null;
  }

  /** Asks where people mean the API to be who have left out `/v1`, or written the endpoint behind it. */
  async #findAddress(upstream: string): Promise<string | null> {
    const base = upstream.replace(/\/+$/, "");
    const endpoint = BATCH_ENDPOINTS.find((each) => base.endsWith(each));
    const address = endpoint === undefined ? `${base}/v1` : `${base.slice(0, -endpoint.length)}/v1`;
    const config = configFor({ ...this.#flags, upstream: address }, this.#dataDir);
    const surroundings = { clock: systemClock, log: createLog("silent"), metrics: new Metrics() };
    const warnings = await checkUpstreams({ config, ...surroundings });
    return warnings.length === 0 ? address : null;
  }
}
