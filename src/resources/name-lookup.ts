/**
 * Looks names of hosts up, each once at a time: what asks for a name that is being looked up gets the same answer.
 *
 * The system looks only two names up at a time, as libuv gives half of its four threads to what may be slow. A name whose
 * servers are silent keeps a thread for ten seconds or more, even when the connection that wanted it has given up. So the
 * lines of one such upstream, each with a lookup of its own, kept all other names of the process from being looked up.
 * An answer must never be kept: an address may change at any time.
 */
import { type LookupAddress, type LookupOptions, lookup } from "node:dns";

type Callback = (
  error: NodeJS.ErrnoException | null,
  address: string | LookupAddress[],
  family?: number,
) => void;

/** The callbacks for each lookup under way. */
const underWay = new Map<string, Callback[]>();

/** Replaces `dns.lookup`. */
export function lookupOnce(host: string, options: LookupOptions, callback: Callback): void {
  const key = JSON.stringify([host, options]);
  const waiting = underWay.get(key);
  if (waiting !== undefined) {
    waiting.push(callback);
    return;
  }
  const callbacks = [callback];
  underWay.set(key, callbacks);
  lookup(host, options, (...result) => {
    underWay.delete(key);
    for (const each of callbacks) each(...result);
  });
}
