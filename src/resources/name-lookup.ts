/**
 * Looks names of hosts up, each once at a time: what asks for a name that is being looked up gets the same answer.
 *
 * The system looks only two names up at a time, as libuv gives half of its four threads to what may be slow. A name whose
 * servers are silent keeps a thread for ten seconds or more, even when the connection that wanted it has given up. So the
 * lines of one such upstream, each with a lookup of its own, kept all other names of the process from being looked up.
 * Names that clients choose may all be silent, so only one of them is looked up at a time.
 * An answer must never be kept: an address may change at any time.
 */
import { type LookupAddress, type LookupOptions, lookup } from "node:dns";

type Callback = (
  error: NodeJS.ErrnoException | null,
  address: string | LookupAddress[],
  family?: number,
) => void;

/** `dns.lookup`, as far as it is used. */
interface Lookup {
  (
    host: string,
    options: LookupOptions & { all: true },
    callback: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
  ): void;
  (host: string, options: LookupOptions, callback: Callback): void;
}

/** What asks for one more is refused, and asks again later: a queue of silent names would be hours long. */
const MAX_WAITING = 16;

class NameLookup {
  readonly #limit: number;
  #count = 0;
  readonly #waiting: (() => void)[] = [];
  /** The callbacks for each name that waits or is being looked up. */
  readonly #callbacks = new Map<string, Callback[]>();

  /** `limit` is the number of names that are looked up at the same time. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  readonly lookup = (host: string, options: LookupOptions, callback: Callback): void => {
    const key = JSON.stringify([host, options]);
    const others = this.#callbacks.get(key);
    if (others !== undefined) {
      others.push(callback);
      return;
    }
    if (this.#waiting.length === MAX_WAITING) {
      queueMicrotask(() => callback(tooMany(host), []));
      return;
    }
    const callbacks = [callback];
    this.#callbacks.set(key, callbacks);
    this.#waiting.push(() =>
      lookup(host, options, (...result) => {
        this.#callbacks.delete(key);
        this.#count--;
        this.#startNext();
        for (const each of callbacks) each(...result);
      }),
    );
    this.#startNext();
  };

  #startNext(): void {
    if (this.#count === this.#limit) return;
    const start = this.#waiting.shift();
    if (start === undefined) return;
    this.#count++;
    start();
  }
}

const tooMany = (host: string) =>
  Object.assign(new Error(`${host} was not looked up, because many other names are`), {
    code: "EAI_AGAIN",
  });

/** Looks up names that the operator has chosen. */
export const lookupOnce = new NameLookup(Number.POSITIVE_INFINITY).lookup as Lookup;

/** Looks up names that clients have chosen. */
export const lookupForClients = new NameLookup(1).lookup as Lookup;
