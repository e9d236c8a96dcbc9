/**
 * The connections of undici, loaded one by one. The package as a whole brings fetch, WebSocket, caches and mocks with
 * it: 8 MB of memory that nothing here uses.
 */
import { createRequire } from "node:module";
import type * as undici from "undici";

const require = createRequire(import.meta.url);

export type { Dispatcher } from "undici";
export type PoolOptions = undici.Pool.Options;

export const Pool = require("undici/lib/dispatcher/pool.js") as typeof undici.Pool;

export const buildConnector = require("undici/lib/core/connect.js") as typeof undici.buildConnector;

/** The whole package, for the first target behind a proxy: the agent calls methods that only its entry point adds. */
export const loadProxyAgent = () => (require("undici") as typeof undici).ProxyAgent;
