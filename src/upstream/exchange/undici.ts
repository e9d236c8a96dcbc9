/**
 * The connections of undici, loaded one by one. The package as a whole brings fetch, WebSocket, caches and mocks
 * with it, 8 MB of memory for which nothing here has a use.
 */
import { createRequire } from "node:module";
import type * as undici from "undici";

const require = createRequire(import.meta.url);

export type { Dispatcher } from "undici";
export type PoolOptions = undici.Pool.Options;

export const Pool = require("undici/lib/dispatcher/pool.js") as typeof undici.Pool;

/** Loaded for the first target behind a proxy. */
export const loadProxyAgent = () =>
  require("undici/lib/dispatcher/proxy-agent.js") as typeof undici.ProxyAgent;
