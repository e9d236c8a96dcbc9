/**
 * Looks names of hosts up, each once at a time: what asks for a name that is being looked up gets the same answer.
 *
 * The system looks only two names up at a time, as libuv gives half of its four threads to what may be slow. A name whose
 * servers are silent keeps a thread for ten seconds or more, even when the connection that wanted it has given up. So the
 * lines of one such upstream, each with a lookup of its own, kept all other names of the process from being looked up.
 * Names that clients choose may all be silent, so no thread looks them up: batchd asks the name servers itself.
 * An answer must never be kept: an address may change at any time.
 */
import {
  type LookupAddress,
  type LookupOptions,
  lookup,
  NODATA,
  NOTFOUND,
  Resolver,
} from "node:dns";

type Callback = (
  error: NodeJS.ErrnoException | null,
  address: string | LookupAddress[],
  family?: number,
) => void;

/** Resolves a name to all of its addresses, like `dns.lookup`. */
export type Resolve = (
  hostname: string,
  options: LookupOptions & { all: true },
  callback: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void;

/** `dns.lookup`, as far as it is used. */
type Lookup = Resolve & ((host: string, options: LookupOptions, callback: Callback) => void);

/** The callbacks for each name that is being looked up. */
const waiting = new Map<string, Callback[]>();

/** Looks up names that the operator has chosen. */
export const lookupOnce = ((host: string, options: LookupOptions, callback: Callback): void => {
  const key = JSON.stringify([host, options]);
  const others = waiting.get(key);
  if (others !== undefined) {
    others.push(callback);
    return;
  }
  const callbacks = [callback];
  waiting.set(key, callbacks);
  lookup(host, options, (...result) => {
    waiting.delete(key);
    for (const each of callbacks) each(...result);
  });
}) as Lookup;

/** The answers that there is no such name, or that it has no address. */
const NOTHING_FOUND: readonly unknown[] = [NOTFOUND, NODATA];

/** It allows two questions to each name server, within the time of a connection. */
const PATIENCE = { timeout: 1_000, tries: 2 };

/**
 * Looks up names that clients have chosen. Names that only this machine knows, as from its file of hosts, are not found. A name
 * without an address, or that is not there, has none: a client must not learn from an error which names of the private network
 * there are.
 */
export const lookupInDns: Resolve = (host, _options, callback) => {
  // The name servers of the machine may have changed since the last one.
  const resolver = new Resolver(PATIENCE);
  const answers: LookupAddress[][] = [];
  let failure: NodeJS.ErrnoException | null = null;
  let left = 2;
  const answered = (family: 4 | 6) => (error: NodeJS.ErrnoException | null, found: string[]) => {
    if (error === null) answers[family] = found.map((address) => ({ address, family }));
    else if (!NOTHING_FOUND.includes(error.code)) failure = error;
    if (--left > 0) return;
    const addresses = answers.flat();
    callback(addresses.length > 0 ? null : failure, addresses);
  };
  resolver.resolve4(host, answered(4));
  resolver.resolve6(host, answered(6));
};
