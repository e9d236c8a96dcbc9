/** Tells addresses that only this machine reaches. */
import { isIP } from "node:net";

export const isLoopback = (host: string): boolean =>
  host === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
