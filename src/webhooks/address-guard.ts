/**
 * Keeps webhooks out of the private network. Their URLs may come from people who should not reach what this
 * machine reaches: metadata services, databases, the upstreams themselves.
 *
 * The check is made on the addresses that a connection is about to use, not on the URL: a name is resolved
 * once, and only what passed is connected to, so a name that changes its mind between check and connection
 * gains nothing. Only public unicast addresses pass. Those that carry another address inside them (mapped,
 * NAT64, 6to4, Teredo) do not, whatever they carry.
 */
import { type LookupAddress, type LookupOptions, lookup as systemLookup } from "node:dns";
import { isIP, type LookupFunction } from "node:net";
import ipaddr from "ipaddr.js";

export class AddressRefused extends Error {
  override readonly name = "AddressRefused";
}

/** All addresses of a name, as `dns.lookup` finds them. */
export type Resolve = (
  hostname: string,
  options: LookupOptions & { all: true },
  callback: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void;

export class AddressGuard {
  #allowed: ReadonlySet<string> = new Set();
  readonly #resolve: Resolve;

  /** `allowedHosts` are the names and addresses that may be private. */
  constructor(allowedHosts: readonly string[], resolve: Resolve = systemLookup) {
    this.#resolve = resolve;
    this.allow(allowedHosts);
  }

  /** Other hosts that may be private, from the next connection on. */
  allow(hosts: readonly string[]): void {
    this.#allowed = new Set(hosts.map(canonical));
  }

  /** Why the host of a URL must not be connected to; null when it may, or is a name that {@link lookup} checks. */
  refusalOf(host: string): AddressRefused | null {
    return isIP(host) === 0 || this.#isOpen(host, host) ? null : refusal(host, [host]);
  }

  /** In place of `dns.lookup`: finds only addresses that may be connected to. */
  readonly lookup: LookupFunction = (hostname, options, callback) => {
    this.#resolve(hostname, { ...options, all: true }, (error, found) => {
      if (error !== null) return callback(error, []);
      const open = found.filter(({ address }) => this.#isOpen(hostname, address));
      const [first] = open;
      if (first === undefined) {
        const addresses = found.map(({ address }) => address);
        return callback(refusal(hostname, addresses), []);
      }
      if (options.all === true) callback(null, open);
      else callback(null, first.address, first.family);
    });
  };

  #isOpen(host: string, address: string): boolean {
    return (
      this.#allowed.has(canonical(host)) ||
      this.#allowed.has(canonical(address)) ||
      rangeOf(address) === "unicast"
    );
  }
}

const refusal = (host: string, addresses: readonly string[]) => {
  const found = addresses.map((address) => `${address} (${rangeOf(address)})`).join(", ");
  return new AddressRefused(
    `${host} has no public address, only ${found}, and is not in webhooks.allow_private_hosts`,
  );
};

/** All of IPv6 that is given out. Below it are relics that still carry IPv4, such as `::127.0.0.1`. */
const GLOBAL_IPV6 = ipaddr.IPv6.parseCIDR("2000::/3");

function rangeOf(address: string): string {
  if (!ipaddr.isValid(address)) return "not an address";
  const parsed = ipaddr.parse(address);
  const range = parsed.range();
  const isStray = parsed.kind() === "ipv6" && range === "unicast" && !parsed.match(GLOBAL_IPV6);
  return isStray ? "reserved" : range;
}

/** One spelling for each address and name. */
function canonical(host: string): string {
  const bare = host.replace(/^\[(.*)\]$/, "$1");
  return ipaddr.isValid(bare)
    ? ipaddr.parse(bare).toNormalizedString()
    : bare.toLowerCase().replace(/\.$/, "");
}
